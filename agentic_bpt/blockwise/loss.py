"""Losses in blocks of positions: the sum over valid positions, never holding all predictions.

Sums and counts are given apart, so that a mean over parts of a batch is the mean over its valid
positions and not a mean of block means.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

LOSS_BLOCK = 512
"""Positions whose predictions are held at a time."""


def sum_in_blocks(
    loss: Callable[..., jax.Array],
    arrays_BL: tuple[jax.Array, ...],
    valid_BL: jax.Array,
    *,
    block: int = LOSS_BLOCK,
) -> tuple[jax.Array, jax.Array]:
    """Add up a position-wise loss over valid positions; gives (sum, count), float32 scalars.

    Args:
        loss: takes blocks [B, C, ...] of each of `arrays_BL`, gives the loss of each position
            [B, C]. Its intermediate values exist for one block at a time, forward and backward.
        arrays_BL: arrays [B, L, ...].
        valid_BL: bool [B, L], the positions that count.
        block: C, positions in a block; need not divide L.
    """
    L = valid_BL.shape[1]
    block = min(block, L)
    N = -(-L // block)

    def cut(x: jax.Array) -> jax.Array:
        """Put blocks on a leading axis: [N, B, C, ...], padded at the end."""
        padded = jnp.pad(x, ((0, 0), (0, N * block - L)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(x.shape[0], N, block, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def add_block(total, blocks):
        *arrays_BC, valid_BC = blocks
        return total + jnp.where(valid_BC, loss(*arrays_BC), 0.0).sum(), None

    blocks = (*(cut(x) for x in arrays_BL), cut(valid_BL))
    total, _ = lax.scan(add_block, jnp.zeros((), jnp.float32), blocks)
    return total, valid_BL.sum().astype(jnp.float32)


def squared_error(
    hidden_BLD: jax.Array,
    weight_DA: jax.Array,
    targets_BLA: jax.Array,
    valid_BL: jax.Array,
    *,
    block: int = LOSS_BLOCK,
) -> tuple[jax.Array, jax.Array]:
    """Sum the squared error of hidden @ weight, mean over A, over valid positions; and count."""

    def loss(hidden_BCD, targets_BCA):
        return jnp.square(hidden_BCD @ weight_DA - targets_BCA).mean(axis=-1)

    return sum_in_blocks(loss, (hidden_BLD, targets_BLA), valid_BL, block=block)


def cross_entropy(
    hidden_BLD: jax.Array,
    weight_DV: jax.Array,
    targets_BL: jax.Array,
    valid_BL: jax.Array,
    *,
    block: int = LOSS_BLOCK,
) -> tuple[jax.Array, jax.Array]:
    """Sum -log softmax(hidden @ weight)[target] over valid positions, and count them.

    Holds B x C x V logits, never B x L x V. Targets are int32 in [0, V).
    """

    def loss(hidden_BCD, targets_BC):
        logits_BCV = jnp.dot(hidden_BCD, weight_DV, preferred_element_type=jnp.float32)
        chosen_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits_BCV, axis=-1) - chosen_BC

    return sum_in_blocks(loss, (hidden_BLD, targets_BL), valid_BL, block=block)
