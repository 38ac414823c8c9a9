"""A stack of layers on one device of a ring: keys and values visit every shard in turn.

In a layer the keys and values of a shard travel once round the ring; each shard attends its
queries to those that are there, and joins what it finds by the log-sum-exps. Going backward they
travel again, and their gradients with them, which are whole when they are home. All that a device
holds falls as 1 / P. Nothing here waits for a visit that the causal order hides: see `zigzag`.

Everything here runs inside `jax.shard_map`; the rest of a layer is that of `fused`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.fused import (
    Saved,
    backward_keys,
    layer_input,
    nothing_saved,
    read_block,
    write_block,
)
from agentic_bpt.blockwise.shards import ShardLayers
from agentic_bpt.blockwise.tiles import NOTHING_SEEN, attend, attend_backward


class RingLayers(ShardLayers):
    """The pieces of a layer on one device of a ring."""

    def pass_on(self, tree):
        """Hand arrays to the next shard, and take those of the one before."""
        P = self.shard.shards
        if P == 1:
            return tree
        return lax.ppermute(tree, "sequence", [(i, (i + 1) % P) for i in range(P)])

    def all_queries(self, p, read) -> jax.Array:
        """Project all positions of this device to scaled queries, as tiles [N, G, C, E]."""
        return lax.map(lambda i: self.queries(p, read(i)), jnp.arange(self.blocks))

    def nothing_attended(self, depth: int, dtype) -> tuple[jax.Array, jax.Array]:
        """Make room for what attention gives: outputs [depth, B, L, H E] and log-sum-exps."""
        width = self.plan.heads * self.head_width
        rows = self.plan.heads // self.plan.kv_heads * self.plan.query_block
        lse_shape = (depth, self.blocks, self.batch * self.plan.kv_heads, rows)
        attended_KBLD = jnp.zeros((depth, self.batch, self.length, width), dtype)
        return attended_KBLD, jnp.full(lse_shape, NOTHING_SEEN, jnp.float32)


def join(
    out_GCE: jax.Array, lse_GC: jax.Array, more_GCE: jax.Array, more_lse_GC: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Join attention to some keys and attention to others: outputs and log-sum-exps."""
    unseen = -NOTHING_SEEN  # below every log-sum-exp
    lse_GC = jnp.where(lse_GC == NOTHING_SEEN, unseen, lse_GC)
    more_lse_GC = jnp.where(more_lse_GC == NOTHING_SEEN, unseen, more_lse_GC)
    highest_GC = jnp.maximum(lse_GC, more_lse_GC)
    weight_GC, more_GC = jnp.exp(lse_GC - highest_GC), jnp.exp(more_lse_GC - highest_GC)
    total_GC = weight_GC + more_GC
    joined_GCE = out_GCE * (weight_GC / total_GC)[..., None]
    joined_GCE += more_GCE * (more_GC / total_GC)[..., None]
    joined_lse_GC = highest_GC + jnp.log(total_GC)
    return joined_GCE, jnp.where(highest_GC == unseen, NOTHING_SEEN, joined_lse_GC)


def attend_ring(layers: RingLayers, number, p, read, attended_KBLD, lse_KNGC, slot):
    """Attend a layer's queries to the keys of all shards, into one slot of the two arrays."""
    plan = layers.plan
    q_NGCE = layers.all_queries(p, read)

    def visit(_, carry):
        keys, *sums = carry

        def block(i, sums):
            attended_KBLD, lse_KNGC = sums
            queries = layers.with_positions(q_NGCE[i], number, i)
            more = attend(queries, keys, block=plan.key_block, dropout=plan.dropout)
            before_GCE = layers.tile(read_block(layers, attended_KBLD, slot, i), plan.heads)
            out_GCE, lse_GC = join(before_GCE, lse_KNGC[slot, i], *more)
            return (
                write_block(layers, attended_KBLD, slot, i, layers.untile(out_GCE)),
                lse_KNGC.at[slot, i].set(lse_GC),
            )

        return layers.pass_on(keys), *lax.fori_loop(0, layers.blocks, block, tuple(sums))

    start = (layers.keys(p, read), attended_KBLD, lse_KNGC)
    return lax.fori_loop(0, layers.shard.shards, visit, start)[1:]


def apply_ring(layers: RingLayers, x_BLD: jax.Array) -> jax.Array:
    """Apply all layers and keep nothing."""

    def layer(number, y_BLD):
        p = layers.params_of(number)
        room = layers.nothing_attended(1, x_BLD.dtype)
        attended_KBLD, _ = attend_ring(layers, number, p, partial(layers.rows, y_BLD), *room, 0)

        def block(i, y_BLD):
            attended_MD = read_block(layers, attended_KBLD, 0, i)
            return layers.put(
                y_BLD, i, layers.finish(p, layers.rows(y_BLD, i), attended_MD, number, i)
            )

        return lax.fori_loop(0, layers.blocks, block, y_BLD)

    return lax.fori_loop(0, layers.depth, layer, x_BLD)


