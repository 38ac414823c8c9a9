"""The stack over many devices: data, tensor and sequence parallelism on one mesh.

Values and gradients are those of `apply_stack` on one device, dropout masks included. Every device
holds some sequences, two chunks of their positions, and some heads and hidden units:

- "data": nothing is exchanged but the gradients of the parameters, added up once;
- "model": two sums over devices a layer, after attention and after the feed-forward network
  (Megatron), and three in the backward pass;
- "sequence": keys and values of a layer reach every shard, gathered at once or passed round a ring,
  see `choose_exchange`; all else is in blocks on each shard.

The backward pass is written out, like that of `fused`: what devices exchange in it is said here and
in `shards`, `ring` and `split`, and nothing is left to the transposition of collectives.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from agentic_bpt.blockwise.core import CoreConfig, check_inputs
from agentic_bpt.blockwise.feedforward import LayerParams
from agentic_bpt.blockwise.fused import (
    Saved,
    apply_layers,
    backward_layers,
    fused_backward_layer,
    save_layers,
)
from agentic_bpt.blockwise.layers import masked_positions, whole_blocks
from agentic_bpt.blockwise.mesh import MeshConfig, make_mesh
from agentic_bpt.blockwise.placement import (
    SEQUENCES,
    SPLIT_SPECS,
    join_keys_values,
    param_specs,
    shard_params,
    split_keys_values,
)
from agentic_bpt.blockwise.ring import RingLayers, apply_ring, backward_ring_layer, save_ring
from agentic_bpt.blockwise.shards import GatherLayers, ShardPlan, cut_chunks, pad_chunks
from agentic_bpt.blockwise.tiles import BLIND, UNSEEN
from agentic_bpt.blockwise.zigzag import shard_sequence, to_shards, unshard_sequence

__all__ = [
    "SEQUENCES",
    "MeshConfig",
    "apply_stack_parallel",
    "choose_exchange",
    "make_mesh",
    "param_specs",
    "shard_params",
    "shard_sequence",
    "sum_over_shards",
    "unshard_sequence",
]

EXCHANGES = ("auto", "gather", "ring")

GATHER_BYTES = 4 * 2**20
"""Keys and values are gathered while those of one layer for whole sequences, with their gradients,
are within this on a device: then a ring's messages are so short that their number counts. Above,
the ring holds less, and on forced host devices it was not slower (`agentic-bpt bench mesh`)."""

_SAVED = (
    Spec(None, "data", "sequence"),
    Spec(None, "data", "sequence", "model"),
    Spec(None, "sequence", ("data", "model")),
)
"""How the fields of `Saved` lie; the last by blocks and groups, which are split as these are."""


def choose_exchange(exchange: str, *, config: CoreConfig, batch: int, positions: int, mesh: Mesh):
    """Give "gather" or "ring": the one named, or by size (`GATHER_BYTES`) for "auto".

    Args:
        exchange: one of `EXCHANGES`.
        config: the stack.
        batch: sequences of the whole batch.
        positions: of a whole sequence.
        mesh: with the axes of `MeshConfig`.

    Raises:
        ValueError: the exchange is not known.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {EXCHANGES}, got {exchange!r}")
    if exchange != "auto":
        return exchange
    numbers = batch // mesh.shape["data"] * positions
    numbers *= config.key_value_heads // mesh.shape["model"] * config.head_width
    gathered_bytes = 2 * numbers * (jnp.dtype(config.dtype).itemsize + 4)  # gradients are float32
    alone = mesh.shape["sequence"] == 1
    return "gather" if alone or gathered_bytes <= GATHER_BYTES else "ring"


def apply_stack_parallel(
    params: LayerParams,
    x_BLD: jax.Array,
    *,
    config: CoreConfig,
    mesh: Mesh,
    positions_BL: jax.Array | None = None,
    valid_BL: jax.Array | None = None,
    dropout_seed: jax.Array | None = None,
    exchange: str = "auto",
    in_shard_order: bool = False,
) -> jax.Array:
    """Apply all layers to x [B, L, D] over a mesh; the numbers of `apply_stack`, inside `jax.jit`.

    With `in_shard_order` all rows are, and the result is, in the order of `shard_sequence`, and
    nothing is moved: order a batch once, on the host, and keep it so up to the loss. Otherwise
    rows are put into that order first and put back after, at the price of moving x twice.

    Raises:
        ValueError: inputs do not belong together; the mesh does not divide the batch, the heads or
            the hidden units; the scheme is not blockwise or an engine is named, which are for one
            device.
    """
    check_inputs(x_BLD, config, positions_BL, valid_BL)
    if config.scheme != "blockwise" or config.engine not in ("auto", "portable"):
        raise ValueError(
            "over a mesh the scheme is blockwise and the engine portable, "
            f"got {config.scheme} and {config.engine}"
        )
    B, L, _ = x_BLD.shape
    MeshConfig.of(mesh).require(config, batch=B, devices=mesh.size)
    P = mesh.shape["sequence"]
    if in_shard_order and L % (2 * P):
        raise ValueError(f"positions in shard order must be a multiple of {2 * P}, got {L}")
    if positions_BL is None:
        natural_BL = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
        ordered_BL = to_shards(natural_BL, P, axis=1) if in_shard_order else natural_BL
        positions_BL = jnp.asarray(ordered_BL)
    sees_BL, seen_BL = masked_positions(positions_BL, valid_BL)
    if not in_shard_order:
        order = partial(shard_sequence, shards=P)
        x_BLD = order(x_BLD)
        sees_BL, seen_BL = order(sees_BL, fill=BLIND), order(seen_BL, fill=UNSEEN)
    way = choose_exchange(exchange, config=config, batch=B, positions=L, mesh=mesh)
    rate = config.dropout if dropout_seed is not None else 0.0
    seed = jnp.uint32(0) if dropout_seed is None else dropout_seed
    chunk = x_BLD.shape[1] // (2 * P)
    shard = _shard_plan(config, mesh, batch=B, chunk=chunk, rate=rate, ring=way == "ring")
    y_BLD: jax.Array = _stack(split_keys_values(params), x_BLD, sees_BL, seen_BL, seed, shard, mesh)
    return y_BLD if in_shard_order else unshard_sequence(y_BLD, shards=P, length=L)


