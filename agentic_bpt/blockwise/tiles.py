"""Attention of one block of queries, forward and backward: one tile of scores at a time.

Queries and keys are tiles: G = B x J groups (batch x key-value heads), C rows (the R heads that
share a key-value head, times the queries of the block), S keys, E the head's width.

Who sees whom is decided by positions alone: a query sees a key whose position is not larger than
its own. A padded key has the position `UNSEEN` and a padded query `BLIND`, so padding needs no
second mask, and whole blocks that nobody sees are not visited.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from agentic_bpt.blockwise.dropout import fold, keep_scale

UNSEEN = int(np.iinfo(np.int32).max)
"""Position of a key that no query sees (padding)."""
BLIND = int(np.iinfo(np.int32).min)
"""Position of a query that sees no key (padding)."""

MASKED_SCORE = -1e30
LOWEST_MAXIMUM = -1e20
"""The running maximum starts here, above every masked score: exp(masked - maximum) is 0."""
NOTHING_SEEN = 1e30
"""Log-sum-exp of a row without a visible key: exp(score - this) is 0, forward and backward."""


class Keys(NamedTuple):
    """Keys and values as tiles, and what a loop over their blocks must know of their positions."""

    k_GSE: jax.Array
    """Or [K, G, S, E], a cache of all layers, with `layer` saying which; bfloat16 as its bits."""
    v_GSE: jax.Array
    positions_BS: jax.Array
    """int32; `UNSEEN` where no query may look."""
    lowest_BN: jax.Array
    """Smallest position in each key block: a query block below it skips the block."""
    highest_BN: jax.Array
    """Largest position in each key block: a query block not below it needs no mask there."""
    layer: jax.Array | None = None
    first_N: jax.Array | None = None
    """int32 number of the first key of each block in dropout masks; None: as they lie here."""

    def columns(self, number: jax.Array, size: int) -> jax.Array:
        """Give the numbers of a block's keys in dropout masks."""
        first = number * size if self.first_N is None else self.first_N[number]
        return first + jnp.arange(size)

    def block(self, number: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cut one block out of keys, values and positions."""
        positions_BS = cut_block(self.positions_BS, number, size)
        if self.layer is None:
            return (
                cut_block(self.k_GSE, number, size),
                cut_block(self.v_GSE, number, size),
                positions_BS,
            )
        _, G, _, E = self.k_GSE.shape
        start, shape = (self.layer, 0, number * size, 0), (1, G, size, E)
        k_GSE, v_GSE = (
            from_bits(lax.dynamic_slice(x, start, shape)[0]) for x in (self.k_GSE, self.v_GSE)
        )
        return k_GSE, v_GSE, positions_BS


class Queries(NamedTuple):
    """One block of queries, already multiplied by 1 / sqrt(E)."""

    q_GCE: jax.Array
    positions_BQ: jax.Array
    """int32; `BLIND` for a query that sees nothing. C = R x Q."""
    row_keys_GC: jax.Array | None
    """uint32 keys of the dropout mask, one a row; None without dropout."""


def dot(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Contract two tiles with float32 accumulation; a group axis `g` of size 1 is left out.

    XLA on CPU runs a batched product of one group slower than the plain matrix product.
    """
    operands, result = spec.split("->")
    left, right = operands.split(",")
    if left[0] == right[0] == result[0] == "g" and a.shape[0] == 1:
        product = jnp.einsum(
            f"{left[1:]},{right[1:]}->{result[1:]}", a[0], b[0], preferred_element_type=jnp.float32
        )
        return product[None]
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def to_bits(x: jax.Array) -> jax.Array:
    """Give bfloat16 numbers as uint16, others as they are.

    XLA on CPU widens a bfloat16 array that a loop carries as a whole, at every turn.
    """
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: jax.Array) -> jax.Array:
    """Undo `to_bits`."""
    return lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def to_tile(x_BQHE: jax.Array, kv_heads: int) -> jax.Array:
    """Reorder [B, Q, H, E] into [G, C, E]: heads that share a key-value head stand in one tile."""
    B, Q, H, E = x_BQHE.shape
    x_BQJRE = x_BQHE.reshape(B, Q, kv_heads, H // kv_heads, E)
    return x_BQJRE.transpose(0, 2, 3, 1, 4).reshape(B * kv_heads, H // kv_heads * Q, E)


def from_tile(x_GCE: jax.Array, batch: int, queries: int) -> jax.Array:
    """Undo `to_tile`: [G, C, E] into [B, Q, H, E]."""
    G, C, E = x_GCE.shape
    J, R = G // batch, C // queries
    x_BJRQE = x_GCE.reshape(batch, J, R, queries, E)
    return x_BJRQE.transpose(0, 3, 1, 2, 4).reshape(batch, queries, J * R, E)


def make_keys(k_GSE: jax.Array, v_GSE: jax.Array, positions_BS: jax.Array, block: int) -> Keys:
    """Collect the bounds of each key block; S must be a multiple of `block`."""
    positions_BNS = positions_BS.reshape(positions_BS.shape[0], -1, block)
    seen = positions_BNS != UNSEEN
    lowest_BN = jnp.where(seen, positions_BNS, UNSEEN).min(axis=2)
    return Keys(k_GSE, v_GSE, positions_BS, lowest_BN, positions_BNS.max(axis=2))


def row_keys(
    seed: jax.Array,
    *,
    batch: int,
    kv_heads: int,
    shared: int,
    first_query: jax.Array,
    queries: int,
    groups_G: jax.Array | None = None,
) -> jax.Array:
    """Give the dropout key of each row of a tile, [G, C]: a function of (b, head, query).

    `groups_G` numbers the groups where they are some of a larger batch's.
    """
    if groups_G is None:
        groups_G = jnp.arange(batch * kv_heads, dtype=jnp.uint32)
    groups = groups_G[:, None, None]
    heads = jnp.arange(shared, dtype=jnp.uint32)[None, :, None]
    numbers = first_query + jnp.arange(queries, dtype=jnp.uint32)[None, None, :]
    return fold(seed, groups, heads, numbers).reshape(batch * kv_heads, shared * queries)


def visible(queries: Queries, positions_BS: jax.Array, *, transposed: bool) -> jax.Array:
    """Say which keys each row sees: bool [G, C, S], or [G, S, C] when transposed."""
    G, C, _ = queries.q_GCE.shape
    B, Q = queries.positions_BQ.shape
    S = positions_BS.shape[1]
    if transposed:
        seen = positions_BS[:, :, None] <= queries.positions_BQ[:, None, :]
        seen = jnp.broadcast_to(seen[:, None, :, None, :], (B, G // B, S, C // Q, Q))
        return seen.reshape(G, S, C)
    seen = positions_BS[:, None, :] <= queries.positions_BQ[:, :, None]
    seen = jnp.broadcast_to(seen[:, None, None, :, :], (B, G // B, C // Q, Q, S))
    return seen.reshape(G, C, S)


def _visited(queries: Queries, keys: Keys) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Give the range [first, last) of key blocks to visit and, for each block, if it needs a mask.

    A block between the two that nobody sees is masked as a whole, which is correct and rare.
    """
    highest_query = queries.positions_BQ.max(axis=1, keepdims=True)
    lowest_query = queries.positions_BQ.min(axis=1, keepdims=True)
    touched_N = ((keys.lowest_BN <= highest_query) & (highest_query != BLIND)).any(axis=0)
    masked_N = ~(keys.highest_BN <= lowest_query).all(axis=0)
    N = touched_N.shape[0]
    first = jnp.argmax(touched_N)
    last = jnp.where(touched_N.any(), N - jnp.argmax(touched_N[::-1]), first)
    return first.astype(jnp.int32), last.astype(jnp.int32), masked_N


def _masked(
    score: jax.Array,
    needed: jax.Array,
    queries: Queries,
    positions_BS: jax.Array,
    *,
    transposed: bool,
) -> jax.Array:
    """Hide what a row may not see; a tile that is seen as a whole is left alone."""
    hide = lambda score: jnp.where(  # noqa: E731
        visible(queries, positions_BS, transposed=transposed), score, MASKED_SCORE
    )
    return lax.cond(needed, hide, lambda score: score, score)


def cut_block(x: jax.Array, number: jax.Array, size: int, axis: int = 1) -> jax.Array:
    """Cut block `number` of `size` elements out of an axis."""
    return lax.dynamic_slice_in_dim(x, number * size, size, axis)


def attend(
    queries: Queries, keys: Keys, *, block: int, dropout: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """Attend one block of queries to all its visible keys (paper, section 3, equation 3).

    Holds one score tile [G, C, block] at a time. Gives the output float32 [G, C, E] (zero for a
    row that sees nothing) and the log-sum-exp float32 [G, C].
    """
    q_GCE = queries.q_GCE
    first, last, masked_N = _visited(queries, keys)

    def visit(number, carry):
        maximum_GC, total_GC, sum_GCE = carry
        k_GSE, v_GSE, positions_BS = keys.block(number, block)
        score_GCS = dot("gce,gse->gcs", q_GCE, k_GSE)
        score_GCS = _masked(score_GCS, masked_N[number], queries, positions_BS, transposed=False)
        new_maximum_GC = jnp.maximum(maximum_GC, score_GCS.max(axis=2))
        weight_GCS = jnp.exp(score_GCS - new_maximum_GC[..., None])
        shrink_GC = jnp.exp(maximum_GC - new_maximum_GC)
        total_GC = total_GC * shrink_GC + weight_GCS.sum(axis=2)
        if queries.row_keys_GC is not None:
            columns = keys.columns(number, block)
            weight_GCS *= keep_scale(queries.row_keys_GC[..., None], columns, rate=dropout)
        step_GCE = dot("gcs,gse->gce", weight_GCS.astype(v_GSE.dtype), v_GSE)
        return new_maximum_GC, total_GC, sum_GCE * shrink_GC[..., None] + step_GCE

    G, C, E = q_GCE.shape
    start = (
        jnp.full((G, C), LOWEST_MAXIMUM, jnp.float32),
        jnp.zeros((G, C), jnp.float32),
        jnp.zeros((G, C, E), jnp.float32),
    )
    maximum_GC, total_GC, sum_GCE = lax.fori_loop(first, last, visit, start)
    seen_GC = total_GC > 0
    total_GC = jnp.where(seen_GC, total_GC, 1.0)
    lse_GC = jnp.where(seen_GC, maximum_GC + jnp.log(total_GC), NOTHING_SEEN)
    return sum_GCE / total_GC[..., None], lse_GC


class AttendGradients(NamedTuple):
    """Gradients of `attend`: of the scaled queries, and the running sums of keys and values."""

    dq_GCE: jax.Array
    dk_GSE: jax.Array
    dv_GSE: jax.Array


def attend_backward(
    queries: Queries,
    keys: Keys,
    *,
    lse_GC: jax.Array,
    out_GCE: jax.Array,
    dout_GCE: jax.Array,
    dk_GSE: jax.Array,
    dv_GSE: jax.Array,
    block: int,
    dropout: float = 0.0,
) -> AttendGradients:
    """Go back through `attend`, recomputing one score tile at a time.

    The tiles are transposed, [G, S, C]: on CPU a product whose left side is transposed runs at
    half speed, and both sums over queries (dk, dv) would have one. `dk_GSE` and `dv_GSE` are added
    to in place.
    """
    q_GCE = queries.q_GCE
    first, last, masked_N = _visited(queries, keys)
    delta_GC = (dout_GCE * out_GCE).sum(axis=2)
    dout_low_GCE = dout_GCE.astype(q_GCE.dtype)

    def visit(number, carry):
        dq_GEC, dk_GSE, dv_GSE = carry
        k_GSE, v_GSE, positions_BS = keys.block(number, block)
        score_GSC = dot("gse,gce->gsc", k_GSE, q_GCE)
        score_GSC = _masked(score_GSC, masked_N[number], queries, positions_BS, transposed=True)
        weight_GSC = jnp.exp(score_GSC - lse_GC[:, None, :])
        dweight_GSC = dot("gse,gce->gsc", v_GSE, dout_low_GCE)
        kept_GSC = weight_GSC
        if queries.row_keys_GC is not None:
            columns = keys.columns(number, block)
            keep_GSC = keep_scale(queries.row_keys_GC[:, None, :], columns[:, None], rate=dropout)
            kept_GSC, dweight_GSC = weight_GSC * keep_GSC, dweight_GSC * keep_GSC
        dscore_GSC = (weight_GSC * (dweight_GSC - delta_GC[:, None, :])).astype(q_GCE.dtype)
        dv_step_GSE = dot("gsc,gce->gse", kept_GSC.astype(q_GCE.dtype), dout_low_GCE)
        dk_step_GSE = dot("gsc,gce->gse", dscore_GSC, q_GCE)
        dq_GEC += dot("ges,gsc->gec", k_GSE.swapaxes(1, 2), dscore_GSC)
        return dq_GEC, _add(dk_GSE, dk_step_GSE, number), _add(dv_GSE, dv_step_GSE, number)

    G, C, E = q_GCE.shape
    start = (jnp.zeros((G, E, C), jnp.float32), dk_GSE, dv_GSE)
    dq_GEC, dk_GSE, dv_GSE = lax.fori_loop(first, last, visit, start)
    return AttendGradients(dq_GEC.swapaxes(1, 2), dk_GSE, dv_GSE)


def _add(sum_GSE: jax.Array, step_GSE: jax.Array, number: jax.Array) -> jax.Array:
    size = step_GSE.shape[1]
    updated = cut_block(sum_GSE, number, size) + step_GSE
    return lax.dynamic_update_slice_in_dim(sum_GSE, updated, number * size, 1)
