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

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.feedforward import LayerParams
from agentic_bpt.blockwise.layers import Layers, Plan, row_major, whole_blocks
from agentic_bpt.blockwise.tiles import BLIND, UNSEEN, attend_backward


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
    whole = whole_blocks(L, plan)
    if whole != L:
        more = ((0, 0), (0, whole - L))
        x_BLD = jnp.pad(x_BLD, (*more, (0, 0)))
        query_positions_BL = jnp.pad(query_positions_BL, more, constant_values=BLIND)
        key_positions_BL = jnp.pad(key_positions_BL, more, constant_values=UNSEEN)
    y_BLD: jax.Array = _stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan)
    return y_BLD[:, :L]


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan):
    return apply_layers(Layers(params, query_positions_BL, key_positions_BL, seed, plan), x_BLD)


def apply_layers(layers: Layers, x_BLD: jax.Array) -> jax.Array:
    """Apply all layers and keep nothing."""

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


def _forward(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan):
    layers = Layers(params, query_positions_BL, key_positions_BL, seed, plan)
    saved = save_layers(layers, x_BLD)
    arguments = (params, x_BLD, query_positions_BL, key_positions_BL, seed)
    return saved.output_KBLD[-1], (arguments, saved)


def save_layers(layers: Layers, x_BLD: jax.Array) -> Saved:
    """Apply all layers and keep what the backward pass needs."""
    read = partial(layer_input, layers, x_BLD)

    def layer(number, saved):
        p = layers.params_of(number)
        keys = layers.keys(p, lambda i: read(saved.output_KBLD, number, i))

        def block(i, saved):
            x_MD = read(saved.output_KBLD, number, i)
            attended_MD, lse_GC = layers.attend_block(p, number, i, x_MD, keys)
            y_MD = layers.finish(p, x_MD, attended_MD, number, i)
            output_KBLD = write_block(layers, saved.output_KBLD, number, i, y_MD)
            if saved.attended_KBLD is None or saved.lse_KNGC is None:
                return Saved(output_KBLD, None, None)
            return Saved(
                output_KBLD,
                write_block(layers, saved.attended_KBLD, number, i, attended_MD),
                saved.lse_KNGC.at[number, i].set(lse_GC),
            )

        return lax.fori_loop(0, layers.blocks, block, saved)

    return lax.fori_loop(0, layers.depth, layer, nothing_saved(layers, x_BLD))


def nothing_saved(layers: Layers, x_BLD: jax.Array) -> Saved:
    """Make room for what the backward pass needs."""
    plan = layers.plan
    output_KBLD = jnp.zeros((layers.depth, *x_BLD.shape), x_BLD.dtype)
    if plan.recompute_attention:
        return Saved(output_KBLD, None, None)
    attended_shape = (*output_KBLD.shape[:3], plan.heads * layers.head_width)
    rows = plan.heads // plan.kv_heads * plan.query_block
    lse_shape = (layers.depth, layers.blocks, layers.batch * plan.kv_heads, rows)
    attended_KBLD = jnp.zeros(attended_shape, x_BLD.dtype)
    return Saved(output_KBLD, attended_KBLD, jnp.zeros(lse_shape, jnp.float32))


def read_block(layers: Layers, x_KBLD: jax.Array, number, block) -> jax.Array:
    """Cut one block of one layer out of the sequences of all layers, as rows."""
    size, width = layers.plan.query_block, x_KBLD.shape[3]
    start = (number, 0, block * size, 0)
    cut = row_major(lax.dynamic_slice(x_KBLD, start, (1, layers.batch, size, width)))
    return cut.reshape(layers.batch * size, width)


def write_block(layers: Layers, x_KBLD: jax.Array, number, block, x_MD: jax.Array) -> jax.Array:
    """Write one block of one layer, in place."""
    size = layers.plan.query_block
    x_KBQD = x_MD.reshape(1, layers.batch, size, x_KBLD.shape[3])
    return lax.dynamic_update_slice(x_KBLD, x_KBQD, (number, 0, block * size, 0))


def layer_input(layers: Layers, x_BLD, output_KBLD, number, block) -> jax.Array:
    """Read a block of a layer's input: x for the first layer, else the output before it."""
    before = read_block(layers, output_KBLD, jnp.maximum(number - 1, 0), block)
    return jnp.where(number == 0, layers.rows(x_BLD, block), before)


def _backward(plan, residuals, dy_BLD):
    (params, x_BLD, query_positions_BL, key_positions_BL, seed), saved = residuals
    layers = Layers(params, query_positions_BL, key_positions_BL, seed, plan)
    dparams, dx_BLD = backward_layers(layers, saved, x_BLD, dy_BLD, fused_backward_layer)
    return dparams, dx_BLD, None, None, None


def backward_layers(
    layers: Layers, saved: Saved, x_BLD: jax.Array, dy_BLD: jax.Array, backward_layer: Callable
) -> tuple[LayerParams, jax.Array]:
    """Go back through all layers; the gradient of the sequence is updated in place."""

    def layer(step, carry):
        dx_BLD, dparams = carry
        number = layers.depth - 1 - step
        p = layers.params_of(number)
        read = partial(layer_input, layers, x_BLD, saved.output_KBLD, number)
        dx_BLD, dp = backward_layer(layers, saved, p, number, read, dx_BLD)
        dparams = jax.tree.map(lambda whole, part: whole.at[number].set(part), dparams, dp)
        return dx_BLD, dparams

    start = (dy_BLD, jax.tree.map(jnp.zeros_like, layers.params))
    dx_BLD, dparams = lax.fori_loop(0, layers.depth, layer, start)
    return dparams, dx_BLD


def fused_backward_layer(layers: Layers, saved: Saved, p, number, read, dx_BLD):
    """Go back through one layer: first over query blocks, then over key blocks."""
    plan = layers.plan
    keys = layers.keys(p, read)

    def query_block(i, carry):
        dx_BLD, dp, dk_GSE, dv_GSE = carry
        x_MD = read(i)
        if saved.attended_KBLD is None or saved.lse_KNGC is None:
            attended_MD, lse_GC = layers.attend_block(p, number, i, x_MD, keys)
        else:
            attended_MD = read_block(layers, saved.attended_KBLD, number, i)
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

    zeros_GSE = jnp.zeros(keys.k_GSE.shape, jnp.float32)
    start = (dx_BLD, jax.tree.map(jnp.zeros_like, p), zeros_GSE, zeros_GSE)
    dx_BLD, dp, dk_GSE, dv_GSE = lax.fori_loop(0, layers.blocks, query_block, start)
    dkv_GSE = (layers.own_keys(dk_GSE), layers.own_keys(dv_GSE))
    return backward_keys(layers, p, read, dkv_GSE, (dx_BLD, dp))


def backward_keys(layers: Layers, p, read, dkv_GSE, start):
    """Go back through the projection to keys and values, adding to (dx, dp)."""

    def key_block(i, carry):
        dx_BLD, dp = carry
        size = layers.plan.query_block
        kv, keys_vjp = jax.vjp(layers.keys_values, p, read(i))
        dkv = tuple(
            lax.dynamic_slice_in_dim(whole, i * size, size, 1).astype(part.dtype)
            for whole, part in zip(dkv_GSE, kv, strict=True)
        )
        dp_keys, dx_MD = keys_vjp(dkv)
        dx_BLD = layers.put(dx_BLD, i, layers.rows(dx_BLD, i) + dx_MD)
        return dx_BLD, jax.tree.map(jnp.add, dp, dp_keys)

    return lax.fori_loop(0, layers.blocks, key_block, start)


_stack.defvjp(_forward, _backward)
