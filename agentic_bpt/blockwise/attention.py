"""Exact causal attention: the dense oracle, and the same numbers block by block.

A query sees a key whose position is not larger than its own; see `tiles`.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.dropout import keep_scale
from agentic_bpt.blockwise.tiles import (
    BLIND,
    MASKED_SCORE,
    UNSEEN,
    Queries,
    attend,
    attend_backward,
    cut_block,
    from_tile,
    make_keys,
    row_keys,
    to_tile,
    visible,
)


def dense_attention(
    q_BLHE: jax.Array,
    k_BSJE: jax.Array,
    v_BSJE: jax.Array,
    *,
    query_positions_BL: jax.Array,
    key_positions_BS: jax.Array,
    dropout: float = 0.0,
    seed: jax.Array | None = None,
) -> jax.Array:
    """Attend with the whole score matrix at once: the oracle, [B, L, H, E], memory O(L x S).

    Every head h looks at key-value head h // (H / J). Softmax is float32, or float64 for float64
    input. A row that sees no key gives zero.
    """
    B, L, H, E = q_BLHE.shape
    J = k_BSJE.shape[2]
    q_GCE = to_tile(q_BLHE / math.sqrt(E), J)
    k_GSE, v_GSE = to_tile(k_BSJE, J), to_tile(v_BSJE, J)
    seed = jnp.zeros((), jnp.uint32) if seed is None else seed
    rows_GC = row_keys(
        seed, batch=B, kv_heads=J, shared=H // J, first_query=jnp.uint32(0), queries=L
    )
    wide = jnp.promote_types(q_BLHE.dtype, jnp.float32)
    score_GCS = jnp.einsum("gce,gse->gcs", q_GCE, k_GSE, preferred_element_type=wide)
    queries = Queries(q_GCE, query_positions_BL, None)
    seen_GCS = visible(queries, key_positions_BS, transposed=False)
    score_GCS = jnp.where(seen_GCS, score_GCS, MASKED_SCORE)
    weight_GCS = jax.nn.softmax(score_GCS, axis=2) * seen_GCS.any(axis=2, keepdims=True)
    if dropout:
        weight_GCS *= keep_scale(rows_GC[..., None], jnp.arange(k_BSJE.shape[1]), rate=dropout)
    out_GCE = jnp.einsum(
        "gcs,gse->gce", weight_GCS.astype(v_GSE.dtype), v_GSE, preferred_element_type=wide
    )
    return from_tile(out_GCE, B, L)


def blockwise_attention(
    q_BLHE: jax.Array,
    k_BSJE: jax.Array,
    v_BSJE: jax.Array,
    *,
    query_positions_BL: jax.Array,
    key_positions_BS: jax.Array,
    query_block: int = 512,
    key_block: int = 512,
    dropout: float = 0.0,
    seed: jax.Array | None = None,
) -> jax.Array:
    """Attend block by block: the numbers of `dense_attention`, float32 [B, L, H, E].

    Forward and backward hold one tile of query_block x key_block scores a head, never L x S;
    beside its inputs the backward pass keeps the output and one float32 a row. Any length.
    """
    B, L, H, E = q_BLHE.shape
    J = k_BSJE.shape[2]
    seed = jnp.zeros((), jnp.uint32) if seed is None else seed
    queries, keys = -L % query_block, -k_BSJE.shape[1] % key_block
    pad = lambda x, n, value=0: jnp.pad(  # noqa: E731
        x, ((0, 0), (0, n)) + ((0, 0),) * (x.ndim - 2), constant_values=value
    )
    out_BLHE: jax.Array = _attention(
        to_tile(pad(k_BSJE, keys), J),
        to_tile(pad(v_BSJE, keys), J),
        pad(q_BLHE, queries) / math.sqrt(E),
        pad(query_positions_BL, queries, BLIND),
        pad(key_positions_BS, keys, UNSEEN),
        seed,
        (query_block, key_block, dropout),
    )
    return out_BLHE[:, :L]


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attention(k_GSE, v_GSE, q_BLHE, query_positions_BL, key_positions_BS, seed, static):
    return _attention_forward(
        k_GSE, v_GSE, q_BLHE, query_positions_BL, key_positions_BS, seed, static
    )[0]


def _query_block(q_BLHE, positions_BL, seed, number, size, kv_heads, dropout) -> Queries:
    B, _, H, _ = q_BLHE.shape
    rows = None
    if dropout:
        rows = row_keys(
            seed,
            batch=B,
            kv_heads=kv_heads,
            shared=H // kv_heads,
            first_query=(number * size).astype(jnp.uint32),
            queries=size,
        )
    q_GCE = to_tile(cut_block(q_BLHE, number, size), kv_heads)
    return Queries(q_GCE, cut_block(positions_BL, number, size), rows)


def _attention_forward(k_GSE, v_GSE, q_BLHE, query_positions_BL, key_positions_BS, seed, static):
    query_block, key_block, dropout = static
    B, L, H, E = q_BLHE.shape
    J = k_GSE.shape[0] // B
    keys = make_keys(k_GSE, v_GSE, key_positions_BS, key_block)

    def block(carry, number):
        queries = _query_block(q_BLHE, query_positions_BL, seed, number, query_block, J, dropout)
        out_GCE, lse_GC = attend(queries, keys, block=key_block, dropout=dropout)
        return carry, (from_tile(out_GCE, B, query_block), lse_GC)

    _, (out_NBQHE, lse_NGC) = lax.scan(block, None, jnp.arange(L // query_block))
    out_BLHE = out_NBQHE.transpose(1, 0, 2, 3, 4).reshape(B, L, H, E)
    saved = (k_GSE, v_GSE, q_BLHE, query_positions_BL, key_positions_BS, seed, out_BLHE, lse_NGC)
    return out_BLHE, saved


def _attention_backward(static, saved, dout_BLHE):
    query_block, key_block, dropout = static
    k_GSE, v_GSE, q_BLHE, query_positions_BL, key_positions_BS, seed, out_BLHE, lse_NGC = saved
    B, L, H, E = q_BLHE.shape
    J = k_GSE.shape[0] // B
    keys = make_keys(k_GSE, v_GSE, key_positions_BS, key_block)

    def block(carry, number):
        dk_GSE, dv_GSE = carry
        queries = _query_block(q_BLHE, query_positions_BL, seed, number, query_block, J, dropout)
        gradients = attend_backward(
            queries,
            keys,
            lse_GC=lse_NGC[number],
            out_GCE=to_tile(cut_block(out_BLHE, number, query_block), J),
            dout_GCE=to_tile(cut_block(dout_BLHE, number, query_block), J),
            dk_GSE=dk_GSE,
            dv_GSE=dv_GSE,
            block=key_block,
            dropout=dropout,
        )
        dq_BQHE = from_tile(gradients.dq_GCE, B, query_block).astype(q_BLHE.dtype)
        return (gradients.dk_GSE, gradients.dv_GSE), dq_BQHE

    zeros = jnp.zeros(k_GSE.shape, jnp.float32)
    (dk_GSE, dv_GSE), dq_NBQHE = lax.scan(block, (zeros, zeros), jnp.arange(L // query_block))
    dq_BLHE = dq_NBQHE.transpose(1, 0, 2, 3, 4).reshape(B, L, H, E)
    return dk_GSE.astype(k_GSE.dtype), dv_GSE.astype(v_GSE.dtype), dq_BLHE, None, None, None


_attention.defvjp(_attention_forward, _attention_backward)
