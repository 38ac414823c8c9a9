"""How the parameters of a stack and its sequences lie on a mesh."""

import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentic_bpt.blockwise.feedforward import LayerParams

SEQUENCES = Spec("data", "sequence")
"""How arrays [B, L, ...] in shard order lie on a mesh."""


def param_specs() -> LayerParams:
    """Say how the parameters of a stack lie on a mesh: `PartitionSpec`s in their places.

    Columns of what enters a part of a layer, and rows of what leaves it, are split over "model".
    """
    whole: Any = Spec()
    columns: Any = Spec(None, None, "model")
    rows: Any = Spec(None, "model")
    return LayerParams(
        attention_norm_scale=whole,
        attention_norm_bias=whole,
        query_weight=columns,
        query_bias=rows,
        key_value_weight=columns,
        key_value_bias=rows,
        output_weight=rows,
        output_bias=whole,
        feedforward_norm_scale=whole,
        feedforward_norm_bias=whole,
        up_weight=columns,
        up_bias=rows,
        down_weight=rows,
        down_bias=whole,
    )


def shard_params(params: LayerParams, mesh: Mesh) -> LayerParams:
    """Put the parameters of a stack on a mesh; their order is that of one device, on any mesh."""
    place = lambda w, spec: jax.device_put(w, NamedSharding(mesh, spec))  # noqa: E731
    return jax.tree.map(place, params, param_specs())


def split_keys_values(params: LayerParams) -> LayerParams:
    """Put keys and values on an axis of their own: a device needs both of its heads.

    Where they are stored side by side, a device's columns are keys only or values only; the
    compiler moves them once a step.
    """
    split = lambda w: w.reshape(*w.shape[:-1], 2, -1)  # noqa: E731
    return params._replace(
        key_value_weight=split(params.key_value_weight), key_value_bias=split(params.key_value_bias)
    )


def join_keys_values(params: LayerParams) -> LayerParams:
    """Undo `split_keys_values`."""
    join = lambda w: w.reshape(*w.shape[:-2], math.prod(w.shape[-2:]))  # noqa: E731
    return params._replace(
        key_value_weight=join(params.key_value_weight), key_value_bias=join(params.key_value_bias)
    )


_HALVES: Any = {
    "key_value_weight": Spec(None, None, None, "model"),
    "key_value_bias": Spec(None, None, "model"),
}
SPLIT_SPECS = param_specs()._replace(**_HALVES)
"""How the parameters lie that `split_keys_values` gives."""
