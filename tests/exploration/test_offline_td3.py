"""Offline TD3: its losses by formula, its randomness, and what it learns with and without BC."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentic_bpt.datasets.sampler import TransitionBatch
from agentic_bpt.exploration.actor_critic import ActorCritic, ActorCriticConfig, Batch
from agentic_bpt.exploration.networks import Trunk, apply_actor, apply_critic
from agentic_bpt.exploration.offline_td3 import (
    act_offline,
    init_offline,
    make_offline_step,
    policy_loss,
)

MEAN_O, STD_O = np.array([1.0, -2.0, 0.5], np.float32), np.array([2.0, 0.5, 1.0], np.float32)
CONFIG = ActorCriticConfig(width=16, actor_every_updates=1, return_steps=1, discount=0.5, noise=0.3)
ADAM = optax.adam(3e-3)
SEED = 3

critics = jax.jit(apply_critic)
policy = jax.jit(apply_actor)


def start() -> ActorCritic:
    return init_offline(CONFIG, ADAM, seed=0, observation_width=3, action_width=2)


def transitions(count: int = 64) -> TransitionBatch:
    generator = np.random.default_rng(1)
    draw = lambda *shape: generator.normal(0, 0.5, shape).astype(np.float32)  # noqa: E731
    return TransitionBatch(draw(count, 3), draw(count, 2), draw(count), draw(count, 3))


@functools.cache  # compiled once for all tests
def step_of(bc_alpha: float | None):
    settings = {"bc_alpha": bc_alpha, "mean_O": MEAN_O, "std_O": STD_O, "seed": SEED}
    return jax.jit(make_offline_step(CONFIG, ADAM, **settings))


def same(one, two) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, two)))


@pytest.mark.parametrize("bc_alpha", [None, 2.5])
def test_policy_loss_is_the_published_formula_with_lambda_a_constant(bc_alpha):
    state, data = start(), transitions()
    noise_BA = np.full_like(data.actions_BA, 0.1)
    batch = Batch(data.observations_BO, data.actions_BA, None, None, None, noise_BA)

    def by_hand(actor, scale):
        pi_BA = apply_actor(actor, data.observations_BO)  # + 0.1 stays within 1 here
        value_B = jnp.minimum(*apply_critic(state.critic, data.observations_BO, pi_BA + 0.1))
        if bc_alpha is None:
            return -value_B.mean(), value_B
        return jnp.square(pi_BA - data.actions_BA).mean() - scale * value_B.mean(), value_B

    @jax.jit
    def both(actor):
        value_B = by_hand(actor, 1.0)[1]
        expected = jax.value_and_grad(by_hand, has_aux=True)(actor, 2.5 / jnp.abs(value_B).mean())
        loss = partial(policy_loss, bc_alpha=bc_alpha)
        return jax.value_and_grad(loss)(actor, state.critic, batch), expected

    (loss, gradient), ((expected, _), expected_gradient) = both(state.actor)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_target_bootstraps_from_normalised_observations_with_clipped_noise():
    state, data = start(), transitions()
    _, metrics = step_of(None)(state, data)
    key = jax.random.fold_in(jax.random.key(SEED), 0)
    noise_BA = np.clip(0.3 * np.asarray(jax.random.normal(key, (2, 64, 2)))[0], -0.3, 0.3)
    before_BO = (data.observations_BO - MEAN_O) / STD_O
    after_BO = (data.next_observations_BO - MEAN_O) / STD_O
    chosen_BA = np.clip(np.asarray(policy(state.actor, after_BO)) + noise_BA, -1, 1)
    target_B = data.rewards_B + 0.5 * np.min(critics(state.critic, after_BO, chosen_BA), axis=0)
    errors = [np.square(v - target_B).mean() for v in critics(state.critic, before_BO, data[1])]
    np.testing.assert_allclose(metrics["loss"], sum(errors), rtol=1e-4)
    np.testing.assert_allclose(metrics["value"], target_B.mean(), rtol=1e-4)


def test_an_update_is_a_function_of_state_and_batch():
    state, data, step = start(), transitions(), step_of(None)
    one, _ = step(state, data)
    assert int(one.step) == 1
    assert same(one, step(state, data)[0])
    later = state._replace(updates=jnp.int32(5))  # other noise, so other networks
    assert not same(one, step(later, data)[0]._replace(updates=one.updates))


def test_a_fresh_target_equals_its_critic_whose_halves_share_nothing():
    state = start()
    assert same(state.critic, state.critic_target)
    assert not isinstance(state.critic.trunk, Trunk)
    assert not same(*state.critic.trunk)
    other = init_offline(CONFIG, ADAM, seed=1, observation_width=3, action_width=2)
    assert not same(other.actor, state.actor)


def learnt(bc_alpha: float | None) -> float:
    """Learn to act in one decision, reward -(a - 0.6)^2, from uniform actions; give the action."""
    generator = np.random.default_rng(0)
    state, step = start(), step_of(bc_alpha)
    for _ in range(1500):
        seen_BO = generator.normal(size=(64, 3)).astype(np.float32)
        actions_BA = generator.uniform(-1, 1, (64, 2)).astype(np.float32)
        rewards_B = -np.square(actions_BA - 0.6).sum(axis=1)
        state, _ = step(state, TransitionBatch(seen_BO, actions_BA, rewards_B, seen_BO))
    return float(act_offline(state.actor, seen_BO, mean_O=MEAN_O, std_O=STD_O).mean())


def test_without_imitation_the_policy_finds_the_best_action_and_with_it_the_data_s():
    assert abs(learnt(None) - 0.6) < 0.15
    assert abs(learnt(0.01)) < 0.1
