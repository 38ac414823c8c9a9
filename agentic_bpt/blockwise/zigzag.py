"""Which positions each device of the sequence axis owns: two chunks, so that causal work is even.

A sequence is cut into 2 P chunks, and shard i owns chunks i and 2 P - 1 - i. The early chunk sees
few keys and the late one many, so every shard has the same number of visible pairs, and it has
the same number with every other shard, at each step of a ring. Who sees whom is decided by
positions alone, so nothing else must know of the order.

"Shard order" is the order of the chunks by owner: 0, 2 P - 1, 1, 2 P - 2, ...
"""

from typing import Any

import jax.numpy as jnp
import numpy as np


def shard_sequence(x_BL: Any, *, shards: int, fill: Any = 0) -> Any:
    """Pad [B, L, ...] to 2 P equal chunks with `fill`, and put them into shard order.

    NumPy arrays stay NumPy arrays: a batch can be ordered on the host. What is padded must be
    marked as not valid.
    """
    more = -x_BL.shape[1] % (2 * shards)
    if more:
        pads = ((0, 0), (0, more), *((0, 0),) * (x_BL.ndim - 2))
        x_BL = _module_of(x_BL).pad(x_BL, pads, constant_values=fill)
    return to_shards(x_BL, shards, axis=1)


def unshard_sequence(x_BL: Any, *, shards: int, length: int) -> Any:
    """Undo `shard_sequence` of arrays that had `length` positions."""
    return from_shards(x_BL, shards, axis=1)[:, :length]


def to_shards(x: Any, shards: int, *, axis: int) -> Any:
    """Put an axis of 2 P equal chunks from natural into shard order."""
    before, after, size = _around(x, shards, axis)
    cut = x.reshape(*before, 2, shards, size, *after)
    every = (slice(None),) * axis
    early, late = cut[(*every, 0)], cut[(*every, 1, slice(None, None, -1))]
    return _module_of(x).stack([early, late], axis=axis + 1).reshape(x.shape)


def from_shards(x: Any, shards: int, *, axis: int) -> Any:
    """Undo `to_shards`."""
    before, after, size = _around(x, shards, axis)
    cut = x.reshape(*before, shards, 2, size, *after)
    every = (slice(None),) * axis
    early, late = cut[(*every, slice(None), 0)], cut[(*every, slice(None, None, -1), 1)]
    return _module_of(x).concatenate([early, late], axis=axis).reshape(x.shape)


def _around(x: Any, shards: int, axis: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Give the sizes before and after an axis, and of a chunk of it."""
    return x.shape[:axis], x.shape[axis + 1 :], x.shape[axis] // (2 * shards)


def _module_of(x: Any) -> Any:
    return np if isinstance(x, np.ndarray) else jnp
