"""The three schemes against a dense float64 oracle, in values, gradients and compiled memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.core import SCHEMES, CoreConfig, apply_stack, init_stack
from tests.blockwise.oracle import (
    TOLERANCE,
    oracle,
    perturbed_params,
    relative_error,
    value_and_gradients,
)

CASES = {
    # length that no block divides, unlike key and query blocks, grouped heads, three sequences
    "grouped": {"B": 3, "L": 71, "heads": 4, "kv_heads": 2, "query_block": 16, "key_block": 24},
    "one_head": {"B": 1, "L": 64, "heads": 1, "kv_heads": None, "query_block": 32, "key_block": 16},
    "dropout": {"B": 2, "L": 45, "heads": 2, "kv_heads": 2, "query_block": 24, "key_block": 16},
}


@pytest.mark.parametrize("case", CASES)
def test_schemes_equal_the_float64_oracle_in_values_and_gradients(case):
    shape = dict(CASES[case])
    B, L = shape.pop("B"), shape.pop("L")
    rate = 0.3 if case == "dropout" else 0.0
    config = CoreConfig(layers=2, width=32, feedforward=72, dropout=rate, **shape)
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (B, L, config.width))
    # Padding at the end (unlike lengths), and at the start: the first rows then see nothing.
    lengths_B = jnp.array([L - 9 * b for b in range(B)])
    valid_BL = (jnp.arange(L) < lengths_B[:, None]).at[0, :3].set(False)
    inputs = {"valid_BL": valid_BL}
    if rate:
        inputs["dropout_seed"] = jnp.uint32(5)
    expected, expected_gradients = oracle(config, params, x_BLD, **inputs)
    variants = [dataclasses.replace(config, scheme=scheme) for scheme in SCHEMES]
    if rate:
        variants.append(dataclasses.replace(variants[-1], recompute_attention=True))
    for ours in variants:
        kept, gradients, everything = value_and_gradients(ours, params, x_BLD, **inputs)
        assert relative_error(kept, expected) <= TOLERANCE, ours
        errors = jax.tree.map(relative_error, gradients, expected_gradients)
        assert max(jax.tree.leaves(errors)) <= TOLERANCE, (ours, errors)
        assert np.isfinite(everything).all(), ours


def test_positions_alone_decide_who_sees_whom():
    config = CoreConfig(layers=1, width=16, feedforward=32, query_block=8, key_block=8)
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, 30, 16))
    order = np.random.default_rng(0).permutation(30)
    plain = apply_stack(params, x_BLD, config=config)
    shuffled = apply_stack(
        params, x_BLD[:, order], config=config, positions_BL=jnp.asarray(order, jnp.int32)[None]
    )
    assert relative_error(shuffled, plain[:, order]) <= TOLERANCE


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_say_that_no_token_sees_the_future_or_padding(scheme):
    config = CoreConfig(
        layers=2, width=16, feedforward=32, scheme=scheme, query_block=8, key_block=8
    )
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, 24, 16))
    valid_BL = jnp.ones((1, 24), bool).at[0, 5].set(False)

    def one_output(x_BLD):
        return apply_stack(params, x_BLD, config=config, valid_BL=valid_BL)[0, 13].sum()

    influence_L = np.abs(jax.grad(one_output)(x_BLD)[0]).sum(axis=1)
    assert (influence_L[14:] == 0).all()
    assert influence_L[5] == 0
    assert (np.delete(influence_L[:14], 5) > 0).all()


def test_rows_that_see_nothing_are_finite_and_give_finite_gradients():
    config = CoreConfig(layers=2, width=16, feedforward=32, query_block=8, key_block=8)
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (2, 20, 16))
    kept, gradients, everything = value_and_gradients(
        config, params, x_BLD, valid_BL=jnp.zeros((2, 20), bool)
    )
    assert np.isfinite(everything).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_bfloat16_products_cost_no_more_accuracy_in_blocks_than_at_once():
    config = CoreConfig(layers=2, width=32, feedforward=64, heads=2, query_block=16, key_block=16)
    params = perturbed_params(config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, 50, 32))
    exact, exact_gradients, _ = value_and_gradients(config, params, x_BLD)
    errors = {}
    for scheme in ("vanilla", "blockwise"):
        low = dataclasses.replace(config, scheme=scheme, dtype="bfloat16")
        rough, gradients, _ = value_and_gradients(low, params, x_BLD)
        errors[scheme] = relative_error(rough, exact)
        errors[scheme, "gradient"] = relative_error(gradients[1], exact_gradients[1])
    assert 1e-5 < errors["blockwise"] < 0.02
    assert errors["blockwise"] < 1.5 * errors["vanilla"]
    assert errors["blockwise", "gradient"] < 1.5 * errors["vanilla", "gradient"]


def compiled_bytes(config: CoreConfig, positions: int) -> int:
    """Temporaries of the gradient of a sum of squares of the stack's output, batch 1."""
    params = jax.eval_shape(lambda: init_stack(jax.random.key(0), config))
    x_BLD = jax.ShapeDtypeStruct((1, positions, config.width), jnp.float32)

    def total(params, x_BLD):
        return jnp.square(apply_stack(params, x_BLD, config=config)).sum()

    compiled = jax.jit(jax.grad(total, (0, 1))).lower(params, x_BLD).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize(
    ("layers", "width", "heads", "recompute"),
    [
        (2, 128, 1, False),
        (3, 128, 1, False),
        (3, 128, 1, True),
        (6, 128, 1, False),
        (3, 128, 4, False),
        (3, 256, 4, False),
    ],
)
def test_memory_grows_with_positions_and_stays_near_the_floor(layers, width, heads, recompute):
    config = CoreConfig(layers=layers, width=width, heads=heads, recompute_attention=recompute)
    sequences = layers + 3 if recompute else 2 * layers + 3  # the floor, fused.py
    floor_per_position = sequences * width * 4  # bytes
    few, many, most = (compiled_bytes(config, n) for n in (1_024, 16_384, 262_144))
    assert many <= 1.4 * floor_per_position * 16_384
    assert (most - few) / (262_144 - 1_024) <= 1.25 * floor_per_position