def save_ring(layers: RingLayers, x_BLD: jax.Array) -> Saved:
    """Apply all layers and keep what the backward pass needs."""
    recompute = layers.plan.recompute_attention

    def layer(number, saved):
        p = layers.params_of(number)
        read = partial(layer_input, layers, x_BLD, saved.output_KBLD, number)
        slot, room = number, (saved.attended_KBLD, saved.lse_KNGC)
        if recompute:
            slot, room = 0, layers.nothing_attended(1, x_BLD.dtype)
        attended_KBLD, lse_KNGC = attend_ring(layers, number, p, read, *room, slot)

        def block(i, output_KBLD):
            x_MD = layer_input(layers, x_BLD, output_KBLD, number, i)
            attended_MD = read_block(layers, attended_KBLD, slot, i)
            y_MD = layers.finish(p, x_MD, attended_MD, number, i)
            return write_block(layers, output_KBLD, number, i, y_MD)

        output_KBLD = lax.fori_loop(0, layers.blocks, block, saved.output_KBLD)
        return Saved(output_KBLD, *((None, None) if recompute else (attended_KBLD, lse_KNGC)))

    start = nothing_saved(layers, x_BLD)
    if not recompute:
        start = Saved(start.output_KBLD, *layers.nothing_attended(layers.depth, x_BLD.dtype))
    return lax.fori_loop(0, layers.depth, layer, start)


def backward_ring_layer(layers: RingLayers, saved: Saved, p, number, read, dx_BLD):
    """Go back through one layer: its end, then once round the ring, then its projections."""
    slot, attended_KBLD, lse_KNGC = number, saved.attended_KBLD, saved.lse_KNGC
    if attended_KBLD is None or lse_KNGC is None:
        room = layers.nothing_attended(1, dx_BLD.dtype)
        slot, (attended_KBLD, lse_KNGC) = 0, attend_ring(layers, number, p, read, *room, 0)
    attended = partial(read_block, layers, attended_KBLD, slot)
    dx_BLD, dp, dout_NGCE = _backward_finish(layers, p, number, read, attended, dx_BLD)
    found = (attended, lse_KNGC, slot, dout_NGCE)
    dq_NGCE, dkv_GSE = _backward_attention(layers, p, number, read, *found)

    def block(i, carry):
        dx_BLD, dp = carry
        q_GCE, queries_vjp = jax.vjp(layers.queries, p, read(i))
        dp_queries, dx_MD = queries_vjp(dq_NGCE[i].astype(q_GCE.dtype))
        dx_BLD = layers.put(dx_BLD, i, layers.rows(dx_BLD, i) + dx_MD)
        return dx_BLD, jax.tree.map(jnp.add, dp, dp_queries)

    carry = lax.fori_loop(0, layers.blocks, block, (dx_BLD, dp))
    return backward_keys(layers, p, read, dkv_GSE, carry)


def _backward_finish(layers: RingLayers, p, number, read, attended, dx_BLD):
    """Go back through what follows attention; gives its gradient as tiles [N, G, C, E]."""

    def block(i, carry):
        dx_BLD, dp, dout_NGCE = carry
        finish = lambda p, x, attended: layers.finish(p, x, attended, number, i)  # noqa: E731
        _, finish_vjp = jax.vjp(finish, p, read(i), attended(i))
        dp_finish, dx_MD, dattended_MD = finish_vjp(layers.rows(dx_BLD, i))
        dout_NGCE = dout_NGCE.at[i].set(layers.tile(dattended_MD, layers.plan.heads))
        return layers.put(dx_BLD, i, dx_MD), jax.tree.map(jnp.add, dp, dp_finish), dout_NGCE

    zeros_NGCE = jnp.zeros(_tiles_shape(layers), jnp.float32)
    start = (dx_BLD, jax.tree.map(jnp.zeros_like, p), zeros_NGCE)
    return lax.fori_loop(0, layers.blocks, block, start)


def _backward_attention(layers: RingLayers, p, number, read, attended, lse_KNGC, slot, dout_NGCE):
    """Go back through attention; the gradients of keys and values travel with them."""
    plan = layers.plan
    q_NGCE = layers.all_queries(p, read)

    def visit(_, carry):
        keys, dk_GSE, dv_GSE, dq_NGCE = carry

        def block(i, sums):
            dk_GSE, dv_GSE, dq_NGCE = sums
            gradients = attend_backward(
                layers.with_positions(q_NGCE[i], number, i),
                keys,
                lse_GC=lse_KNGC[slot, i],
                out_GCE=layers.tile(attended(i), plan.heads),
                dout_GCE=dout_NGCE[i],
                dk_GSE=dk_GSE,
                dv_GSE=dv_GSE,
                block=plan.key_block,
                dropout=plan.dropout,
            )
            return gradients.dk_GSE, gradients.dv_GSE, dq_NGCE.at[i].add(gradients.dq_GCE)

        dk_GSE, dv_GSE, dq_NGCE = lax.fori_loop(0, layers.blocks, block, (dk_GSE, dv_GSE, dq_NGCE))
        return *layers.pass_on((keys, dk_GSE, dv_GSE)), dq_NGCE

    keys = layers.keys(p, read)
    zeros_GSE = jnp.zeros(keys.k_GSE.shape, jnp.float32)
    start = (keys, zeros_GSE, zeros_GSE, jnp.zeros(_tiles_shape(layers), jnp.float32))
    _, dk_GSE, dv_GSE, dq_NGCE = lax.fori_loop(0, layers.shard.shards, visit, start)
    return dq_NGCE, (dk_GSE, dv_GSE)


def _tiles_shape(layers: RingLayers) -> tuple[int, int, int, int]:
    plan = layers.plan
    rows = plan.heads // plan.kv_heads * plan.query_block
    return layers.blocks, layers.batch * plan.kv_heads, rows, layers.head_width