def sum_over_shards(
    loss: Callable[..., tuple[jax.Array, jax.Array]],
    weights: Any,
    arrays_BL: tuple[jax.Array, ...],
    *,
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    """Compute a loss in blocks on each shard and add up: (sum, count) of all positions.

    `loss(weights, *arrays)` gives sum and count, as those of `loss` do, of a device's share
    of the arrays [B, L, ...], which are in shard order; it is handed the whole weights.
    """

    def share(weights, *arrays_BL):
        return lax.psum(loss(weights, *arrays_BL), ("data", "sequence"))

    specs = (Spec(), *(SEQUENCES for _ in arrays_BL))
    return _on_shards(share, mesh, specs, Spec())(weights, *arrays_BL)


def _shard_plan(
    config: CoreConfig, mesh: Mesh, *, batch: int, chunk: int, rate: float, ring: bool
) -> ShardPlan:
    """Plan what one device does of a stack."""
    M = mesh.shape["model"]
    share = dataclasses.replace(
        config,
        width=config.width // M,
        heads=config.heads // M,
        kv_heads=config.key_value_heads // M,
        feedforward=config.feedforward_width // M,
    )
    plan = share.plan(chunk, batch // mesh.shape["data"], dropout=rate)
    if M > 1:
        plan = plan._replace(axis="model")
    return ShardPlan(plan, mesh.shape["sequence"], chunk, config.key_value_heads, ring)


_ARGUMENTS = (SPLIT_SPECS, SEQUENCES, SEQUENCES, SEQUENCES, Spec())


def _on_shards(function: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    # What is replicated is known from the algorithm; JAX's check does not see through the loops.
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _stack(params, x_BLD, query_positions_BL, key_positions_BL, seed, shard, mesh):
    arguments = (params, x_BLD, query_positions_BL, key_positions_BL, seed)
    return _on_shards(partial(_apply_share, shard), mesh, _ARGUMENTS, SEQUENCES)(*arguments)


def _forward(params, x_BLD, query_positions_BL, key_positions_BL, seed, shard, mesh):
    arguments = (params, x_BLD, query_positions_BL, key_positions_BL, seed)
    specs = (SEQUENCES, _saved_specs(shard))
    y_BLD, saved = _on_shards(partial(_save_share, shard), mesh, _ARGUMENTS, specs)(*arguments)
    return y_BLD, (arguments, saved)


def _backward(shard, mesh, residuals, dy_BLD):
    arguments, saved = residuals
    specs = (_ARGUMENTS, _saved_specs(shard), SEQUENCES)
    share = _on_shards(partial(_backward_share, shard), mesh, specs, (SPLIT_SPECS, SEQUENCES))
    return *share(arguments, saved, dy_BLD), None, None, None


_stack.defvjp(_forward, _backward)


def _saved_specs(shard: ShardPlan) -> tuple[Spec, ...]:
    return _SAVED[:1] if shard.plan.recompute_attention else _SAVED


def _layers(shard: ShardPlan, arguments) -> tuple[Any, jax.Array]:
    """Make the pieces of a layer from a device's share of the arguments, and its padded input."""
    params, x_BLD, query_positions_BL, key_positions_BL, seed = arguments
    whole = whole_blocks(shard.chunk, shard.plan)
    layers = (RingLayers if shard.ring else GatherLayers)(
        join_keys_values(params),
        pad_chunks(query_positions_BL, whole, BLIND),
        pad_chunks(key_positions_BL, whole, UNSEEN),
        seed,
        shard,
    )
    return layers, pad_chunks(x_BLD, whole)


def _apply_share(shard, *arguments):
    layers, x_BLD = _layers(shard, arguments)
    apply = apply_ring if shard.ring else apply_layers
    return cut_chunks(apply(layers, x_BLD), shard.chunk)


def _save_share(shard, *arguments):
    layers, x_BLD = _layers(shard, arguments)
    saved = (save_ring if shard.ring else save_layers)(layers, x_BLD)
    kept = tuple(array for array in saved if array is not None)
    return cut_chunks(saved.output_KBLD[-1], shard.chunk), kept


def _backward_share(shard, arguments, kept, dy_BLD):
    layers, x_BLD = _layers(shard, arguments)
    saved = Saved(*kept, *(None,) * (len(_SAVED) - len(kept)))
    dy_BLD = pad_chunks(dy_BLD, layers.length // 2)
    layer = backward_ring_layer if shard.ring else fused_backward_layer
    dparams, dx_BLD = backward_layers(layers, saved, x_BLD, dy_BLD, layer)
    return sum_gradients(split_keys_values(dparams)), cut_chunks(dx_BLD, shard.chunk)


def sum_gradients(dparams: LayerParams) -> LayerParams:
    """Add up the gradients of the parameters over all that saw other tokens."""
    return lax.psum(dparams, ("data", "sequence"))
