"""The update: its gradient by hand, and independence from the cut into parts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentic_bpt.training.optimizer import OptimizerConfig, make_optimizer
from agentic_bpt.training.step import init_state, make_train_step


def loss(params, batch, dropout_seed):
    x, counted = batch
    error = jnp.square(x @ params["w"] - 1.0)
    return jnp.where(counted, error, 0.0).sum(), counted.sum().astype(jnp.float32)


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 3)).astype(np.float32)
    counted = np.array([1, 1, 1, 1, 1, 0, 0, 0], bool)  # parts of unlike counts
    return x, counted


def test_one_plain_gradient_step_by_hand():
    x, counted = data()
    w = np.array([0.5, -1.0, 2.0], np.float32)
    step = jax.jit(make_train_step(loss, optax.sgd(0.1)))
    state, metrics = step(init_state({"w": jnp.asarray(w)}, optax.sgd(0.1)), (x, counted))
    residual = x[counted] @ w - 1
    gradient = 2 * x[counted].T @ residual / counted.sum()
    assert np.allclose(state.params["w"], w - 0.1 * gradient, rtol=1e-5)
    assert np.isclose(metrics["loss"], (residual**2).mean(), rtol=1e-5)
    assert np.isclose(metrics["gradient_norm"], np.linalg.norm(gradient), rtol=1e-5)
    assert state.step == 1


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulation_is_the_mean_over_terms_not_over_parts(accumulate):
    start = {"w": jnp.array([0.5, -1.0, 2.0])}
    whole = make_train_step(loss, optax.sgd(0.1))(init_state(start, optax.sgd(0.1)), data())
    cut = make_train_step(loss, optax.sgd(0.1), accumulate=accumulate)(
        init_state(start, optax.sgd(0.1)), data()
    )
    assert np.allclose(whole[0].params["w"], cut[0].params["w"], rtol=1e-5)
    assert np.isclose(whole[1]["loss"], cut[1]["loss"], rtol=1e-5)


def test_dropout_seeds_differ_by_step_and_by_part():
    seen = []

    def spying_loss(params, batch, dropout_seed):
        jax.debug.callback(lambda value: seen.append(int(value)), dropout_seed)
        return loss(params, batch, dropout_seed)

    step = make_train_step(spying_loss, optax.sgd(0.1), accumulate=2)
    state = init_state({"w": jnp.zeros(3)}, optax.sgd(0.1))
    for _ in range(2):
        state, _ = step(state, data())
    jax.effects_barrier()
    assert len(set(seen)) == len(seen) == 4


def test_the_schedule_warms_up_and_falls():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, gradient_clip=1e9, weight_decay=0.0)
    optimizer = make_optimizer(config, steps=20)
    params = jnp.zeros(1)
    state, sizes = optimizer.init(params), []
    for _ in range(20):
        update, state = optimizer.update(jnp.ones(1), state, params)
        sizes.append(float(-update[0]))  # Adam on a constant gradient moves by the learning rate
    assert np.allclose(sizes[:4], [0.25, 0.4375, 0.625, 0.8125], atol=1e-3)
    assert np.argmax(sizes) == 4
    assert sizes[-1] < 0.05
