"""The pieces of a layer, cut to one block of queries: what the blockwise passes are made of."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from agentic_bpt.blockwise.dropout import fold
from agentic_bpt.blockwise.feedforward import (
    Dropout,
    LayerParams,
    finish_layer,
    project_keys_values,
    project_queries,
)
from agentic_bpt.blockwise.tiles import (
    BLIND,
    UNSEEN,
    Keys,
    Queries,
    attend,
    from_tile,
    make_keys,
    row_keys,
    to_tile,
)


class Plan(NamedTuple):
    """What of the computation is known when it is compiled."""

    heads: int
    kv_heads: int
    activation: str
    dtype: str
    dropout: float
    recompute_attention: bool
    query_block: int
    key_block: int
    axis: str | None = None
    """Mesh axis over whose devices heads and hidden units are split; None: they are whole."""


def whole_blocks(length: int, plan: Plan) -> int:
    """Round a length up to whole blocks of queries and of keys."""
    whole = -(-length // plan.query_block) * plan.query_block
    while whole % plan.key_block:
        whole += plan.query_block
    return whole


def masked_positions(
    positions_BL: jax.Array, valid_BL: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Give the positions of queries and of keys: those not valid see nothing and are not seen."""
    if valid_BL is None:
        return positions_BL, positions_BL
    return jnp.where(valid_BL, positions_BL, BLIND), jnp.where(valid_BL, positions_BL, UNSEEN)


def row_major(x: jax.Array) -> jax.Array:
    """Give x with its last axis along memory, on devices whose compiler would choose otherwise.

    TPU's lays whole sequences out by the products that read their blocks, and holds two copies of
    all that is saved for the backward pass where two products disagree.
    """
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


class Layers:
    """The pieces of a layer, cut to one block of queries; rows are [M, D] with M = B x block."""

    def __init__(self, params, query_positions_BL, key_positions_BL, seed, plan):
        self.params, self.seed, self.plan = params, seed, plan
        self.query_positions_BL, self.key_positions_BL = query_positions_BL, key_positions_BL
        self.batch, self.length = query_positions_BL.shape
        self.depth = params.query_bias.shape[0]
        self.width = params.query_weight.shape[1]
        self.head_width = params.query_bias.shape[1] // plan.heads
        self.blocks = self.length // plan.query_block
        # What dropout masks know the sequences and the groups by; see `first_token` too.
        self.sequences_B = jnp.arange(self.batch)
        self.groups_G: jax.Array | None = None

    def params_of(self, number: jax.Array) -> LayerParams:
        """Take one layer's parameters out of the stack."""
        return jax.tree.map(lambda w: w[number], self.params)

    def rows(self, x_BLD: jax.Array, block: jax.Array) -> jax.Array:
        """Cut one block of positions out of a sequence."""
        size = self.plan.query_block
        cut = row_major(lax.dynamic_slice_in_dim(x_BLD, block * size, size, 1))
        return cut.reshape(self.batch * size, -1)

    def put(self, x_BLD: jax.Array, block: jax.Array, x_MD: jax.Array) -> jax.Array:
        """Write one block of positions into a sequence, in place."""
        x_BQD = x_MD.reshape(self.batch, self.plan.query_block, -1)
        return lax.dynamic_update_slice_in_dim(x_BLD, x_BQD, block * self.plan.query_block, 1)

    def tile(self, x_MD: jax.Array, heads: int) -> jax.Array:
        """Reorder rows into an attention tile [G, C, E]."""
        x_BQHE = x_MD.reshape(self.batch, self.plan.query_block, heads, self.head_width)
        return to_tile(x_BQHE, self.plan.kv_heads)

    def untile(self, x_GCE: jax.Array) -> jax.Array:
        """Reorder an attention tile into rows [M, heads x E]."""
        x_BQHE = from_tile(x_GCE, self.batch, self.plan.query_block)
        return x_BQHE.reshape(self.batch * self.plan.query_block, -1)

    def first_token(self, block: jax.Array) -> jax.Array:
        """Give the number of a query block's first token, for dropout masks."""
        return block * self.plan.query_block

    def own_keys(self, dkeys_GSE: jax.Array) -> jax.Array:
        """Take, of the gradient of all keys that `keys` gave, that of the keys made here."""
        return dkeys_GSE

    def keys_values(self, p: LayerParams, x_MD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Project one block to keys and values, as tiles."""
        kv_MJE = project_keys_values(p, x_MD, dtype=self.plan.dtype, axis=self.plan.axis)
        k_MJE, v_MJE = jnp.split(kv_MJE, 2, axis=1)
        return self.tile(k_MJE, self.plan.kv_heads), self.tile(v_MJE, self.plan.kv_heads)

    def keys(self, p: LayerParams, read) -> Keys:
        """Project a whole sequence to keys and values, block by block."""
        size = self.plan.query_block
        shape = (self.batch * self.plan.kv_heads, self.length, self.head_width)

        def block(i, kv):
            step = self.keys_values(p, read(i))
            return tuple(
                lax.dynamic_update_slice_in_dim(whole, part, i * size, 1)
                for whole, part in zip(kv, step, strict=True)
            )

        zeros = jnp.zeros(shape, self.plan.dtype)
        k_GSE, v_GSE = lax.fori_loop(0, self.blocks, block, (zeros, zeros))
        return make_keys(k_GSE, v_GSE, self.key_positions_BL, self.plan.key_block)

    def queries(self, p: LayerParams, x_MD: jax.Array) -> jax.Array:
        """Project one block to scaled queries, as a tile."""
        q_MD = project_queries(
            p, x_MD, head_width=self.head_width, dtype=self.plan.dtype, axis=self.plan.axis
        )
        return self.tile(q_MD, self.plan.heads)

    def with_positions(self, q_GCE: jax.Array, number: jax.Array, block: jax.Array) -> Queries:
        """Add to a tile of queries their positions and the keys of their dropout masks."""
        size, kv_heads = self.plan.query_block, self.plan.kv_heads
        rows_GC = None
        if self.plan.dropout:
            rows_GC = row_keys(
                fold(self.seed, number),
                batch=self.batch,
                kv_heads=kv_heads,
                shared=self.plan.heads // kv_heads,
                first_query=self.first_token(block).astype(jnp.uint32),
                queries=size,
                groups_G=self.groups_G,
            )
        positions_BQ = lax.dynamic_slice_in_dim(self.query_positions_BL, block * size, size, 1)
        return Queries(q_GCE, positions_BQ, rows_GC)

    def attend_block(self, p, number, block, x_MD, keys) -> tuple[jax.Array, jax.Array]:
        """Attend one block of rows; gives rows [M, D] and the log-sum-exp [G, C]."""
        queries = self.with_positions(self.queries(p, x_MD), number, block)
        out_GCE, lse_GC = attend(
            queries, keys, block=self.plan.key_block, dropout=self.plan.dropout
        )
        return self.untile(out_GCE), lse_GC

    def finish(self, p, x_MD, attended_MD, number, block) -> jax.Array:
        """Do what follows attention for one block of rows."""
        dropout = None
        if self.plan.dropout:
            size = self.plan.query_block
            batch_M = jnp.repeat(self.sequences_B, size)
            token_M = jnp.tile(self.first_token(block) + jnp.arange(size), self.batch)
            dropout = Dropout(self.plan.dropout, fold(self.seed, number), batch_M, token_M)
        return finish_layer(
            p,
            x_MD,
            attended_MD,
            activation=self.plan.activation,
            dtype=self.plan.dtype,
            dropout=dropout,
            axis=self.plan.axis,
        )
