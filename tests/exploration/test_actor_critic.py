"""The shared learner: its target, its schedule, and what it refuses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.exploration.actor_critic import (
    ActorCritic,
    Batch,
    LearnerConfig,
    init_actor_critic,
    noisy_actions,
    target_values,
    update_actor_critic,
)
from agentic_bpt.exploration.networks import apply_actor, apply_critic

CONFIG = LearnerConfig(width=8, learning_rate=1e-2, discount=0.5, return_steps=3)

update = jax.jit(update_actor_critic, static_argnames="config")
target = jax.jit(target_values, static_argnames="config")
critics = jax.jit(apply_critic)


@pytest.fixture
def state() -> ActorCritic:
    return init_actor_critic(np.random.default_rng(0), CONFIG, observation_width=3, action_width=2)


@pytest.fixture
def batch() -> Batch:
    generator = np.random.default_rng(2)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(0, 0.3, shape), jnp.float32)

    return Batch(draw(4, 3), draw(4, 2), draw(4), draw(4, 3), draw(4, 2), draw(4, 2))


def test_target_is_rewards_plus_the_lesser_value_after_three_decisions(state, batch):
    mean_BA = np.asarray(jax.jit(apply_actor)(state.actor, batch.next_observations))
    actions_BA = np.clip(mean_BA + np.asarray(batch.target_noise), -1, 1)
    values = np.asarray(critics(state.critic_target, batch.next_observations, actions_BA))
    expected_B = np.asarray(batch.rewards) + 0.125 * values.min(0)
    np.testing.assert_allclose(target(state, batch, CONFIG), expected_B, rtol=1e-5)
    assert (values[0] < values[1]).any()
    assert (values[0] > values[1]).any()


def test_clipping_keeps_the_gradient(state):
    observations_BO, noise_BA = jnp.ones((1, 3)), jnp.full((1, 2), 5.0)
    value_and_gradient = jax.jit(
        jax.value_and_grad(lambda actor: noisy_actions(actor, observations_BO, noise_BA).sum())
    )
    total, gradient = value_and_gradient(state.actor)
    assert total == 2.0
    assert np.abs(gradient.output.bias).min() > 1e-3


def test_the_policy_moves_every_second_update_and_the_critics_every_one(state, batch):
    states = [state]
    for _ in range(4):
        states.append(update(states[-1], batch, CONFIG))
    moved = [
        (
            bool((old.actor.output.weight != new.actor.output.weight).any()),
            bool((old.critic.output[1].weight != new.critic.output[1].weight).any()),
        )
        for old, new in itertools.pairwise(states)
    ]
    assert moved == [(True, True), (False, True), (True, True), (False, True)]
    assert int(states[-1].updates) == 4


def test_the_target_critic_follows_slowly(state, batch):
    new = update(state, batch, CONFIG)
    expected = 0.99 * state.critic.hidden[0].weight + 0.01 * new.critic.hidden[0].weight
    np.testing.assert_allclose(new.critic_target.hidden[0].weight, expected, rtol=0, atol=1e-7)
    assert abs(new.critic.hidden[0].weight - state.critic.hidden[0].weight).max() > 1e-4


def test_the_critics_come_near_their_target(state, batch):
    for _ in range(300):
        state = update(state, batch, CONFIG)
    target_B = target(state, batch, CONFIG)
    for values_B in critics(state.critic, batch.observations, batch.actions):
        np.testing.assert_allclose(values_B, target_B, atol=0.03)
    assert np.ptp(target_B) > 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"noise": -0.1}, "noise must not be negative, got -0.1"),
        ({"discount": 1.5}, r"discount must lie in \(0, 1\], got 1.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        LearnerConfig(**settings)
