"""What the core is measured against: the paper's own schemes, and the attention people would pick.

Every peer computes the same layers from the same parameters, so that its numbers can be compared;
`run` functions give the gradient of a sum of squares, forward and backward.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from agentic_bpt.blockwise.core import CoreConfig, whole_layer
from agentic_bpt.blockwise.feedforward import (
    LayerParams,
    finish_layer,
    project_keys_values,
    project_queries,
)

PAPER_BLOCK = 512
"""Positions in a block of the paper's schemes: what our own scheme takes at 4,096 and more."""

MASKED = -1e30


def stack_of(layer: Callable, params: LayerParams, x_BLD: jax.Array) -> jax.Array:
    """Apply rematerialised layers one after another."""
    step = lambda x_BLD, p: (layer(p, x_BLD), None)  # noqa: E731
    return lax.scan(jax.checkpoint(step), x_BLD, params)[0]


def dot_product_attention(params, x_BLD: jax.Array, config: CoreConfig) -> jax.Array:
    """The same layers on jax.nn.dot_product_attention."""
    attention = lambda q, k, v, **_: jax.nn.dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    return stack_of(partial(_layer_on, attention, config), params, x_BLD)


def ring_attention(params, x_BLD: jax.Array, config: CoreConfig) -> jax.Array:
    """The layers on the package `ringattention`, then the feed-forward in blocks, on one device."""
    # ringattention 0.1.2 looks up the platform under a name that current JAX does not have.
    if not hasattr(jax.lib, "xla_bridge"):
        jax.lib.xla_bridge = jax.extend.backend  # type: ignore[attr-defined]
    from ringattention import ringattention_jax  # pyright: ignore[reportMissingImports]

    block = min(PAPER_BLOCK, x_BLD.shape[1])
    options = {
        "causal_block_size": 1,
        "query_chunk_size": block,
        "key_chunk_size": block,
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "dtype": jnp.float32,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "precision": None,
        "prevent_cse": False,
    }
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("ring",))
    cut = jax.sharding.PartitionSpec(None, "ring")
    attention = jax.shard_map(
        lambda q, k, v: ringattention_jax(q, k, v, None, None, None, "ring", True, options),
        mesh=mesh,
        in_specs=cut,
        out_specs=cut,
        check_vma=False,
    )
    return stack_of(partial(_ring_layer, attention, config), params, x_BLD)


def _ring_layer(attention: Callable, config: CoreConfig, p: LayerParams, x_BLD: jax.Array):
    B, L, D = x_BLD.shape
    H, E = config.heads, config.head_width
    x_MD = x_BLD.reshape(B * L, D)
    q = project_queries(p, x_MD, head_width=E, dtype=config.dtype).reshape(B, L, H, E)
    kv = project_keys_values(p, x_MD, dtype=config.dtype).reshape(B, L, 2, H, E)
    attended_BLD = attention(q * E**0.5, kv[:, :, 0], kv[:, :, 1]).reshape(B, L, D)
    finish = partial(finish_layer, activation=config.activation, dtype=config.dtype, dropout=None)

    @jax.checkpoint
    def finish_block(_, block):
        return None, finish(p, *block)

    cut = lambda y: y.reshape(-1, min(PAPER_BLOCK, L), D)  # noqa: E731
    _, y = lax.scan(finish_block, None, (cut(x_BLD), cut(attended_BLD)))
    return y.reshape(B, L, D)


def _layer_on(attention: Callable, config: CoreConfig, p: LayerParams, x_BLD: jax.Array):
    """Compute one whole layer on some attention function."""
    positions_BL = jnp.zeros(x_BLD.shape[:2], jnp.int32)
    return whole_layer(
        p,
        x_BLD,
        attention=attention,
        config=config,
        query_positions_BL=positions_BL,
        key_positions_BS=positions_BL,
        rate=0.0,
        seed=jnp.zeros((), jnp.uint32),
    )


def figure_3(params, x_BLD: jax.Array, config: CoreConfig, *, fused: bool) -> jax.Array:
    """The paper's Figure 3: scans over query and key blocks under checkpoint.

    Not fused, as published: attention of all blocks, then the feed-forward in blocks. Fused, as
    its Algorithm 1 says: the feed-forward of a block follows its attention at once.
    """
    return stack_of(partial(_paper_layer, config, fused), params, x_BLD)


