"""The blockwise parallel transformer core, usable alone: it needs jax and flax only."""

from agentic_bpt.blockwise.attention import blockwise_attention, dense_attention
from agentic_bpt.blockwise.cache import Cache, extend_stack, init_cache, require_room
from agentic_bpt.blockwise.core import CoreConfig, Transformer, apply_stack, init_stack
from agentic_bpt.blockwise.loss import cross_entropy, squared_error

__all__ = [
    "Cache",
    "CoreConfig",
    "Transformer",
    "apply_stack",
    "blockwise_attention",
    "cross_entropy",
    "dense_attention",
    "extend_stack",
    "init_cache",
    "init_stack",
    "require_room",
    "squared_error",
]
