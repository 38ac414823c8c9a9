"""Sequence parallelism on forced host devices: bytes a device and seconds a step against P.

Each P is a process of its own with so many devices. Bytes are those of the compiled program of one
device and hold on real devices too. The devices share this machine's cores, so P of them are not
faster than one: seconds say what cutting and exchanging cost, and nothing of a network.
Run as a module, this file is that process: it prints one JSON document.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

LAYERS, WIDTH, HEADS = 3, 128, 1
SHARDS = (1, 2, 4, 8)
POSITIONS = 8192
ROUNDS = 3
"""Contenders are timed this often, in turns, and the fastest round counts."""
ONE_DEVICE = "one device"


def bench_mesh(out: Path | None, *, positions: int = POSITIONS) -> None:
    """Measure a gradient of the stack for each P; print the table and write JSON to `out`."""
    from rich.console import Console

    from agentic_bpt.made_by import made_by
    from agentic_bpt.reports.results import write_json

    console = Console(width=120)
    console.print(
        f"Gradient of {LAYERS} layers x {WIDTH}, {HEADS} head, float32, {positions:,} positions, "
        f"on {len(os.sched_getaffinity(0))} cores that all devices share:"
    )
    console.print("| P | exchange | seconds | x one device | MiB a device | x P / one device |")
    console.print("|---:|---|---:|---:|---:|---:|")
    rows: list[dict[str, Any]] = []
    for shards in SHARDS:
        for row in _measured(shards, positions):
            rows.append(row)
            seconds, bytes_per_device = row["seconds"], row["bytes_per_device"]
            console.print(
                f"| {shards} | {row['exchange']} | {seconds:.2f} "
                f"| {seconds / rows[0]['seconds']:.2f} | {bytes_per_device / 2**20:,.1f} "
                f"| {shards * bytes_per_device / rows[0]['bytes_per_device']:.2f} |"
            )
    if out is not None:
        write_json(
            out,
            {
                **made_by("jax", "jaxlib"),
                "cores": len(os.sched_getaffinity(0)),
                "layers": LAYERS,
                "width": WIDTH,
                "heads": HEADS,
                "positions": positions,
                "rows": rows,
            },
        )


def _measured(shards: int, positions: int) -> list[dict[str, Any]]:
    """Measure one P in a process that has so many devices."""
    words = [f"--shards={shards}", f"--positions={positions}"]
    done = subprocess.run(
        [sys.executable, "-m", "agentic_bpt.bench.mesh", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={shards}",
        },
    )
    return json.loads(done.stdout.splitlines()[-1])


def _worker() -> None:
    """Compile and time every exchange in turns; print one row each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int)
    parser.add_argument("--positions", type=int)
    asked = parser.parse_args()
    import jax
    import jax.numpy as jnp

    from agentic_bpt.bench.train import seconds_of
    from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
    from agentic_bpt.blockwise.memory import bytes_of
    from agentic_bpt.blockwise.parallel import (
        SEQUENCES,
        apply_stack_parallel,
        make_mesh,
        shard_params,
    )

    config = CoreConfig(layers=LAYERS, width=WIDTH, heads=HEADS)
    params = init_stack(jax.random.key(0), config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, asked.positions, WIDTH))
    mesh = make_mesh(sequence=asked.shards)
    over_mesh = partial(apply_stack_parallel, config=config, mesh=mesh, in_shard_order=True)
    stacks = {name: partial(over_mesh, exchange=name) for name in ("gather", "ring")}
    places: tuple[Any, Any] = (params, x_BLD)
    if asked.shards == 1:
        stacks = {ONE_DEVICE: partial(apply_stack, config=config), **stacks}
    else:
        sharding = jax.sharding.NamedSharding(mesh, SEQUENCES)
        places = (shard_params(params, mesh), jax.device_put(x_BLD, sharding))
    runs, rows = {}, []
    for name, stack in stacks.items():
        loss = lambda params, x_BLD, stack=stack: jnp.square(stack(params, x_BLD)).sum()  # noqa: E731
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*places).compile()
        runs[name] = partial(compiled, *places)
        temporaries = bytes_of(compiled).temporaries
        rows.append({"shards": asked.shards, "exchange": name, "bytes_per_device": temporaries})
    seconds = seconds_of(runs, rounds=ROUNDS)
    print(json.dumps([row | {"seconds": seconds[row["exchange"]]} for row in rows]))


if __name__ == "__main__":
    _worker()
