"""The learner that both explorers share: a policy and two critics, as pure functions."""

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
class LearnerConfig:
    """Settings of the actor-critic; the defaults are for one or two CPU cores."""

    hidden_width: int = 256
    """Width of every hidden layer (published: 1,024)."""
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
    actor_every_updates: int = 2
    """Critic updates for each actor update (TD3's delay)."""
    return_steps: int = 3
    """Rewards summed before the critic's bootstrap."""
    discount: float = 0.99
    """Discount of one decision."""
    target_rate: float = 0.01
    """Fraction by which the target critic moves towards the critic at each update."""
    noise: float = 0.2
    """Standard deviation of the action noise, in collecting and in learning."""
    noise_clip: float = 0.3
    """Bound of the action noise in learning."""
    replay_steps: int = 1_000_000
    """Newest decisions that are learned from."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        positive = ("hidden_width", "learning_rate", "batch_size", "update_every_steps")
        positive += ("updates_per_call", "actor_every_updates", "return_steps", "replay_steps")
        for name in positive:
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("uniform_steps", "noise", "noise_clip"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("discount", "target_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must lie in (0, 1], got {getattr(self, name)}")


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


def init_actor_critic(
    draws: np.random.Generator,
    config: LearnerConfig,
    *,
    observation_width: int,
    action_width: int,
) -> ActorCritic:
    """Draw a fresh actor-critic whose target critic equals its critic."""
    widths = {"observation_width": observation_width, "action_width": action_width}
    actor = init_actor(draws, hidden=config.hidden_width, **widths)
    critic = init_critic(draws, hidden=config.hidden_width, **widths)
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


def target_values(state: ActorCritic, batch: Batch, config: LearnerConfig) -> jax.Array:
    """Give the critics' target [B]: the window's rewards, then the lesser target value at its end.

    No episode ends early in these tasks, so there is always a bootstrap (TD3, arXiv 1802.09477).
    As in the published collectors the policy itself, and no slow copy of it, picks the action.
    """
    next_actions_BA = noisy_actions(state.actor, batch.next_observations, batch.target_noise)
    first_B, second_B = apply_critic(state.critic_target, batch.next_observations, next_actions_BA)
    return batch.rewards + config.discount**config.return_steps * jnp.minimum(first_B, second_B)


def update_critic(state: ActorCritic, batch: Batch, config: LearnerConfig) -> ActorCritic:
    """Move both critics towards their target by one step of Adam, and the target critic after."""
    target_B = target_values(state, batch, config)

    def loss(critic: Critic) -> jax.Array:
        first_B, second_B = apply_critic(critic, batch.observations, batch.actions)
        return jnp.square(first_B - target_B).mean() + jnp.square(second_B - target_B).mean()

    gradient = jax.grad(loss)(state.critic)
    adam = optax.adam(config.learning_rate)
    change, optimizer = adam.update(gradient, state.critic_optimizer)
    critic = optax.apply_updates(state.critic, change)
    target = optax.incremental_update(critic, state.critic_target, config.target_rate)
    return state._replace(critic=critic, critic_target=target, critic_optimizer=optimizer)


def update_actor(state: ActorCritic, batch: Batch, config: LearnerConfig) -> ActorCritic:
    """Move the policy up the first critic's value by one step of Adam."""

    def loss(actor: Actor) -> jax.Array:
        actions_BA = noisy_actions(actor, batch.observations, batch.actor_noise)
        (value_B,) = apply_critic(state.critic, batch.observations, actions_BA, heads=1)
        return -value_B.mean()

    gradient = jax.grad(loss)(state.actor)
    adam = optax.adam(config.learning_rate)
    change, optimizer = adam.update(gradient, state.actor_optimizer)
    return state._replace(actor=optax.apply_updates(state.actor, change), actor_optimizer=optimizer)


def update_actor_critic(state: ActorCritic, batch: Batch, config: LearnerConfig) -> ActorCritic:
    """Update the critics, and every `actor_every_updates`-th time the policy."""
    state = update_critic(state, batch, config)
    state = jax.lax.cond(
        state.updates % config.actor_every_updates == 0,
        lambda state: update_actor(state, batch, config),
        lambda state: state,
        state,
    )
    return state._replace(updates=state.updates + 1)