def _paper_layer(config: CoreConfig, fused: bool, p: LayerParams, x_BLD: jax.Array) -> jax.Array:
    B, L, D = x_BLD.shape
    H, E = config.heads, config.head_width
    C = min(PAPER_BLOCK, L)
    N = L // C
    x_MD = x_BLD.reshape(B * L, D)
    q = project_queries(p, x_MD, head_width=E, dtype=config.dtype).reshape(B, N, C, H, E)
    kv = project_keys_values(p, x_MD, dtype=config.dtype).reshape(B, N, C, 2, H, E)
    blocks_N = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731
    keys, values, numbers = blocks_N(kv[:, :, :, 0]), blocks_N(kv[:, :, :, 1]), jnp.arange(N)
    finish = partial(finish_layer, activation=config.activation, dtype=config.dtype, dropout=None)

    @jax.checkpoint
    def finish_block(_, block):
        x_BCD, attended_BCD = block
        y_MD = finish(p, x_BCD.reshape(B * C, D), attended_BCD.reshape(B * C, D))
        return None, y_MD.reshape(B, C, D)

    def query_block(_, block):
        number, q_BCHE, x_BCD = block
        attended_BCD = _paper_attention(q_BCHE, number, keys, values, numbers)
        if fused:
            return finish_block(None, (x_BCD, attended_BCD))
        return None, attended_BCD

    x_NBCD = blocks_N(x_BLD.reshape(B, N, C, D))
    _, out_NBCD = lax.scan(query_block, None, (numbers, blocks_N(q), x_NBCD))
    if not fused:
        _, out_NBCD = lax.scan(finish_block, None, (x_NBCD, out_NBCD))
    return jnp.moveaxis(out_NBCD, 0, 1).reshape(B, L, D)


def _paper_attention(q_BCHE, number, keys, values, numbers):
    """Attend one block of queries to all key blocks, masked, none left out."""
    B, C, H, E = q_BCHE.shape

    @jax.checkpoint
    def key_block(carry, block):
        numerator, denominator, maximum = carry
        key_number, k_BSHE, v_BSHE = block
        score_BHCS = jnp.einsum("bche,bshe->bhcs", q_BCHE, k_BSHE)
        rows, columns = jnp.arange(C)[:, None] + number * C, jnp.arange(C) + key_number * C
        score_BHCS = jnp.where(columns <= rows, score_BHCS, MASKED)
        new_maximum = jnp.maximum(maximum, score_BHCS.max(axis=3))
        weight_BHCS = jnp.exp(score_BHCS - new_maximum[..., None])
        shrink = jnp.exp(maximum - new_maximum)
        numerator = numerator * shrink[..., None]
        numerator += jnp.einsum("bhcs,bshe->bhce", weight_BHCS, v_BSHE)
        return (numerator, denominator * shrink + weight_BHCS.sum(axis=3), new_maximum), None

    zeros = jnp.zeros((B, H, C))
    start = (jnp.zeros((B, H, C, E)), zeros, jnp.full((B, H, C), MASKED))
    (numerator, denominator, _), _ = lax.scan(key_block, start, (numbers, keys, values))
    out_BHCE = numerator / denominator[..., None]
    return out_BHCE.transpose(0, 2, 1, 3).reshape(B, C, H * E)


def torch_gradient(
    params: LayerParams, x_BLD: np.ndarray, config: CoreConfig, *, checkpointed: bool
) -> Callable[[], Any]:
    """The same layers on PyTorch's scaled_dot_product_attention; gives a function to time."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn import functional  # pyright: ignore[reportMissingImports]
    from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportMissingImports]

    weights = [
        LayerParams(*(torch.tensor(np.asarray(w[k]), requires_grad=True) for w in params))
        for k in range(config.layers)
    ]
    x = torch.tensor(x_BLD, requires_grad=True)
    B, L, D = x.shape
    H, E = config.heads, config.head_width

    def layer(x, p):
        normed = functional.layer_norm(x, (D,), p.attention_norm_scale, p.attention_norm_bias, 1e-6)
        q = normed @ p.query_weight + p.query_bias
        kv = normed @ p.key_value_weight + p.key_value_bias
        q, k, v = (part.view(B, L, H, E).transpose(1, 2) for part in (q, *kv.chunk(2, dim=2)))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(B, L, D) @ p.output_weight + p.output_bias
        normed = functional.layer_norm(
            x, (D,), p.feedforward_norm_scale, p.feedforward_norm_bias, 1e-6
        )
        hidden = functional.relu(normed @ p.up_weight + p.up_bias)
        return x + hidden @ p.down_weight + p.down_bias

    leaves = [w for p in weights for w in p] + [x]

    def run():
        y = x
        for p in weights:
            y = checkpoint(layer, y, p, use_reentrant=False) if checkpointed else layer(y, p)
        return [g.numpy() for g in torch.autograd.grad((y * y).sum(), leaves)]

    return run
