"""The position-wise parts of a layer: norms, projections and the feed-forward network.

Every function takes rows [M, width] (M = batch x positions, in any cut), so a whole sequence, a
block of it and a single new token go through the same code. Matrix products take two-dimensional
operands: on CPU a leading axis of size 1 makes weight gradients 1.6 times slower.

`axis` names the mesh axis over whose devices heads and hidden units are split, see `split`; the
parameters are then one device's share. None: they are whole.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentic_bpt.blockwise.dropout import fold, keep_scale
from agentic_bpt.blockwise.split import enter_split, leave_split

NORM_EPSILON = 1e-6

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu}


class LayerParams(NamedTuple):
    """Parameters of one layer, or of K layers stacked on a leading axis.

    D width, H x E query heads x head width, J x E key-value heads x head width, F feed-forward.
    """

    attention_norm_scale: jax.Array
    """[D]"""
    attention_norm_bias: jax.Array
    """[D]"""
    query_weight: jax.Array
    """[D, H E]"""
    query_bias: jax.Array
    """[H E]"""
    key_value_weight: jax.Array
    """[D, 2 J E]: keys, then values."""
    key_value_bias: jax.Array
    """[2 J E]"""
    output_weight: jax.Array
    """[H E, D]"""
    output_bias: jax.Array
    """[D]"""
    feedforward_norm_scale: jax.Array
    """[D]"""
    feedforward_norm_bias: jax.Array
    """[D]"""
    up_weight: jax.Array
    """[D, F]"""
    up_bias: jax.Array
    """[F]"""
    down_weight: jax.Array
    """[F, D]"""
    down_bias: jax.Array
    """[D]"""


LAST_GROUP = 2**32 - 1
"""Sites are numbered down from here: from 0 on, attention's masks have the groups of a batch."""


class Dropout(NamedTuple):
    """What the position-wise dropout masks of a layer depend on."""

    rate: float
    seed: jax.Array
    """uint32, of this layer."""
    batch_M: jax.Array
    """Sequence of the batch that each row belongs to."""
    token_M: jax.Array
    """Number of each row in its sequence."""

    def __call__(self, x_MD: jax.Array, site: int) -> jax.Array:
        """Drop elements of x; `site` tells the masks of one layer apart."""
        keys_M = fold(self.seed, jnp.uint32(LAST_GROUP - site), self.batch_M, self.token_M)
        return x_MD * keep_scale(keys_M[:, None], jnp.arange(x_MD.shape[1]), rate=self.rate)


def layer_norm(x_MD: jax.Array, scale_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    """Normalise each row to mean 0 and variance 1, then scale and shift."""
    centred = x_MD - x_MD.mean(axis=1, keepdims=True)
    variance = jnp.square(centred).mean(axis=1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + NORM_EPSILON) * scale_D + bias_D


def linear(
    x_MD: jax.Array,
    weight_DF: jax.Array,
    bias_F: jax.Array,
    dtype: str,
    *,
    axis: str | None = None,
) -> jax.Array:
    """Multiply in `dtype` with float32 (or wider) accumulation, then add the bias.

    With an axis, x has one device's columns and the weight the rows that belong to them.
    """
    wide = jnp.promote_types(x_MD.dtype, jnp.float32)
    product = jnp.dot(x_MD.astype(dtype), weight_DF.astype(dtype), preferred_element_type=wide)
    return leave_split(product, axis) + bias_F


def project_queries(
    p: LayerParams, x_MD: jax.Array, *, head_width: int, dtype: str, axis: str | None = None
) -> jax.Array:
    """Norm and project to queries, already divided by sqrt(E): [M, H E] in `dtype`."""
    normed = enter_split(layer_norm(x_MD, p.attention_norm_scale, p.attention_norm_bias), axis)
    return (linear(normed, p.query_weight, p.query_bias, dtype) * head_width**-0.5).astype(dtype)


def project_keys_values(
    p: LayerParams, x_MD: jax.Array, *, dtype: str, axis: str | None = None
) -> jax.Array:
    """Norm and project to keys and values side by side: [M, 2 J E] in `dtype`."""
    normed = enter_split(layer_norm(x_MD, p.attention_norm_scale, p.attention_norm_bias), axis)
    return linear(normed, p.key_value_weight, p.key_value_bias, dtype).astype(dtype)


def feedforward(
    p: LayerParams, x_MD: jax.Array, *, activation: str, dtype: str, axis: str | None = None
) -> jax.Array:
    """Apply FFN(x) = act(x W1 + b1) W2 + b2 (paper, section 2, equation 2); holds [M, F]."""
    x_MD = enter_split(x_MD, axis)
    hidden_MF = ACTIVATIONS[activation](linear(x_MD, p.up_weight, p.up_bias, dtype))
    return linear(hidden_MF, p.down_weight, p.down_bias, dtype, axis=axis)


def finish_layer(
    p: LayerParams,
    x_MD: jax.Array,
    attended_MD: jax.Array,
    *,
    activation: str,
    dtype: str,
    dropout: Dropout | None,
    axis: str | None = None,
) -> jax.Array:
    """Do all that follows attention: output projection, residual, norm, FFN, residual."""
    projected = linear(attended_MD, p.output_weight, p.output_bias, dtype, axis=axis)
    x_MD = x_MD + (dropout(projected, 0) if dropout else projected)
    normed = layer_norm(x_MD, p.feedforward_norm_scale, p.feedforward_norm_bias)
    step = feedforward(p, normed, activation=activation, dtype=dtype, axis=axis)
    return x_MD + (dropout(step, 1) if dropout else step)


def map_blocks(function: Callable, *arrays_MD: jax.Array, rows: int) -> jax.Array:
    """Apply a function of rows block by block, rematerialised; any number of rows.

    Holds what the function needs for one block only, forward and backward.
    """
    M = arrays_MD[0].shape[0]
    cut = lambda x_MD: jnp.pad(x_MD, ((0, -M % rows), (0, 0))).reshape(-1, rows, x_MD.shape[1])  # noqa: E731
    step = jax.checkpoint(lambda block: function(*block))
    out_NMD = jax.lax.map(step, tuple(cut(x_MD) for x_MD in arrays_MD))
    return out_NMD.reshape(-1, out_NMD.shape[2])[:M]
