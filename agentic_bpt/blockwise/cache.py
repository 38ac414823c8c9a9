"""Decoding with the keys and values of past positions: new tokens in, the same numbers out.

A chunk of new tokens costs one pass over the filled part of the cache, not over its capacity.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.blockwise.feedforward import (
    LayerParams,
    finish_layer,
    project_keys_values,
    project_queries,
)
from agentic_bpt.blockwise.tiles import (
    BLIND,
    UNSEEN,
    Queries,
    attend,
    from_bits,
    from_tile,
    make_keys,
    to_bits,
    to_tile,
)

SHORT_BLOCK, LONG_BLOCK, LONG_CAPACITY = 512, 2048, 8192
"""Positions that one visit reads, below and from this capacity on; a capacity is a multiple of it.
Longer visits are faster, and waste more where a cache is short."""


def _key_block(capacity: int) -> int:
    return LONG_BLOCK if capacity >= LONG_CAPACITY else SHORT_BLOCK


class Cache(NamedTuple):
    """Keys and values of the positions so far; K layers, G = batch x key-value heads."""

    keys_KGSE: jax.Array
    """float32, or the bits of bfloat16 numbers as uint16; see `to_bits`."""
    values_KGSE: jax.Array
    positions_BS: jax.Array
    """int32; `UNSEEN` where the cache is not filled, or filled with padding."""
    filled: jax.Array
    """int32 scalar: number of positions written, the same for every sequence of the batch."""


def init_cache(config: CoreConfig, *, batch: int, capacity: int, dtype: str = "float32") -> Cache:
    """Make an empty cache for at least `capacity` positions, keys and values in `dtype`.

    Memory: 2 x layers x batch x capacity x kv_heads x head_width numbers.
    """
    block = _key_block(capacity)
    size = -(-capacity // block) * block
    shape = (config.layers, batch * config.key_value_heads, size, config.head_width)
    return Cache(
        to_bits(jnp.zeros(shape, dtype)),
        to_bits(jnp.zeros(shape, dtype)),
        jnp.full((batch, size), UNSEEN, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def pretend_filled(cache: Cache, filled: int) -> Cache:
    """Give a cache whose first positions count as written, whatever they hold; to measure with."""
    numbers_S = jnp.arange(cache.positions_BS.shape[1], dtype=jnp.int32)
    positions_S = jnp.where(numbers_S < filled, numbers_S, UNSEEN)
    positions_BS = jnp.broadcast_to(positions_S, cache.positions_BS.shape)
    return cache._replace(positions_BS=positions_BS, filled=jnp.int32(filled))


def require_room(cache: Cache, *, filled: int, new: int) -> None:
    """Refuse, before the call, new positions for which the cache has no room.

    Inside a compiled call the write would be clamped and overwrite the newest positions.
    `filled` is the caller's own count, so that nothing is read back from the device.

    Raises:
        ValueError: filled + new is larger than the capacity.
    """
    capacity = cache.positions_BS.shape[1]
    if filled + new > capacity:
        raise ValueError(
            f"the cache holds {capacity} positions and {filled} are filled: no room for {new} more"
        )


def extend_stack(
    params: LayerParams,
    x_BMD: jax.Array,
    cache: Cache,
    *,
    config: CoreConfig,
    valid_BM: jax.Array | None = None,
) -> tuple[jax.Array, Cache]:
    """Apply all layers to M new tokens [B, M, D] behind those in the cache.

    Gives [B, M, D], equal to the last M rows of `apply_stack` over the whole sequence, and the
    cache with the new tokens in it. Tokens that are not valid are seen by none. Call
    `require_room` first.
    """
    B, M, D = x_BMD.shape
    dtype = from_bits(cache.keys_KGSE).dtype
    J, E, H = config.key_value_heads, config.head_width, config.heads
    block = _key_block(cache.positions_BS.shape[1])
    positions_BM = jnp.broadcast_to(cache.filled + jnp.arange(M, dtype=jnp.int32), (B, M))
    valid_BM = jnp.ones((B, M), bool) if valid_BM is None else valid_BM
    query_positions_BM = jnp.where(valid_BM, positions_BM, BLIND)
    new_positions_BM = jnp.where(valid_BM, positions_BM, UNSEEN)
    positions_BS = lax.dynamic_update_slice(cache.positions_BS, new_positions_BM, (0, cache.filled))

    def layer(number, carry):
        x_MD, keys_KGSE, values_KGSE = carry
        p = jax.tree.map(lambda w: w[number], params)
        kv_BMXE = project_keys_values(p, x_MD, dtype=config.dtype).reshape(B, M, 2 * J, E)
        place = (number, 0, cache.filled, 0)
        new_k, new_v = (to_tile(part, J)[None] for part in jnp.split(kv_BMXE, 2, axis=2))
        new_k, new_v = (to_bits(part.astype(dtype)) for part in (new_k, new_v))
        keys_KGSE = lax.dynamic_update_slice(keys_KGSE, new_k, place)
        values_KGSE = lax.dynamic_update_slice(values_KGSE, new_v, place)
        q_MD = project_queries(p, x_MD, head_width=E, dtype=config.dtype)
        q_GCE = to_tile(q_MD.reshape(B, M, H, E), J).astype(dtype)
        keys = make_keys(keys_KGSE, values_KGSE, positions_BS, block)._replace(layer=number)
        out_GCE, _ = attend(Queries(q_GCE, query_positions_BM, None), keys, block=block)
        attended_MD = from_tile(out_GCE, B, M).reshape(B * M, D)
        x_MD = finish_layer(
            p, x_MD, attended_MD, activation=config.activation, dtype=config.dtype, dropout=None
        )
        return x_MD, keys_KGSE, values_KGSE

    start = (x_BMD.reshape(B * M, D), cache.keys_KGSE, cache.values_KGSE)
    x_MD, keys_KGSE, values_KGSE = lax.fori_loop(0, config.layers, layer, start)
    return x_MD.reshape(B, M, D), Cache(keys_KGSE, values_KGSE, positions_BS, cache.filled + M)