@pytest.mark.parametrize(
    ("positions", "sequences", "heads", "block"),
    [(8192, 1, 4, 512), (1000, 16, 1, 256), (1000, 16, 4, 128), (250, 64, 1, 64), (20, 1, 1, 24)],
)
def test_blocks_keep_the_scores_of_a_visit_in_cache(positions, sequences, heads, block):
    config = CoreConfig(heads=heads)
    assert config.blocks(positions, sequences) == (block, block)
    assert CoreConfig(query_block=8).blocks(positions, sequences)[0] == 8


def test_full_attention_holds_what_the_other_schemes_never_do():
    for scheme, is_held in (("vanilla", True), ("memory_efficient", False), ("blockwise", False)):
        config = CoreConfig(layers=1, width=32, scheme=scheme)
        assert (compiled_bytes(config, 4_096) > 4_096**2 * 4) == is_held, scheme


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scheme", "flash", "scheme must be one of"),
        ("heads", 3, "heads must divide width"),
        ("kv_heads", 3, "kv_heads must divide heads"),
        ("layers", 0, "layers must be at least 1"),
        ("dropout", 1.0, r"dropout must be in \[0, 1\)"),
    ],
)
def test_shapes_that_cannot_be_built_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        CoreConfig(**{"heads": 4, field: value})


def test_an_input_of_another_width_is_refused():
    config = CoreConfig(width=16)
    with pytest.raises(ValueError, match=r"x must be \[batch, positions, 16\]"):
        apply_stack(init_stack(jax.random.key(0), config), jnp.zeros((1, 4, 8)), config=config)
