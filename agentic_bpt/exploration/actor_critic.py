"""What collectors and offline TD3 share: a policy and two critics, updated by pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentic_bpt.errors import InputError
from agentic_bpt.exploration.networks import (
    Actor,
    Critic,
    apply_actor,
    apply_critic,
    init_actor,
    init_critic,
)


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """What an update depends on beside its optimiser; the defaults are for a CPU core or two."""

    width: int = 256
    """Width of every hidden layer (published: 1,024)."""
    actor_every_updates: int = 2
    """Critic updates for each actor update (TD3's delay)."""
    return_steps: int = 3
    """Rewards summed before the critic's bootstrap."""
    discount: float = 0.99
    """Discount of one decision."""
    target_rate: float = 0.01
    """Fraction by which the target critic moves towards the critic at each update."""
    noise: float = 0.2
    """Standard deviation of the action noise, in learning and in a collector's acting."""
    noise_clip: float = 0.3
    """Bound of the action noise in learning."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        _require_positive(self, "width", "actor_every_updates", "return_steps")
        _require_not_negative(self, "noise", "noise_clip")
        for name in ("discount", "target_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must lie in (0, 1], got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(ActorCriticConfig):
    """Settings of an actor-critic that collects what it learns from."""

    learning_rate: float = 3e-4
    """Adam's step size, for all networks (published: 1e-4)."""
    batch_size: int = 256
    """Windows in one update (published: 1,024)."""
    uniform_steps: int = 2000
    """Decisions with uniform random actions at the start; learning starts after them."""
    update_every_steps: int = 2
    """Decisions for each update."""
    updates_per_call: int = 32
    """Updates in one compiled call: enough to make its dispatch cost nothing."""
    replay_steps: int = 1_000_000
    """Newest decisions that are learned from."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        _require_positive(self, "learning_rate", "batch_size", "update_every_steps")
        _require_positive(self, "updates_per_call", "replay_steps")
        _require_not_negative(self, "uniform_steps")


def _require_positive(config: ActorCriticConfig, *names: str) -> None:
    """Refuse a setting of 0 or less."""
    for name in names:
        if getattr(config, name) <= 0:
            raise InputError(f"{name} must be positive, got {getattr(config, name)}")


def _require_not_negative(config: ActorCriticConfig, *names: str) -> None:
    """Refuse a setting below 0."""
    for name in names:
        if getattr(config, name) < 0:
            raise InputError(f"{name} must not be negative, got {getattr(config, name)}")


class Batch(NamedTuple):
    """Windows of the replay with the noise for one update; in a call each has a leading axis."""

    observations: jax.Array  # float32 [B, O], at the start of the window
    actions: jax.Array  # float32 [B, A], the first of the window
    rewards: jax.Array  # float32 [B], discounted sum over the window
    next_observations: jax.Array  # float32 [B, O], at the end of the window
    target_noise: jax.Array  # float32 [B, A], clipped, for the critic's target
    actor_noise: jax.Array  # float32 [B, A], clipped, for the actor's update


class ActorCritic(NamedTuple):
    """All that the actor-critic carries from update to update."""

    actor: Actor
    critic: Critic
    critic_target: Critic
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    updates: jax.Array  # int32 []

    @property
    def step(self) -> jax.Array:
        """Give the updates done, under the training loop's name for them."""
        return self.updates


ActorLoss = Callable[[Actor, Critic, Batch], jax.Array]
"""What the policy's update lowers, a scalar."""


def init_actor_critic(
    draws: np.random.Generator,
    config: LearnerConfig,
    *,
    observation_width: int,
    action_width: int,
) -> ActorCritic:
    """Draw a collector's fresh actor-critic, whose target critic equals its critic."""
    widths = {"observation_width": observation_width, "action_width": action_width}
    actor = init_actor(draws, hidden=config.width, **widths)
    critic = init_critic(draws, hidden=config.width, own_trunks=False, **widths)
    adam = optax.adam(config.learning_rate)
    return ActorCritic(
        actor, critic, critic, adam.init(actor), adam.init(critic), jnp.asarray(np.int32(0))
    )


def noisy_actions(actor: Actor, observations_BO: jax.Array, noise_BA: jax.Array) -> jax.Array:
    """Give the policy's actions with noise, clipped to [-1, 1], with the gradient of no clipping.

    Without the straight-through gradient an actor that has saturated could not come back.
    """
    actions_BA = apply_actor(actor, observations_BO) + noise_BA
    return actions_BA + jax.lax.stop_gradient(jnp.clip(actions_BA, -1.0, 1.0) - actions_BA)


def target_values(state: ActorCritic, batch: Batch, config: ActorCriticConfig) -> jax.Array:
    """Give the critics' target [B]: the window's rewards, then the lesser target value at its end.

    No episode ends early in these tasks, so there is always a bootstrap (TD3, arXiv 1802.09477).
    As in the published collectors the policy itself, and no slow copy of it, picks the action.
    """
    next_actions_BA = noisy_actions(state.actor, batch.next_observations, batch.target_noise)
    first_B, second_B = apply_critic(state.critic_target, batch.next_observations, next_actions_BA)
    return batch.rewards + config.discount**config.return_steps * jnp.minimum(first_B, second_B)


def negative_value(actor: Actor, critic: Critic, batch: Batch) -> jax.Array:
    """Give the mean of the first critic's value of the policy's noisy actions, negative (TD3)."""
    actions_BA = noisy_actions(actor, batch.observations, batch.actor_noise)
    (value_B,) = apply_critic(critic, batch.observations, actions_BA, heads=1)
    return -value_B.mean()


def update_critic(
    state: ActorCritic,
    batch: Batch,
    config: ActorCriticConfig,
    optimizer: optax.GradientTransformation,
) -> tuple[ActorCritic, dict[str, jax.Array]]:
    """Move both critics towards their target by one step, and the target critic after them.

    The metrics are the critics' `loss` before the step, and the mean of the target, `value`.
    """
    target_B = target_values(state, batch, config)

    def loss(critic: Critic) -> jax.Array:
        first_B, second_B = apply_critic(critic, batch.observations, batch.actions)
        return jnp.square(first_B - target_B).mean() + jnp.square(second_B - target_B).mean()

    error, gradient = jax.value_and_grad(loss)(state.critic)
    change, optimizer_state = optimizer.update(gradient, state.critic_optimizer, state.critic)
    critic = optax.apply_updates(state.critic, change)
    target = optax.incremental_update(critic, state.critic_target, config.target_rate)
    moved = state._replace(critic=critic, critic_target=target, critic_optimizer=optimizer_state)
    return moved, {"loss": error, "value": target_B.mean()}


def update_actor(
    state: ActorCritic,
    batch: Batch,
    optimizer: optax.GradientTransformation,
    loss: ActorLoss,
) -> ActorCritic:
    """Move the policy down its loss by one step."""
    gradient = jax.grad(loss)(state.actor, state.critic, batch)
    change, optimizer_state = optimizer.update(gradient, state.actor_optimizer, state.actor)
    actor = optax.apply_updates(state.actor, change)
    return state._replace(actor=actor, actor_optimizer=optimizer_state)


def update_networks(
    state: ActorCritic,
    batch: Batch,
    config: ActorCriticConfig,
    *,
    optimizer: optax.GradientTransformation,
    actor_loss: ActorLoss,
) -> tuple[ActorCritic, dict[str, jax.Array]]:
    """Update the critics, and every `actor_every_updates`-th time the policy.

    The metrics are those of `update_critic`.
    """
    state, metrics = update_critic(state, batch, config, optimizer)
    state = jax.lax.cond(
        state.updates % config.actor_every_updates == 0,
        lambda state: update_actor(state, batch, optimizer, actor_loss),
        lambda state: state,
        state,
    )
    return state._replace(updates=state.updates + 1), metrics


def update_actor_critic(state: ActorCritic, batch: Batch, config: LearnerConfig) -> ActorCritic:
    """Update a collector's networks by Adam; its policy seeks the first critic's value."""
    adam = optax.adam(config.learning_rate)
    return update_networks(state, batch, config, optimizer=adam, actor_loss=negative_value)[0]
