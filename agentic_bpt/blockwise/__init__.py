"""The blockwise parallel transformer core, usable alone: it needs jax and flax only."""
