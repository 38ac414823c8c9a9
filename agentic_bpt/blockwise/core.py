"""The transformer core: its configuration, its parameters, and the three schemes of computing it.

`scheme` says what is computed in blocks, never what is computed; all three give the same numbers:

- "vanilla": full attention (L x S scores) and full feed-forward, layers rematerialised;
- "memory_efficient": blockwise attention, full feed-forward, layers rematerialised;
- "blockwise": attention and feed-forward fused per query block (paper, Algorithm 1 and Figure 3).

`engine` says what computes attention: "portable" is this package, on any device; "cudnn" (NVIDIA)
and "splash" (TPU) are kernels made for the chip, see `kernels`. With a kernel, memory_efficient is
the kernel and the full feed-forward, blockwise the kernel and the feed-forward in blocks.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from agentic_bpt.blockwise.attention import blockwise_attention, dense_attention
from agentic_bpt.blockwise.dropout import fold
from agentic_bpt.blockwise.feedforward import (
    ACTIVATIONS,
    Dropout,
    LayerParams,
    finish_layer,
    map_blocks,
    project_keys_values,
    project_queries,
)
from agentic_bpt.blockwise.fused import fused_stack
from agentic_bpt.blockwise.kernels import (
    ENGINES,
    causal_kernel,
    choose_engine,
    sorted_for_kernel,
)
from agentic_bpt.blockwise.layers import Plan, masked_positions

SCHEMES = ("vanilla", "memory_efficient", "blockwise")
DTYPES = ("float32", "bfloat16", "float64")

TILE_BYTES = 4 * 2**20
"""The scores of one visit, of all sequences and heads, are kept within this on a CPU: larger ones
leave the cache, and products of smaller ones are not shared out over cores."""
FEWEST_BLOCKS = 3
"""Blocks in a sequence: with fewer, most of what the causal order hides is visited."""
SMALLEST_BLOCK, LARGEST_BLOCK = 64, 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """Shape of the stack and the way it is computed."""

    layers: int = 3
    """Number of layers K."""
    width: int = 128
    """Width D of the residual stream."""
    heads: int = 1
    """Query heads H; the head width is width / heads."""
    kv_heads: int | None = None
    """Key-value heads J; each serves heads / kv_heads query heads. None: as many as heads."""
    feedforward: int | None = None
    """Hidden width F of the feed-forward network; None: 4 x width."""
    activation: str = "relu"
    """Nonlinearity of the feed-forward network: relu or gelu."""
    dropout: float = 0.0
    """Rate of dropout on attention weights and on both residual branches, in training only."""
    scheme: str = "blockwise"
    """What is in blocks: vanilla, memory_efficient or blockwise."""
    engine: str = "auto"
    """What computes attention: portable, cudnn, splash; auto: a kernel where it can, else
    portable."""
    dtype: str = "float32"
    """Operands of matrix products; sums, norms, softmax and the residual stream stay float32."""
    recompute_attention: bool = False
    """Recompute the attention output in the backward pass instead of saving it (blockwise only):
    K sequences less memory, about a quarter more time."""
    query_block: int | None = None
    """Positions in a block of queries (and of the feed-forward); None: chosen, see `blocks`."""
    key_block: int | None = None
    """Positions in a block of keys; None: chosen, see `blocks`."""

    def __post_init__(self):
        """Refuse shapes that cannot be built."""
        for name in ("layers", "width", "heads", "feedforward", "query_block", "key_block"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width {self.width}, got {self.heads}")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads must divide heads {self.heads}, got {self.kv_heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        for name, known in (
            ("scheme", SCHEMES),
            ("engine", ENGINES),
            ("dtype", DTYPES),
            ("activation", tuple(ACTIVATIONS)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")

    @property
    def head_width(self) -> int:
        """Width E of a head."""
        return self.width // self.heads

    @property
    def feedforward_width(self) -> int:
        """Hidden width F of the feed-forward network."""
        return self.feedforward or 4 * self.width

    @property
    def key_value_heads(self) -> int:
        """Number J of key-value heads."""
        return self.kv_heads or self.heads

    def engine_with(self, *, dropout: float, platform: str | None = None) -> str:
        """Give the engine that computes attention under this dropout; see `choose_engine`."""
        return choose_engine(
            self.engine,
            scheme=self.scheme,
            dtype=self.dtype,
            head_width=self.head_width,
            dropout=dropout,
            platform=platform,
        )

    def blocks(self, positions: int, sequences: int) -> tuple[int, int]:
        """Choose (query_block, key_block) for a batch of sequences of this many positions."""
        # Of blocks of 64 to 512 this was within 17 % of the fastest for 8 shapes of 1 to 64
        # sequences, 1 and 4 heads and 250 to 8,192 positions, on 1 core and on 2.
        fitting = LARGEST_BLOCK
        while fitting > SMALLEST_BLOCK and FEWEST_BLOCKS * fitting > positions:
            fitting //= 2
        while (
            jax.default_backend() == "cpu"
            and fitting > SMALLEST_BLOCK
            and 4 * sequences * self.heads * fitting**2 > TILE_BYTES
        ):
            fitting //= 2
        fitting = min(fitting, -(-positions // 8) * 8)
        return self.query_block or fitting, self.key_block or fitting

    def plan(self, positions: int, sequences: int, *, dropout: float) -> Plan:
        """Plan the blockwise scheme for a batch of sequences of this many positions."""
        query_block, key_block = self.blocks(positions, sequences)
        return Plan(
            heads=self.heads,
            kv_heads=self.key_value_heads,
            activation=self.activation,
            dtype=self.dtype,
            dropout=dropout,
            recompute_attention=self.recompute_attention,
            query_block=query_block,
            key_block=key_block,
        )


def init_stack(key: jax.Array, config: CoreConfig) -> LayerParams:
    """Draw the parameters of all layers, stacked on a leading axis K, float32.

    Weights are normal with variance 1 / fan-in; those that write to the residual stream are
    divided by sqrt(2 K), so that its variance does not grow with depth.
    """
    K, D, F = config.layers, config.width, config.feedforward_width
    HE, JE = config.width, config.key_value_heads * config.head_width
    keys = iter(jax.random.split(key, 5))

    def weight(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        drawn = jax.random.normal(next(keys), (K, rows, columns), jnp.float32)
        return drawn * scale * rows**-0.5

    zeros = lambda n: jnp.zeros((K, n), jnp.float32)  # noqa: E731
    ones = lambda n: jnp.ones((K, n), jnp.float32)  # noqa: E731
    return LayerParams(
        attention_norm_scale=ones(D),
        attention_norm_bias=zeros(D),
        query_weight=weight(D, HE),
        query_bias=zeros(HE),
        key_value_weight=weight(D, 2 * JE),
        key_value_bias=zeros(2 * JE),
        output_weight=weight(HE, D, (2 * K) ** -0.5),
        output_bias=zeros(D),
        feedforward_norm_scale=ones(D),
        feedforward_norm_bias=zeros(D),
        up_weight=weight(D, F),
        up_bias=zeros(F),
        down_weight=weight(F, D, (2 * K) ** -0.5),
        down_bias=zeros(D),
    )


def apply_stack(
    params: LayerParams,
    x_BLD: jax.Array,
    *,
    config: CoreConfig,
    positions_BL: jax.Array | None = None,
    valid_BL: jax.Array | None = None,
    dropout_seed: jax.Array | None = None,
) -> jax.Array:
    """Apply all layers to x [B, L, D] and give [B, L, D], the same for every scheme and engine.

    A token sees the valid tokens whose position (int32 [B, L], default 0..L-1) is not above its
    own. A token that is not valid is seen by none, sees none, and comes out finite. Dropout is
    applied when `dropout_seed` (uint32 scalar) is given.

    Raises:
        ValueError: x is not [B, L, width], positions or validity are not [B, L], or the engine
            that was named cannot compute this.
    """
    check_inputs(x_BLD, config, positions_BL, valid_BL)
    rate = config.dropout if dropout_seed is not None else 0.0
    engine = config.engine_with(dropout=rate)
    portable = partial(
        _portable_stack,
        params,
        config=config,
        positions_BL=positions_BL,
        valid_BL=valid_BL,
        rate=rate,
        seed=jnp.uint32(0) if dropout_seed is None else dropout_seed,
    )
    if engine == "portable":
        return portable(x_BLD)
    by_kernel = partial(_kernel_stack, params, config=config, engine=engine)
    return sorted_for_kernel(
        by_kernel, portable, x_BLD, positions_BL=positions_BL, valid_BL=valid_BL
    )


def _portable_stack(
    params: LayerParams,
    x_BLD: jax.Array,
    *,
    config: CoreConfig,
    positions_BL: jax.Array | None,
    valid_BL: jax.Array | None,
    rate: float,
    seed: jax.Array,
) -> jax.Array:
    """Apply all layers on any device."""
    B, L, _ = x_BLD.shape
    if positions_BL is None:
        positions_BL = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    query_positions_BL, key_positions_BL = masked_positions(positions_BL, valid_BL)
    query_block, key_block = config.blocks(L, B)
    if config.scheme == "blockwise":
        plan = config.plan(L, B, dropout=rate)
        return fused_stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, plan)

    attention: Callable = dense_attention
    if config.scheme == "memory_efficient":
        attention = partial(blockwise_attention, query_block=query_block, key_block=key_block)

    def layer(x_BLD, numbered_params):
        number, p = numbered_params
        y_BLD = whole_layer(
            p,
            x_BLD,
            attention=attention,
            config=config,
            query_positions_BL=query_positions_BL,
            key_positions_BS=key_positions_BL,
            rate=rate,
            seed=fold(seed, number),
        )
        return y_BLD, None

    return lax.scan(jax.checkpoint(layer), x_BLD, (jnp.arange(config.layers), params))[0]


def _kernel_stack(
    params: LayerParams,
    x_BLD: jax.Array,
    valid_BL: jax.Array | None,
    *,
    config: CoreConfig,
    engine: str,
) -> jax.Array:
    """Apply all layers with attention by a kernel; rows are in causal order, padding behind.

    Kept for the backward pass are a layer's input and, in the blockwise scheme, what the kernel
    keeps (queries, keys, values, its output, a log-sum-exp a row), unless attention is recomputed.
    """
    B, L, D = x_BLD.shape
    J, E = config.key_value_heads, config.head_width
    in_blocks = config.scheme == "blockwise"
    finish = partial(finish_layer, activation=config.activation, dtype=config.dtype, dropout=None)

    @jax.checkpoint
    def project(p, x_MD):
        q_MD = project_queries(p, x_MD, head_width=E, dtype=config.dtype)
        kv_MJE = project_keys_values(p, x_MD, dtype=config.dtype).reshape(B, L, 2, J, E)
        return q_MD.reshape(B, L, config.heads, E), kv_MJE[:, :, 0], kv_MJE[:, :, 1]

    def layer(x_MD, p):
        attended_BLHE = causal_kernel(*project(p, x_MD), engine=engine)
        if valid_BL is not None:
            attended_BLHE = jnp.where(valid_BL[..., None, None], attended_BLHE, 0)
        attended_MD = attended_BLHE.reshape(B * L, D)
        if in_blocks:
            return map_blocks(
                partial(finish, p), x_MD, attended_MD, rows=config.blocks(L, B)[0]
            ), None
        return finish(p, x_MD, attended_MD), None

    if config.recompute_attention or not in_blocks:
        layer = jax.checkpoint(layer)
    return lax.scan(layer, x_BLD.reshape(B * L, D), params)[0].reshape(B, L, D)


def check_inputs(
    x_BLD: jax.Array,
    config: CoreConfig,
    positions_BL: jax.Array | None,
    valid_BL: jax.Array | None,
) -> None:
    """Refuse inputs of a stack that do not belong together.

    Raises:
        ValueError: x is not [B, L, width], or positions or validity are not [B, L].
    """
    if x_BLD.ndim != 3 or x_BLD.shape[2] != config.width:
        raise ValueError(f"x must be [batch, positions, {config.width}], got {x_BLD.shape}")
    for name, array in (("positions_BL", positions_BL), ("valid_BL", valid_BL)):
        if array is not None and array.shape != x_BLD.shape[:2]:
            raise ValueError(f"{name} must have shape {x_BLD.shape[:2]}, got {array.shape}")


def whole_layer(
    p: LayerParams,
    x_BLD: jax.Array,
    *,
    attention: Callable,
    config: CoreConfig,
    query_positions_BL: jax.Array,
    key_positions_BS: jax.Array,
    rate: float,
    seed: jax.Array,
) -> jax.Array:
    """Compute one layer on the whole sequence at once."""
    B, L, D = x_BLD.shape
    J, E = config.key_value_heads, config.head_width
    x_MD = x_BLD.reshape(B * L, D)
    q = project_queries(p, x_MD, head_width=E, dtype=config.dtype).reshape(B, L, config.heads, E)
    kv = project_keys_values(p, x_MD, dtype=config.dtype).reshape(B, L, 2, J, E)
    attended_BLHE = attention(
        q * E**0.5,  # attention divides by sqrt(E) itself
        kv[:, :, 0],
        kv[:, :, 1],
        query_positions_BL=query_positions_BL,
        key_positions_BS=key_positions_BS,
        dropout=rate,
        seed=seed,
    )
    dropout = None
    if rate:
        dropout = Dropout(rate, seed, jnp.repeat(jnp.arange(B), L), jnp.tile(jnp.arange(L), B))
    y_MD = finish_layer(
        p,
        x_MD,
        attended_BLHE.reshape(B * L, D),
        activation=config.activation,
        dtype=config.dtype,
        dropout=dropout,
    )
    return y_MD.reshape(B, L, D)


class Transformer(nn.Module):
    """The core as a Flax module: parameters of `init_stack` under the name "stack"."""

    config: CoreConfig

    @nn.compact
    def __call__(self, x_BLD, *, positions_BL=None, valid_BL=None, dropout_seed=None):
        """Apply the stack; see `apply_stack`."""
        params = self.param("stack", init_stack, self.config)
        return apply_stack(
            params,
            x_BLD,
            config=self.config,
            positions_BL=positions_BL,
            valid_BL=valid_BL,
            dropout_seed=dropout_seed,
        )
