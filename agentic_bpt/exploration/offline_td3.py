"""TD3 and TD3+BC on stored episodes: ExoRL's offline agents, on the collectors' actor-critic."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentic_bpt.datasets.sampler import TransitionBatch, TransitionSampler
from agentic_bpt.datasets.store import Store
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.exploration.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    Batch,
    noisy_actions,
    update_networks,
)
from agentic_bpt.exploration.networks import (
    Actor,
    Critic,
    apply_actor,
    apply_critic,
    init_actor,
    init_critic,
)
from agentic_bpt.exploration.seeding import Purpose, generator

Array = jax.Array | np.ndarray

OfflineStep = Callable[[ActorCritic, TransitionBatch], tuple[ActorCritic, dict[str, jax.Array]]]
"""(state, batch) -> (state, metrics)."""


class Offline(NamedTuple):
    """What training on a store needs."""

    state: ActorCritic
    step: OfflineStep
    batch_at: Callable[[int], TransitionBatch]


def make_offline(
    store: Store,
    config: ActorCriticConfig,
    optimizer: optax.GradientTransformation,
    *,
    bc_alpha: float | None,
    batch: int,
    seed: int,
) -> Offline:
    """Build initial state, update and batches on the training episodes of a store.

    Raises:
        InputError: no episode is as long as the critics' returns.
    """
    spec = task_spec(store.task)
    batches = TransitionSampler(
        store,
        store.training,
        batch=batch,
        seed=seed,
        return_steps=config.return_steps,
        discount=config.discount,
    )
    state = init_offline(
        config,
        optimizer,
        seed=seed,
        observation_width=spec.observation_width,
        action_width=spec.action_width,
    )
    step = make_offline_step(
        config,
        optimizer,
        bc_alpha=bc_alpha,
        mean_O=store.observation_mean,
        std_O=store.observation_std,
        seed=seed,
    )
    return Offline(state, step, batches.batch)


def init_offline(
    config: ActorCriticConfig,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    observation_width: int,
    action_width: int,
) -> ActorCritic:
    """Draw a fresh state: a policy, and two critics that share nothing, as ExoRL's agents have."""
    draws = generator(seed, 0, Purpose.PARAMETERS)
    widths = {"observation_width": observation_width, "action_width": action_width}
    actor = init_actor(draws, hidden=config.width, **widths)
    critic = init_critic(draws, hidden=config.width, own_trunks=True, **widths)
    return ActorCritic(
        actor,
        critic,
        jax.tree.map(jnp.copy, critic),  # a state that is donated must not hold an array twice
        optimizer.init(actor),
        optimizer.init(critic),
        jnp.zeros((), jnp.int32),
    )


def policy_loss(actor: Actor, critic: Critic, batch: Batch, *, bc_alpha: float | None) -> jax.Array:
    """Give what the policy's update lowers: the lesser of both values, negative, and the BC term.

    With `bc_alpha` it is that of TD3+BC (arXiv 2106.06860, section 5), (pi(s) - a)^2 - lambda Q,
    but for Q: there the first critic's at the policy's action, here, as in ExoRL's agents, the
    lesser of both at the action with noise. lambda = alpha / mean |Q| is taken as a constant, so
    that alpha means the same whatever the scale of the rewards.
    """
    actions_BA = noisy_actions(actor, batch.observations, batch.actor_noise)
    value_B = jnp.minimum(*apply_critic(critic, batch.observations, actions_BA))
    if bc_alpha is None:
        return -value_B.mean()
    scale = bc_alpha / jax.lax.stop_gradient(jnp.abs(value_B).mean())
    error = jnp.square(apply_actor(actor, batch.observations) - batch.actions).mean()
    return error - scale * value_B.mean()


def make_offline_step(
    config: ActorCriticConfig,
    optimizer: optax.GradientTransformation,
    *,
    bc_alpha: float | None,
    mean_O: Array,
    std_O: Array,
    seed: int,
) -> OfflineStep:
    """Build the update; its action noise is a function of the seed and the updates done.

    Observations are normalised by `mean_O` and `std_O`, as TD3+BC does (ExoRL's own code does not).
    """
    actor_loss = partial(policy_loss, bc_alpha=bc_alpha)

    def offline_step(state: ActorCritic, transitions: TransitionBatch):
        actions_BA = jnp.asarray(transitions.actions_BA)
        key = jax.random.fold_in(jax.random.key(seed), state.updates)
        noise = config.noise * jax.random.normal(key, (2, *actions_BA.shape))
        target_noise_BA, actor_noise_BA = jnp.clip(noise, -config.noise_clip, config.noise_clip)
        batch = Batch(
            _normalised(transitions.observations_BO, mean_O, std_O),
            actions_BA,
            jnp.asarray(transitions.rewards_B),
            _normalised(transitions.next_observations_BO, mean_O, std_O),
            target_noise_BA,
            actor_noise_BA,
        )
        return update_networks(state, batch, config, optimizer=optimizer, actor_loss=actor_loss)

    return offline_step


def act_offline(actor: Actor, observations_BO: Array, *, mean_O: Array, std_O: Array) -> jax.Array:
    """Give the policy's actions [B, A], without noise."""
    return apply_actor(actor, _normalised(observations_BO, mean_O, std_O))


def _normalised(observations_BO: Array, mean_O: Array, std_O: Array) -> jax.Array:
    return (jnp.asarray(observations_BO) - mean_O) / std_O
