"""Blockwise attention on its own against dense attention in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.attention import blockwise_attention, dense_attention
from agentic_bpt.blockwise.tiles import BLIND, UNSEEN


@pytest.mark.parametrize("head_width", [8, 32])
def test_values_and_gradients_equal_dense_attention(head_width):
    B, L, S, H, J = 2, 37, 53, 6, 3
    generator = np.random.default_rng(0)
    q = generator.normal(size=(B, L, H, head_width)).astype(np.float32)
    k, v = (generator.normal(size=(B, S, J, head_width)).astype(np.float32) for _ in range(2))
    weights = generator.normal(size=q.shape)
    query_positions = generator.integers(0, S, (B, L)).astype(np.int32)
    query_positions[1, :4] = BLIND
    key_positions = np.broadcast_to(np.arange(S, dtype=np.int32), (B, S)).copy()
    key_positions[0, 40:] = UNSEEN

    def run(attention, q, k, v, **options):
        def total(q, k, v):
            out = attention(
                q,
                k,
                v,
                query_positions_BL=jnp.asarray(query_positions),
                key_positions_BS=jnp.asarray(key_positions),
                **options,
            )
            return (out * weights).sum(), out

        gradients, out = jax.grad(total, (0, 1, 2), has_aux=True)(q, k, v)
        return [np.asarray(x) for x in (out, *gradients)]

    with jax.enable_x64(True):
        expected = run(dense_attention, *(jnp.asarray(x, jnp.float64) for x in (q, k, v)))
    found = run(blockwise_attention, q, k, v, query_block=16, key_block=8)
    for ours, exact in zip(found, expected, strict=True):
        assert np.abs(ours - exact).max() <= 1e-5 * np.abs(exact).max()
    assert (found[0][1, :4] == 0).all()  # a row that sees nothing
