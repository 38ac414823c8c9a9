"""Decoding with a cache: latency of a step against the time that reading the filled part takes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from agentic_bpt.bench.train import seconds_of
from agentic_bpt.blockwise.cache import extend_stack, init_cache, pretend_filled
from agentic_bpt.blockwise.core import CoreConfig, init_stack
from agentic_bpt.made_by import made_by
from agentic_bpt.reports.results import write_json

SHARES = (0.0, 0.25, 0.5, 1.0)
"""Filled part of the cache at which a step is timed."""


def bench_decode(*, positions: Sequence[int], heads: Sequence[int], out: Path | None) -> None:
    """Time one new token for caches of these capacities, float32 and bfloat16; print and write."""
    console = Console(width=120)
    rows: list[dict[str, Any]] = []
    console.print("| heads | cache | capacity | filled | ms a step | ms to read it | ratio |")
    console.print("|---:|---|---:|---:|---:|---:|---:|")
    for head_count in heads:
        for dtype in ("float32", "bfloat16"):
            for capacity in positions:
                for row in _measure(capacity, head_count, dtype):
                    rows.append(row)
                    console.print(
                        f"| {row['heads']} | {dtype} | {capacity:,} | {row['filled']:,} "
                        f"| {row['seconds'] * 1e3:.2f} | {row['read_seconds'] * 1e3:.2f} "
                        f"| {row['seconds'] / row['read_seconds']:.1f} |"
                    )
    if out is not None:
        write_json(out, {**made_by("jax", "jaxlib"), "rows": rows})


def _measure(capacity: int, heads: int, dtype: str) -> list[dict[str, Any]]:
    config = CoreConfig(layers=3, width=128, heads=heads)
    params = init_stack(jax.random.key(0), config)
    x_BMD = jnp.ones((1, 1, config.width))
    empty = init_cache(config, batch=1, capacity=capacity, dtype=dtype)
    step = jax.jit(partial(extend_stack, config=config), donate_argnums=2)
    rows = []
    for share in SHARES:
        filled = min(int(share * capacity), capacity - 1)
        # Steps write and give back the same buffers; the count is put back before each.
        holder = [pretend_filled(jax.tree.map(jnp.copy, empty), filled)]

        def one_step(holder=holder, filled=filled):
            out, cache = step(params, x_BMD, holder[0]._replace(filled=jnp.int32(filled)))
            holder[0] = cache
            return out

        # Reading as many bytes as a step must, in float32 whatever the cache holds: the floor that
        # the memory sets.
        size = 2 * config.layers * max(filled, 1) * config.width * jnp.dtype(dtype).itemsize
        part = jnp.ones((size // 4 // config.width, config.width))
        read = partial(jax.jit(lambda part: part.sum(axis=0)), part)
        seconds = seconds_of({"step": one_step, "read": read}, rounds=20)
        rows.append(
            {
                "heads": heads,
                "cache": dtype,
                "capacity": capacity,
                "filled": filled,
                "seconds": seconds["step"],
                "read_seconds": seconds["read"],
            }
        )
    return rows
