"""The blockwise scheme: a stack of layers, each in blocks of queries, with its own backward pass.

For each block of queries: attention to all its visible key blocks, then at once the output
projection, the residual, and the feed-forward network (paper, Algorithm 1). Nothing of the size
L x L or L x F exists, forward or backward.

Saved for the backward pass are, per layer, its output, the attention output and one log-sum-exp a
row. It goes through a layer twice: first over query blocks (feed-forward, attention, query
projection), then over key blocks (key-value projection), whose gradients are final only then.

Floor of temporaries in units of b L d 4 bytes, K layers: K - 1 inputs of layers 2..K, K attention
outputs, and k, v, dk, dv of one layer: 2 K + 3. With the attention output recomputed: K + 3.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

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
    attend_backward,
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


class Saved(NamedTuple):
    """What the forward pass keeps for the backward pass, beside its arguments."""

    output_KBLD: jax.Array
    """Output of each layer; the last one is the result."""
    attended_KBLD: jax.Array | None
    """Attention output of each layer, before its projection; None: recomputed."""
    lse_KNGC: jax.Array | None
    """Log-sum-exp of each row of each query block; None: recomputed."""


def fused_stack(
    params: LayerParams,
    x_BLD: jax.Array,
    query_positions_BL: jax.Array,
    key_positions_BL: jax.Array,
    seed: jax.Array,
    plan: Plan,
) -> jax.Array:
    """Apply all layers to x [B, L, D] in blocks; any length (it is padded to whole blocks)."""
    L = x_BLD.shape[1]
    whole = -(-L // plan.query_block) * plan.query_block
    while whole % plan.key_block:
        whole += plan.query_block
    if whole != L:
        more = ((0, 0), (0, whole - L))
        x_BLD = jnp.pad(x_BLD, (*more, (0, 0)))
        query_positions_BL = jnp.pad(query_positions_BL, more, constant_values=BLIND)
        key_positions_BL = jnp.pad(key_positions_BL, more, constant_values=UNSEEN)
    y_BLD: jax.Array = _stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan)
    return y_BLD[:, :L]


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan):
    layers = Layers(params, query_positions_BL, key_positions_BL, seed, plan)

    def layer(number, y_BLD):
        p = layers.params_of(number)
        keys = layers.keys(p, lambda block: layers.rows(y_BLD, block))

        # The keys hold all that later blocks need, so a block's output may take its input's place.
        def block(i, y_BLD):
            x_MD = layers.rows(y_BLD, i)
            attended_MD, _ = layers.attend_block(p, number, i, x_MD, keys)
            return layers.put(y_BLD, i, layers.finish(p, x_MD, attended_MD, number, i))

        return lax.fori_loop(0, layers.blocks, block, y_BLD)

    return lax.fori_loop(0, layers.depth, layer, x_BLD)


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

    def params_of(self, number: jax.Array) -> LayerParams:
        """Take one layer's parameters out of the stack."""
        return jax.tree.map(lambda w: w[number], self.params)

    def rows(self, x_BLD: jax.Array, block: jax.Array) -> jax.Array:
        """Cut one block of positions out of a sequence."""
        size = self.plan.query_block
        cut = lax.dynamic_slice_in_dim(x_BLD, block * size, size, 1)
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

    def keys_values(self, p: LayerParams, x_MD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Project one block to keys and values, as tiles."""
        kv_MJE = project_keys_values(p, x_MD, dtype=self.plan.dtype)
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
        q_MD = project_queries(p, x_MD, head_width=self.head_width, dtype=self.plan.dtype)
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
                first_query=(block * size).astype(jnp.uint32),
                queries=size,
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
            batch_M = jnp.repeat(jnp.arange(self.batch), size)
            token_M = jnp.tile(block * size + jnp.arange(size), self.batch)
            dropout = Dropout(self.plan.dropout, fold(self.seed, number), batch_M, token_M)
        return finish_layer(
            p,
            x_MD,
            attended_MD,
            activation=self.plan.activation,
            dtype=self.plan.dtype,
            dropout=dropout,
        )


def _forward(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan):
    """Apply the stack and keep what the backward pass needs."""
    layers = Layers(params, query_positions_BL, key_positions_BL, seed, plan)
    read = partial(_layer_input, layers, x_BLD)

    def layer(number, saved):
        p = layers.params_of(number)
        keys = layers.keys(p, lambda i: read(saved.output_KBLD, number, i))

        def block(i, saved):
            x_MD = read(saved.output_KBLD, number, i)
            attended_MD, lse_GC = layers.attend_block(p, number, i, x_MD, keys)
            y_MD = layers.finish(p, x_MD, attended_MD, number, i)
            output_KBLD = _write(layers, saved.output_KBLD, number, i, y_MD)
            if saved.attended_KBLD is None or saved.lse_KNGC is None:
                return Saved(output_KBLD, None, None)
            return Saved(
                output_KBLD,
                _write(layers, saved.attended_KBLD, number, i, attended_MD),
                saved.lse_KNGC.at[number, i].set(lse_GC),
            )

        return lax.fori_loop(0, layers.blocks, block, saved)

    sequences_KBLD = jnp.zeros((layers.depth, *x_BLD.shape), x_BLD.dtype)
    rows = plan.heads // plan.kv_heads * plan.query_block
    lse_shape = (layers.depth, layers.blocks, layers.batch * plan.kv_heads, rows)
    start = Saved(sequences_KBLD, sequences_KBLD, jnp.zeros(lse_shape, jnp.float32))
    if plan.recompute_attention:
        start = Saved(sequences_KBLD, None, None)
    saved = lax.fori_loop(0, layers.depth, layer, start)
    arguments = (params, x_BLD, query_positions_BL, key_positions_BL, seed)
    return saved.output_KBLD[-1], (arguments, saved)


def _read(layers: Layers, x_KBLD, number, block) -> jax.Array:
    size = layers.plan.query_block
    start = (number, 0, block * size, 0)
    cut = lax.dynamic_slice(x_KBLD, start, (1, layers.batch, size, layers.width))
    return cut.reshape(layers.batch * size, layers.width)


def _write(layers: Layers, x_KBLD, number, block, x_MD) -> jax.Array:
    size = layers.plan.query_block
    x_KBQD = x_MD.reshape(1, layers.batch, size, layers.width)
    return lax.dynamic_update_slice(x_KBLD, x_KBQD, (number, 0, block * size, 0))


def _layer_input(layers: Layers, x_BLD, output_KBLD, number, block) -> jax.Array:
    """Read a block of a layer's input: x for the first layer, else the output before it."""
    before = _read(layers, output_KBLD, jnp.maximum(number - 1, 0), block)
    return jnp.where(number == 0, layers.rows(x_BLD, block), before)


def _backward(plan, residuals, dy_BLD):
    """Go back through all layers; the gradient of the sequence is updated in place."""
    (params, x_BLD, query_positions_BL, key_positions_BL, seed), saved = residuals
    layers = Layers(params, query_positions_BL, key_positions_BL, seed, plan)

    def layer(step, carry):
        dx_BLD, dparams = carry
        number = layers.depth - 1 - step
        p = layers.params_of(number)
        read = partial(_layer_input, layers, x_BLD, saved.output_KBLD, number)
        dx_BLD, dp = _backward_layer(layers, saved, p, number, read, dx_BLD)
        dparams = jax.tree.map(lambda whole, part: whole.at[number].set(part), dparams, dp)
        return dx_BLD, dparams

    start = (dy_BLD, jax.tree.map(jnp.zeros_like, params))
    dx_BLD, dparams = lax.fori_loop(0, layers.depth, layer, start)
    return dparams, dx_BLD, None, None, None


def _backward_layer(layers: Layers, saved: Saved, p, number, read, dx_BLD):
    plan = layers.plan
    keys = layers.keys(p, read)

    def query_block(i, carry):
        dx_BLD, dp, dk_GSE, dv_GSE = carry
        x_MD = read(i)
        if saved.attended_KBLD is None or saved.lse_KNGC is None:
            attended_MD, lse_GC = layers.attend_block(p, number, i, x_MD, keys)
        else:
            attended_MD = _read(layers, saved.attended_KBLD, number, i)
            lse_GC = saved.lse_KNGC[number, i]
        finish = lambda p, x_MD, attended_MD: layers.finish(p, x_MD, attended_MD, number, i)  # noqa: E731
        _, finish_vjp = jax.vjp(finish, p, x_MD, attended_MD)
        dp_finish, dx_MD, dattended_MD = finish_vjp(layers.rows(dx_BLD, i))
        q_GCE, queries_vjp = jax.vjp(layers.queries, p, x_MD)
        gradients = attend_backward(
            layers.with_positions(q_GCE, number, i),
            keys,
            lse_GC=lse_GC,
            out_GCE=layers.tile(attended_MD, plan.heads),
            dout_GCE=layers.tile(dattended_MD, plan.heads),
            dk_GSE=dk_GSE,
            dv_GSE=dv_GSE,
            block=plan.key_block,
            dropout=plan.dropout,
        )
        dp_queries, dx_queries_MD = queries_vjp(gradients.dq_GCE.astype(q_GCE.dtype))
        dp = jax.tree.map(lambda a, b, c: a + b + c, dp, dp_finish, dp_queries)
        dx_BLD = layers.put(dx_BLD, i, dx_MD + dx_queries_MD)
        return dx_BLD, dp, gradients.dk_GSE, gradients.dv_GSE

    def key_block(i, carry):
        dx_BLD, dp = carry
        size = plan.query_block
        kv, keys_vjp = jax.vjp(layers.keys_values, p, read(i))
        dkv = tuple(
            lax.dynamic_slice_in_dim(whole, i * size, size, 1).astype(part.dtype)
            for whole, part in zip(dkv_GSE, kv, strict=True)
        )
        dp_keys, dx_MD = keys_vjp(dkv)
        dx_BLD = layers.put(dx_BLD, i, layers.rows(dx_BLD, i) + dx_MD)
        return dx_BLD, jax.tree.map(jnp.add, dp, dp_keys)

    zeros_GSE = jnp.zeros(keys.k_GSE.shape, jnp.float32)
    start = (dx_BLD, jax.tree.map(jnp.zeros_like, p), zeros_GSE, zeros_GSE)
    dx_BLD, dp, *dkv_GSE = lax.fori_loop(0, layers.blocks, query_block, start)
    return lax.fori_loop(0, layers.blocks, key_block, (dx_BLD, dp))


_stack.defvjp(_forward, _backward)
