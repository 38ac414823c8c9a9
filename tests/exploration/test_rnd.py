"""RND: what is seen often is no longer new, and the task's reward is never looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.exploration import rnd
from agentic_bpt.exploration.actor_critic import Batch
from agentic_bpt.exploration.learner import update_many
from agentic_bpt.exploration.networks import init_mlp
from agentic_bpt.exploration.rnd import Moments, Rnd, RndConfig, RndState

prediction_errors = jax.jit(rnd.prediction_errors)
update_moments = jax.jit(rnd.update_moments)


def updated(agent: Rnd, state: RndState, calls: int, start, end, reward: float = 0.0) -> RndState:
    """Update on windows that all start and end at the given observations."""
    shape = (agent.config.updates_per_call, *start.shape)
    zeros = np.zeros((*shape[:2], 1))
    pay = np.full(shape[:2], reward)
    parts = (np.broadcast_to(start, shape), zeros, pay, np.broadcast_to(end, shape), zeros, zeros)
    batch = Batch(*(jnp.asarray(part, jnp.float32) for part in parts))
    for _ in range(calls):
        state = update_many(agent, state, batch)
    return state


@pytest.fixture
def agent(small_rnd) -> Rnd:
    return Rnd(small_rnd)


@pytest.fixture
def state(agent) -> RndState:
    return agent.init(np.random.default_rng(0), observation_width=5, action_width=1)


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Give what is seen, on a diagonal, and what is not, on the other: alike axis by axis."""
    generator = np.random.default_rng(0)
    place = np.sign(generator.normal(size=(2, 16, 1))) + generator.normal(0, 0.1, (2, 16, 5))
    return place[0].astype(np.float32), (place[1] * [1, -1, 1, -1, 1]).astype(np.float32)


def test_seen_observations_become_less_new_than_unseen_ones(agent, state, clouds):
    seen, unseen = clouds
    new = updated(agent, state, 40, unseen, seen)
    both = jnp.asarray(np.concatenate([seen, unseen]))

    def ratio(state: RndState) -> float:
        errors_B = prediction_errors(state.predictor, state.fixed, both)
        return float(errors_B[16:].mean() / errors_B[:16].mean())

    assert ratio(new) > 5 * ratio(state)
    jax.tree.map(np.testing.assert_array_equal, new.fixed, state.fixed)


def test_the_tasks_reward_changes_nothing(agent, state, clouds):
    without = updated(agent, state, 1, *clouds)
    jax.tree.map(
        np.testing.assert_array_equal, without, updated(agent, state, 1, *clouds, reward=100.0)
    )
    critics = [each.actor_critic.critic.output[0].weight for each in (without, state)]
    assert (np.asarray(critics[0]) != np.asarray(critics[1])).any()


def test_novelty_is_where_the_window_ends(agent, state, clouds):
    start, end = clouds
    errors = [
        updated(agent, state, 1, *pair).errors.mean
        for pair in ((start, end), (start[::-1] + 1, end), (start, start))
    ]
    assert errors[0] == errors[1] != errors[2]


def test_errors_do_not_change_with_the_units_of_an_observation(clouds):
    predictor, fixed = (init_mlp(np.random.default_rng(seed), (5, 8, 3)) for seed in (1, 2))
    metres = np.concatenate(clouds) * np.array([1, 1, 5, 5, 5], np.float32)
    other_units = metres * np.array([100, 1, 10, 1, 1], np.float32) + 7
    expected_B = prediction_errors(predictor, fixed, metres)
    np.testing.assert_allclose(
        prediction_errors(predictor, fixed, other_units), expected_B, rtol=0.02
    )
    metres[0] = 1e4
    assert prediction_errors(predictor, fixed, metres)[0] < 50 * max(np.asarray(expected_B))


def test_running_moments_are_those_of_all_values():
    values = np.random.default_rng(3).normal(4.0, 2.0, (5, 40)).astype(np.float32)
    moments = Moments(*map(jnp.float32, (0.0, 1.0, 1e-4)))
    for row in values:
        moments = update_moments(moments, jnp.asarray(row))
    np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-4)
    np.testing.assert_allclose(moments.variance, values.var(), rtol=1e-4)


def test_a_representation_without_width_is_refused():
    with pytest.raises(InputError, match="representation_width must be positive, got 0"):
        RndConfig(representation_width=0)
