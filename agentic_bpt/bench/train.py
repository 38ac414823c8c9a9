"""Training beside its peers in one run: ratios, since machines are noisy."""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from agentic_bpt.bench.peers import dot_product_attention
from agentic_bpt.blockwise.core import SCHEMES, CoreConfig, apply_stack, init_stack
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.made_by import made_by
from agentic_bpt.methods import preset_of
from agentic_bpt.quickstart import TASK, embedded_sources
from agentic_bpt.reports.results import write_json
from agentic_bpt.run import make_parts
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import init_state, make_train_step

ROUNDS = 5
"""Every contender is timed this often, in turns, and its fastest round counts."""


def bench_train(*, positions: int, out: Path | None) -> None:
    """Print, and write to `out`, how training compares with its peers."""
    console = Console()
    document: dict[str, Any] = {
        **made_by("jax", "mujoco"),
        "device": str(jax.devices()[0].device_kind),
        "rounds": ROUNDS,
    }
    document["layers"] = _layers(positions, console)
    with tempfile.TemporaryDirectory() as folder:
        path = ingest(*embedded_sources(), task=TASK, relabel="stored", out=Path(folder)).path
        with Store.open(path) as store:
            document["reading"] = _reading(store, console)
    if out is not None:
        write_json(out, document)


def seconds_of(contenders: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Time contenders in turns; each has been compiled by a call that does not count."""
    for run in contenders.values():
        jax.block_until_ready(run())
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _layers(positions: int, console: Console) -> dict[str, Any]:
    config = CoreConfig(layers=3, width=128)
    params = init_stack(jax.random.key(0), config)
    x_BLD = jax.random.normal(jax.random.key(1), (1, positions, config.width))
    stacks = {"jax.nn.dot_product_attention": partial(dot_product_attention, config=config)}
    for scheme in SCHEMES:
        stacks[scheme] = partial(apply_stack, config=dataclasses.replace(config, scheme=scheme))

    def step(stack):
        gradient = jax.jit(jax.grad(lambda params: jnp.square(stack(params, x_BLD)).mean()))
        return lambda: gradient(params)

    seconds = seconds_of({name: step(stack) for name, stack in stacks.items()})
    peer = seconds["jax.nn.dot_product_attention"]
    console.print(f"Training step, 3 layers x 128, float32, {positions:,} positions:")
    for name, value in seconds.items():
        console.print(f"  {name:30} {positions / value:10,.0f} tokens/s  {peer / value:5.2f} x")
    return {"positions": positions, "seconds": seconds}


def _reading(store: Store, console: Console) -> dict[str, float]:
    experiment = preset_of("at", "cpu")
    parts = make_parts(experiment, store)
    optimizer = make_optimizer(experiment.optimizer, steps=experiment.loop.steps)
    state, batch = init_state(parts.params, optimizer), parts.batch_at(0)
    step = jax.jit(make_train_step(parts.loss, optimizer))
    seconds = seconds_of({"step": lambda: step(state, batch), "read": lambda: parts.batch_at(1)})
    share = seconds["read"] / seconds["step"]
    console.print(
        f"Reading a batch takes {seconds['read'] * 1e3:.1f} ms, {share:.1%} of a training step "
        f"({seconds['step'] * 1e3:.0f} ms, preset cpu), and happens beside it."
    )
    return seconds
