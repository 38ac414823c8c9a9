"""The core beside its peers in one run: seconds, compiled bytes, share of the machine's peak.

Each shape and number of threads is a process of its own, pinned to as many cores, in which all
contenders take turns. Run as a module, this file is that process: it prints one JSON document.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

LAYERS, WIDTH = 3, 128
LIMIT_BYTES = 16e9
"""A contender whose compiled temporaries pass this is listed `oom` and not run."""
MIN_ROUNDS, MAX_ROUNDS, ROUND_SECONDS = 2, 7, 6.0
"""Every contender is timed at least and at most so often; no more than these seconds in all."""
OURS = ("blockwise", "blockwise, recomputed attention", "blockwise, bfloat16 products")


def bench_core(
    *, positions: Sequence[int], heads: Sequence[int], threads: Sequence[int], out: Path | None
) -> None:
    """Measure every shape in a process of its own; print the table, write JSON and a picture.

    Shapes that `out` has already are not measured again, so that a stopped run goes on.
    """
    from rich.console import Console

    from agentic_bpt.made_by import command_line
    from agentic_bpt.reports.plots import ratios_png
    from agentic_bpt.reports.results import write_json
    from agentic_bpt.whole_file import write_whole

    shapes = [(t, h, n) for t in threads for h in heads for n in positions]
    document: dict[str, Any] = {"rows": []}
    if out is not None and out.exists():
        document = json.loads(out.read_text())
    for shape in shapes:
        if any(_shape_of(row) == shape for row in document["rows"]):
            continue
        words = [f"--{name}={n}" for name, n in zip(SHAPE, shape, strict=True)]
        command = [sys.executable, "-m", "agentic_bpt.bench.core", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        document["rows"] += measured.pop("rows")
        document |= measured
        document["command"] = command_line()
        if out is not None:
            write_json(out, document)
    rows = sorted((row for row in document["rows"] if _shape_of(row) in shapes), key=_shape_of)
    console = Console(width=130)
    for line in table_lines(rows):
        console.print(line)
    if out is not None:
        write_whole(out.with_suffix(".png"), ratios_png(rows, ours=OURS[0]))


SHAPE = ("threads", "heads", "positions")


def _shape_of(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in SHAPE)


def table_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Render the rows as Markdown, each peer as a multiple of our time."""
    ours = {_shape_of(row): row["seconds"] for row in rows if row["name"] == OURS[0]}
    lines = [
        "| threads | heads | positions | contender | seconds | x our time | MiB | share of peak |",
        "|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        key = _shape_of(row)
        start = f"| {key[0]} | {key[1]} | {key[2]:,} | {row['name']} |"
        mebibytes = "-" if row["bytes"] is None else f"{row['bytes'] / 2**20:,.0f}"
        if row["seconds"] is None:
            lines.append(f"{start} {row['why']} | - | {mebibytes} | - |")
            continue
        ratio, share = row["seconds"] / ours[key], row["share_of_peak"]
        lines.append(f"{start} {row['seconds']:.2f} | {ratio:.2f} | {mebibytes} | {share:.0%} |")
    return lines


def useful_operations(positions: int) -> float:
    """Count the multiply-adds, twice, of exact causal attention and the products of all layers."""
    attention = 7 * positions**2 * WIDTH
    products = 3 * positions * 2 * 12 * WIDTH**2
    return float(LAYERS * (attention + products))


def _measure(positions: int, heads: int) -> list[dict[str, Any]]:
    """Time all contenders for one shape in turns, within this process."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import numpy as np

    from agentic_bpt.bench import peers
    from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack

    config = CoreConfig(layers=LAYERS, width=WIDTH, heads=heads)
    params = init_stack(jax.random.key(0), config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, positions, WIDTH))
    variants = (
        config,
        dataclasses.replace(config, recompute_attention=True),
        dataclasses.replace(config, dtype="bfloat16"),
    )
    stacks: dict[str, Callable] = {
        name: partial(apply_stack, config=variant)
        for name, variant in zip(OURS, variants, strict=True)
    }
    stacks |= {
        "paper, Figure 3": partial(peers.figure_3, config=config, fused=False),
        "paper, fused (Algorithm 1)": partial(peers.figure_3, config=config, fused=True),
        "jax.nn.dot_product_attention": partial(peers.dot_product_attention, config=config),
        "ringattention": partial(peers.ring_attention, config=config),
    }
    rows, runs, results = [], {}, {}
    for name, stack in stacks.items():
        row = {"name": name, "heads": heads, "positions": positions}
        rows.append(row | {"seconds": None, "bytes": None, "why": None})
        loss = lambda params, x_BLD, stack=stack: jnp.square(stack(params, x_BLD)).sum()  # noqa: E731
        try:
            compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, x_BLD).compile()
        except ImportError as error:
            rows[-1]["why"] = f"not installed: {error.name}"
            continue
        analysis = compiled.memory_analysis()
        rows[-1]["bytes"] = analysis.temp_size_in_bytes if analysis else None
        if analysis and analysis.temp_size_in_bytes > LIMIT_BYTES:
            rows[-1]["why"] = "oom"
            continue
        runs[name] = partial(compiled, params, x_BLD)
    for name, checkpointed in (("PyTorch SDPA", False), ("PyTorch SDPA, checkpointed", True)):
        row = {"name": name, "heads": heads, "positions": positions}
        rows.append(row | {"seconds": None, "bytes": None, "why": None})
        try:
            runs[name] = peers.torch_gradient(
                params, np.asarray(x_BLD), config, checkpointed=checkpointed
            )
        except ImportError as error:
            rows[-1]["why"] = f"not installed: {error.name}"
    seconds = _fastest(runs, results)
    expected = np.asarray(jax.tree.leaves(results[OURS[0]])[-1])
    for row in rows:
        if row["name"] in seconds:
            row["seconds"] = seconds[row["name"]]
            found = np.asarray(jax.tree.leaves(results[row["name"]])[-1])
            # Gradient of the input: proof that all contenders compute the same thing.
            row["difference"] = float(np.abs(found - expected).max() / np.abs(expected).max())
    return rows


def _fastest(runs: dict[str, Callable], results: dict[str, Any]) -> dict[str, float]:
    """Time contenders in turns; the first call of each warms up and gives its result."""
    import jax

    best, spent = {}, {}
    for name, run in runs.items():
        start = time.perf_counter()
        results[name] = jax.block_until_ready(run())
        best[name], spent[name] = float("inf"), 0.0
        if time.perf_counter() - start > ROUND_SECONDS:  # slow ones need no warm-up
            best[name] = spent[name] = time.perf_counter() - start
    for number in range(MAX_ROUNDS):
        for name, run in runs.items():
            if spent[name] > ROUND_SECONDS and (number >= MIN_ROUNDS or spent[name] > 20):
                continue
            start = time.perf_counter()
            jax.block_until_ready(run())
            elapsed = time.perf_counter() - start
            best[name], spent[name] = min(best[name], elapsed), spent[name] + elapsed
    return best


def _worker() -> None:
    """Measure one shape with the threads asked for, and print one JSON document."""
    parser = argparse.ArgumentParser()
    for name in SHAPE:
        parser.add_argument(f"--{name}", type=int)
    asked = parser.parse_args()
    # Before anything starts a thread: XLA and PyTorch take as many as there are cores to run on.
    cores = sorted(os.sched_getaffinity(0))[: asked.threads]
    os.sched_setaffinity(0, cores)
    from importlib.metadata import PackageNotFoundError, version

    from agentic_bpt.blockwise.peak import measured_peak

    versions = {}
    for package in ("agentic-bpt", "jax", "jaxlib", "torch", "ringattention"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    peak, rows = measured_peak(), []
    for row in _measure(asked.positions, asked.heads):
        row |= {"threads": asked.threads, "peak_operations_per_second": peak}
        if row["seconds"] is not None:
            rate = useful_operations(asked.positions) / row["seconds"]
            row["share_of_peak"] = rate / peak
        rows.append(row)
    print(json.dumps({"layers": LAYERS, "width": WIDTH, "versions": versions, "rows": rows}))


if __name__ == "__main__":
    _worker()
