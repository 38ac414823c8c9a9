"""The NumPy policy against its oracle, and layer normalisation."""

import jax
import numpy as np

from agentic_bpt.exploration.networks import (
    act_numpy,
    apply_actor,
    apply_critic,
    apply_mlp,
    init_actor,
    init_critic,
    init_linear,
    init_mlp,
)


def test_acting_in_numpy_equals_the_compiled_policy():
    actor = init_actor(np.random.default_rng(0), observation_width=5, action_width=3, hidden=16)
    shaken = jax.tree.map(
        lambda leaf: leaf + np.linspace(-0.2, 0.2, leaf.size, dtype=np.float32).reshape(leaf.shape),
        jax.device_get(actor),
    )
    observations_BO = np.random.default_rng(1).normal(0, 3, (7, 5)).astype(np.float32)
    oracle_BA = jax.jit(apply_actor)(shaken, observations_BO)
    fast_BA = [act_numpy(shaken, observation) for observation in observations_BO]
    np.testing.assert_allclose(fast_BA, oracle_BA, rtol=1e-5, atol=1e-6)
    assert np.ptp(oracle_BA, axis=0).min() > 0.05


def test_weights_start_orthogonal_and_biases_zero():
    layer = init_linear(np.random.default_rng(3), 6, 9)
    weight = np.asarray(layer.weight)
    np.testing.assert_allclose(weight @ weight.T, np.eye(6), atol=1e-5)
    assert not np.asarray(layer.bias).any()


def test_the_two_critics_differ_and_one_head_is_the_first():
    critic = init_critic(np.random.default_rng(4), observation_width=2, action_width=1, hidden=8)
    observations_BO, actions_BA = np.ones((3, 2)), np.array([[-1.0], [0.0], [1.0]])
    apply = jax.jit(apply_critic, static_argnames="heads")
    first_B, second_B = np.asarray(apply(critic, observations_BO, actions_BA))
    (only_B,) = apply(critic, observations_BO, actions_BA, heads=1)
    assert abs(first_B - second_B).min() > 1e-3
    np.testing.assert_allclose(only_B, first_B, rtol=1e-6)


def test_a_perceptron_has_no_activation_after_its_last_layer():
    layers = init_mlp(np.random.default_rng(5), (2, 4, 3))
    x_BI = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
    hidden_BH = np.maximum(x_BI @ np.asarray(layers[0].weight), 0)
    expected = hidden_BH @ np.asarray(layers[1].weight)
    np.testing.assert_allclose(jax.jit(apply_mlp)(layers, x_BI), expected, rtol=1e-5)
    assert expected.min() < 0


def test_critics_with_own_trunks_share_nothing():
    shared, own = (
        init_critic(
            np.random.default_rng(6), observation_width=2, action_width=1, hidden=8, own_trunks=own
        )
        for own in (False, True)
    )
    inputs = np.ones((3, 2)), np.array([[-1.0], [0.0], [1.0]])

    def reaches(critic, head: int) -> list[bool]:
        """Say of each head whether it moves when the parameters behind `head` do."""
        moved = critic._replace(
            trunk=tuple(
                jax.tree.map(lambda x: x + 1.0, trunk) if place == head else trunk
                for place, trunk in enumerate(critic.trunk)
            )
        )
        pairs = zip(
            jax.jit(apply_critic)(critic, *inputs), apply_critic(moved, *inputs), strict=True
        )
        return [bool(np.abs(before - after).max() > 1e-4) for before, after in pairs]

    assert reaches(own, 0) == [True, False]
    assert reaches(own, 1) == [False, True]
    assert not isinstance(own.trunk, type(shared.trunk))
