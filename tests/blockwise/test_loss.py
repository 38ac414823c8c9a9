"""Losses in blocks against the whole at once: values, gradients, memory, and what a mean is."""

import jax
import jax.numpy as jnp
import numpy as np

from agentic_bpt.blockwise.loss import cross_entropy, squared_error

B, L, D, V, A = 2, 130, 8, 11, 3


def data():
    generator = np.random.default_rng(0)
    hidden = jnp.asarray(generator.normal(size=(B, L, D)), jnp.float32)
    valid = jnp.asarray(generator.random((B, L)) < 0.3)
    return generator, hidden, valid.at[:, 64:].set(False)  # whole blocks without a valid position


def compare(blocked, whole, hidden, weight, valid):
    for run in (lambda f: f(hidden, weight), lambda f: jax.grad(f, (0, 1))(hidden, weight)):
        ours = jax.tree.leaves(run(lambda h, w: jnp.divide(*blocked(h, w))))
        exact = jax.tree.leaves(run(lambda h, w: (whole(h, w) * valid).sum() / valid.sum()))
        for a, b in zip(ours, exact, strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_cross_entropy_is_the_mean_over_valid_positions():
    generator, hidden, valid = data()
    weight = jnp.asarray(generator.normal(size=(D, V)), jnp.float32)
    targets = jnp.asarray(generator.integers(0, V, (B, L)))

    def whole(h, w):
        return -jnp.take_along_axis(jax.nn.log_softmax(h @ w), targets[..., None], 2)[..., 0]

    compare(
        lambda h, w: cross_entropy(h, w, targets, valid, block=32), whole, hidden, weight, valid
    )


def test_squared_error_is_the_mean_over_valid_positions():
    generator, hidden, valid = data()
    weight = jnp.asarray(generator.normal(size=(D, A)), jnp.float32)
    targets = jnp.asarray(generator.normal(size=(B, L, A)), jnp.float32)

    def whole(h, w):
        return jnp.square(h @ w - targets).mean(axis=-1)

    compare(
        lambda h, w: squared_error(h, w, targets, valid, block=32), whole, hidden, weight, valid
    )


def test_all_logits_are_never_held():
    positions, vocabulary = 4_096, 1_000
    shape = jax.ShapeDtypeStruct
    arguments = (
        shape((1, positions, 16), jnp.float32),
        shape((16, vocabulary), jnp.float32),
        shape((1, positions), jnp.int32),
        shape((1, positions), jnp.bool_),
    )

    def loss(hidden, weight, targets, valid):
        return jnp.divide(*cross_entropy(hidden, weight, targets, valid, block=256))

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < 0.3 * positions * vocabulary * 4
