"""Dropout masks as a pure function of (seed, row, column): the same in every scheme and direction.

A mask drawn from a stream depends on the order of drawing, so a backward pass in other blocks
would need it stored (query x key numbers). Hashing the coordinates instead costs no memory.
"""

import jax
import jax.numpy as jnp

GOLDEN_RATIO = 0x9E3779B9  # 2**32 / phi: spreads consecutive integers over all bits


def _mix(bits: jax.Array) -> jax.Array:
    """Scramble uint32 values: every input bit moves every output bit (MurmurHash3 fmix32)."""
    bits = bits ^ (bits >> 16)
    bits = bits * jnp.uint32(0x85EBCA6B)
    bits = bits ^ (bits >> 13)
    bits = bits * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def fold(seed: jax.Array, *coordinates: jax.Array | int) -> jax.Array:
    """Fold integer coordinates into a seed, one after another; shapes broadcast. Gives uint32."""
    key = jnp.asarray(seed, jnp.uint32)
    for coordinate in coordinates:
        spread = jnp.asarray(coordinate).astype(jnp.uint32) * jnp.uint32(GOLDEN_RATIO)
        key = _mix(key ^ (spread + jnp.uint32(GOLDEN_RATIO)))
    return key


def keep_scale(row_keys: jax.Array, columns: jax.Array, *, rate: float) -> jax.Array:
    """Give 0 where an element is dropped and 1 / (1 - rate) where it is kept, float32.

    `row_keys` (uint32, from `fold`) and `columns` (integers) broadcast against each other.
    """
    threshold = jnp.uint32(min(int(rate * 2.0**32), 2**32 - 1))
    kept = fold(row_keys, columns) >= threshold
    return kept.astype(jnp.float32) / (1.0 - rate)
