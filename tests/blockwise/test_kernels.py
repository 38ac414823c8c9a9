"""Kernel engines give the numbers of the oracle, and are chosen where they can."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise import kernels
from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.blockwise.kernels import choose_engine
from tests.blockwise.oracle import (
    TOLERANCE,
    oracle,
    perturbed_params,
    relative_error,
    value_and_gradients,
)

# On CPU splash is interpreted by Pallas in float32. For cudnn, which needs its chip, XLA computes
# the attention: what is tested is all that this package does around it, at bfloat16's precision.
DTYPES = {"splash": "float32", "cudnn": "bfloat16"}


@pytest.fixture(autouse=True)
def without_the_chip(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRET", True)
    monkeypatch.setattr(kernels, "CUDNN", "xla")


def config_for(engine: str, **changes) -> CoreConfig:
    shape = {"layers": 2, "width": 64, "feedforward": 72, "heads": 4, "kv_heads": 2}
    options = {"query_block": 32, "key_block": 32, "dtype": DTYPES[engine], "engine": engine}
    return CoreConfig(**(shape | options | changes))


def inputs_of(case: str, L: int) -> dict:
    """Padding at both ends and within, unlike lengths, a sequence with nothing valid."""
    shuffled_L = np.random.default_rng(0).permutation(L)
    positions_BL = jnp.asarray(np.stack([shuffled_L, 2 * shuffled_L[::-1], shuffled_L]), jnp.int32)
    valid_BL = (jnp.arange(L) < jnp.array([L, L - 20, 0])[:, None]).at[0, 3:5].set(False)
    return {
        "plain": {},
        "padding": {"valid_BL": valid_BL},
        "positions": {"positions_BL": positions_BL, "valid_BL": valid_BL},
        "ties": {"positions_BL": positions_BL // 3, "valid_BL": valid_BL},
    }[case]


@functools.cache
def oracle_of(case: str):
    """Both engines have the same parameters and inputs."""
    config = config_for("splash")
    x_BLD = jax.random.normal(jax.random.key(1), (3, 71, config.width))
    return oracle(config, perturbed_params(config), x_BLD, **inputs_of(case, 71))


@pytest.mark.parametrize("case", ["plain", "padding", "positions", "ties"])
@pytest.mark.parametrize("engine", ["splash", "cudnn"])
def test_engines_equal_the_float64_oracle_in_values_and_gradients(engine, case):
    config = config_for(engine)
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (3, 71, config.width))
    inputs = inputs_of(case, 71)
    expected, expected_gradients = oracle_of(case)

    def errors_of(config):
        kept, gradients, everything = value_and_gradients(config, params, x_BLD, **inputs)
        assert np.isfinite(everything).all()
        errors = jax.tree.map(relative_error, gradients, expected_gradients)
        return relative_error(kept, expected), max(jax.tree.leaves(errors))

    allowed = (TOLERANCE, TOLERANCE)
    if DTYPES[engine] == "bfloat16":  # no worse than full attention with the same products
        dense = errors_of(dataclasses.replace(config, scheme="vanilla", engine="portable"))
        allowed = tuple(1.5 * error for error in dense)
    value, gradient = errors_of(config)
    assert value <= allowed[0]
    assert gradient <= allowed[1]


@pytest.mark.parametrize("changes", [{"scheme": "memory_efficient"}, {"recompute_attention": True}])
def test_schemes_with_a_kernel_agree(changes):
    config = config_for("splash")
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, 50, config.width))
    expected, expected_gradients, _ = value_and_gradients(config, params, x_BLD)
    other = dataclasses.replace(config, **changes)
    kept, gradients, _ = value_and_gradients(other, params, x_BLD)
    assert relative_error(kept, expected) <= 1e-6
    errors = jax.tree.map(relative_error, gradients, expected_gradients)
    assert max(jax.tree.leaves(errors)) <= 1e-5


def test_the_engine_follows_the_platform_and_what_its_kernel_can():
    can = {"scheme": "blockwise", "dtype": "bfloat16", "head_width": 64, "dropout": 0.0}
    assert choose_engine("auto", platform="cpu", **can) == "portable"
    assert choose_engine("auto", platform="gpu", **can) == "cudnn"
    assert choose_engine("auto", platform="tpu", **can) == "splash"
    for change in (
        {"scheme": "vanilla"},
        {"dtype": "float32"},
        {"head_width": 256},
        {"head_width": 12},
        {"dropout": 0.1},
    ):
        assert choose_engine("auto", platform="gpu", **(can | change)) == "portable"
        with pytest.raises(ValueError, match=r"engine cudnn: .* take engine portable or auto"):
            choose_engine("cudnn", **(can | change))
