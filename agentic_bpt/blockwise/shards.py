"""The pieces of a layer on one device of a mesh, and keys and values gathered from all shards.

A device has two chunks of positions (see `zigzag`), each padded to whole blocks, of some of the
sequences, and some of the heads. Everything here runs inside `jax.shard_map`, on such shares.
Dropout masks are hashes of coordinates (see `dropout`), so they need the numbers that sequences,
heads and tokens have in the whole batch; with those a mask is the one that a single device draws.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.layers import Layers, Plan
from agentic_bpt.blockwise.tiles import Keys, make_keys
from agentic_bpt.blockwise.zigzag import from_shards, to_shards


class ShardPlan(NamedTuple):
    """What of the computation of a shard is known when it is compiled."""

    plan: Plan
    """Of one device: its heads, its blocks."""
    shards: int
    """Parts P of the positions."""
    chunk: int
    """Tokens of a chunk, before it is padded to whole blocks."""
    kv_heads: int
    """Key-value heads J of all devices."""
    ring: bool
    """Whether keys and values are passed round a ring; else they are gathered."""


def pad_chunks(x_BL: jax.Array, whole: int, fill: int = 0) -> jax.Array:
    """Pad each of the two chunks of [B, 2 C, ...] to `whole` positions."""
    B, L, *rest = x_BL.shape
    x_B2C = x_BL.reshape(B, 2, L // 2, *rest)
    pads = ((0, 0), (0, 0), (0, whole - L // 2), *((0, 0),) * len(rest))
    return jnp.pad(x_B2C, pads, constant_values=fill).reshape(B, 2 * whole, *rest)


def cut_chunks(x_BL: jax.Array, chunk: int) -> jax.Array:
    """Undo `pad_chunks`: leave `chunk` positions of each of the two."""
    B, L, *rest = x_BL.shape
    return x_BL.reshape(B, 2, L // 2, *rest)[:, :, :chunk].reshape(B, 2 * chunk, *rest)


class ShardLayers(Layers):
    """The pieces of a layer on one device; `keys` gives those of its own positions."""

    def __init__(self, params, query_positions_BL, key_positions_BL, seed, shard: ShardPlan):
        super().__init__(params, query_positions_BL, key_positions_BL, seed, shard.plan)
        self.shard = shard
        kv_heads = shard.plan.kv_heads
        self.sequences_B = lax.axis_index("data") * self.batch + jnp.arange(self.batch)
        heads_J = lax.axis_index("model") * kv_heads + jnp.arange(kv_heads)
        self.groups_G = (self.sequences_B[:, None] * shard.kv_heads + heads_J).reshape(-1)

    def token_number(self, row: jax.Array) -> jax.Array:
        """Give the number in the whole sequence of the token at a row of this device."""
        whole = self.length // 2
        early = lax.axis_index("sequence")
        chunk = jnp.where(row < whole, early, 2 * self.shard.shards - 1 - early)
        return chunk * self.shard.chunk + row % whole

    def first_token(self, block: jax.Array) -> jax.Array:
        """Give the number of a query block's first token, for dropout masks."""
        return self.token_number(block * self.plan.query_block)

    def keys(self, p, read) -> Keys:
        """Project the positions of this device to keys and values, block by block."""
        keys = super().keys(p, read)
        if not self.plan.dropout:
            return keys
        rows_N = jnp.arange(0, self.length, self.plan.key_block)
        return keys._replace(first_N=self.token_number(rows_N))


class GatherLayers(ShardLayers):
    """The pieces of a layer on one device, with the keys and values of all shards at once.

    Beside a device's share, which falls as 1 / P, it holds k, v and their gradients of one layer
    for whole sequences, which do not.
    """

    def keys(self, p, read) -> Keys:
        """Project the positions of this device, and gather those of all, in natural order."""
        own = super().keys(p, read)
        if self.shard.shards == 1:
            return own
        k_GSE, v_GSE, positions_BS = (self._gather(x, axis=1) for x in own[:3])
        keys = make_keys(k_GSE, v_GSE, positions_BS, self.plan.key_block)
        if own.first_N is None:
            return keys
        return keys._replace(first_N=self._gather(own.first_N, axis=0))

    def _gather(self, x: jax.Array, *, axis: int) -> jax.Array:
        all_of_it = lax.all_gather(x, "sequence", axis=axis, tiled=True)
        return from_shards(all_of_it, self.shard.shards, axis=axis)

    def own_keys(self, dkeys_GSE: jax.Array) -> jax.Array:
        """Add up the shards' gradients of all keys, and take those of this device's."""
        if self.shard.shards == 1:
            return dkeys_GSE
        ordered_GSE = to_shards(dkeys_GSE, self.shard.shards, axis=1)
        return lax.psum_scatter(ordered_GSE, "sequence", scatter_dimension=1, tiled=True)
