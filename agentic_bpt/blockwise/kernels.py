"""Engines that compute attention by a vendor's fused kernel, and which engine is taken.

A kernel knows one order, that of its rows. So the tokens of each sequence are sorted once, before
the first layer, the valid ones first and by position, and put back after the last: causal order of
the rows is then the order of the positions, and nobody sees padding, which comes last. Two valid
tokens of one sequence at the same position would see each other; such a batch is computed by the
portable engine instead.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from agentic_bpt.blockwise.tiles import UNSEEN

ENGINES = ("auto", "portable", "cudnn", "splash")

CUDNN = "cudnn"
"""Implementation that `jax.nn.dot_product_attention` is asked for; tests on CPU ask for "xla"."""
INTERPRET = False
"""Tests on CPU let Pallas interpret the splash kernel."""
WHOLE_ROWS = 128
"""Rows are padded to a multiple of this: a tile of the TPU, and more than cuDNN asks for."""
SPLASH_BLOCK = 512
"""Rows in a block of the splash kernel, where there are as many."""
CUDNN_WIDEST_HEAD = 128
"""cuDNN takes wider heads on some chips only."""
CUDNN_CAPABILITY = 8.0
"""Oldest compute capability with fused attention."""


def engine_refusal(
    engine: str, *, scheme: str, dtype: str, head_width: int, dropout: float
) -> str | None:
    """Say why an engine cannot compute this; None if it can."""
    if engine == "portable":
        return None
    if scheme == "vanilla":
        return "the vanilla scheme is portable only"
    if dropout:
        return "its kernel has no dropout of attention weights"
    if engine == "cudnn" and dtype != "bfloat16":
        return f"its kernel multiplies bfloat16 only, got dtype {dtype}"
    if engine == "cudnn" and (head_width % 8 or head_width > CUDNN_WIDEST_HEAD):
        return (
            f"its kernel takes head widths that 8 divides, up to {CUDNN_WIDEST_HEAD}, "
            f"got {head_width}"
        )
    if engine == "splash" and dtype == "float64":
        return "its kernel has no float64"
    return None


def choose_engine(
    engine: str,
    *,
    scheme: str,
    dtype: str,
    head_width: int,
    dropout: float,
    platform: str | None = None,
) -> str:
    """Give the engine to take: the one named, or the fastest that can on the platform.

    Args:
        engine: One of `ENGINES`.
        scheme: What is in blocks.
        dtype: Operands of matrix products.
        head_width: Width E of a head.
        dropout: Rate on attention weights.
        platform: "cpu", "gpu" or "tpu"; None: where JAX computes by default.

    Raises:
        ValueError: the engine that was named cannot compute this.
    """
    shape = {"scheme": scheme, "dtype": dtype, "head_width": head_width, "dropout": dropout}
    if engine != "auto":
        reason = engine_refusal(engine, **shape)
        if reason:
            raise ValueError(f"engine {engine}: {reason}; take engine portable or auto")
        return engine
    kernel = {"gpu": "cudnn", "tpu": "splash"}.get(platform or jax.default_backend())
    if kernel is None or engine_refusal(kernel, **shape):
        return "portable"
    if kernel == "cudnn" and platform is None:
        # AMD's chips answer without a number.
        capability = str(getattr(jax.devices()[0], "compute_capability", ""))
        if not capability.replace(".", "").isdigit() or float(capability) < CUDNN_CAPABILITY:
            return "portable"
    return kernel


def causal_kernel(
    q_BLHE: jax.Array, k_BLJE: jax.Array, v_BLJE: jax.Array, *, engine: str
) -> jax.Array:
    """Attend by the engine's kernel, rows in causal order: [B, L, H, E], in the type of q.

    Queries are already divided by sqrt(E). Every head h looks at key-value head h // (H / J).
    Memory is linear in L; forward and backward are the kernel's own.
    """
    L = q_BLHE.shape[1]
    pad = lambda x: jnp.pad(x, ((0, 0), (0, -L % WHOLE_ROWS), (0, 0), (0, 0)))  # noqa: E731
    kernel = {"cudnn": _cudnn, "splash": _splash}[engine]
    return kernel(pad(q_BLHE), pad(k_BLJE), pad(v_BLJE))[:, :L]


def _cudnn(q_BLHE: jax.Array, k_BLJE: jax.Array, v_BLJE: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(
        q_BLHE, k_BLJE, v_BLJE, is_causal=True, scale=1.0, implementation=CUDNN
    )


def _splash(q_BLHE: jax.Array, k_BLJE: jax.Array, v_BLJE: jax.Array) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    B, L, H, E = q_BLHE.shape
    J = k_BLJE.shape[2]
    block = SPLASH_BLOCK if L % SPLASH_BLOCK == 0 else WHOLE_ROWS
    sizes = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    causal = splash_attention_mask.CausalMask((L, L))
    kernel = splash_attention_kernel.make_splash_mqa_single_device(
        splash_attention_mask.MultiHeadMask([causal] * (H // J)),
        block_sizes=sizes,
        interpret=INTERPRET,
    )
    q_BJRLE = q_BLHE.reshape(B, L, J, H // J, E).transpose(0, 2, 3, 1, 4)
    k_BJLE, v_BJLE = k_BLJE.swapaxes(1, 2), v_BLJE.swapaxes(1, 2)
    out_BJRLE: Any = jax.vmap(jax.vmap(kernel))(q_BJRLE, k_BJLE, v_BJLE)
    return out_BJRLE.transpose(0, 3, 1, 2, 4).reshape(B, L, H, E)


class Order(NamedTuple):
    """How the tokens of each sequence are sorted for a kernel, and back."""

    there_BL: jax.Array
    """int32: which token comes to each row."""
    back_BL: jax.Array
    """int32: which row each token went to."""
    valid_BL: jax.Array
    """Of the sorted rows: true ones come first."""
    distinct: jax.Array
    """bool: no two valid tokens of a sequence share a position, so rows are in causal order."""


def order_of(positions_BL: jax.Array, valid_BL: jax.Array | None) -> Order:
    """Sort the valid tokens of each sequence by position, and the others behind them."""
    if valid_BL is not None:
        positions_BL = jnp.where(valid_BL, positions_BL, UNSEEN)
    there_BL = jnp.argsort(positions_BL, axis=1, stable=True)
    sorted_BL = jnp.take_along_axis(positions_BL, there_BL, axis=1)
    valid_BL = sorted_BL != UNSEEN
    same_BL = (sorted_BL[:, 1:] == sorted_BL[:, :-1]) & valid_BL[:, 1:]
    return Order(there_BL, jnp.argsort(there_BL, axis=1), valid_BL, ~same_BL.any())


def sorted_for_kernel(
    by_kernel: Callable[[jax.Array, jax.Array | None], jax.Array],
    otherwise: Callable[[jax.Array], jax.Array],
    x_BLD: jax.Array,
    *,
    positions_BL: jax.Array | None,
    valid_BL: jax.Array | None,
) -> jax.Array:
    """Apply `by_kernel` (x, valid) to sorted tokens and put them back; `otherwise` (x) to ties."""
    if positions_BL is None and valid_BL is None:
        return by_kernel(x_BLD, None)
    B, L, _ = x_BLD.shape
    given = positions_BL is not None
    if positions_BL is None:
        positions_BL = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    order = order_of(positions_BL, valid_BL)
    take = lambda x_BLD, rows_BL: jnp.take_along_axis(x_BLD, rows_BL[..., None], axis=1)  # noqa: E731

    def in_order(x_BLD):
        return take(by_kernel(take(x_BLD, order.there_BL), order.valid_BL), order.back_BL)

    return lax.cond(order.distinct, in_order, otherwise, x_BLD) if given else in_order(x_BLD)
