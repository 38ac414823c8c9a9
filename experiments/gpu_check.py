"""What only a GPU can show of the core: numbers, bytes, speed. Under 10 minutes, one GPU of 80 GB.

    python experiments/gpu_check.py                 # writes experiments/results/gpu_check.json
    python experiments/gpu_check.py --smoke         # small shapes on any device, for a minute

Expected: the kernel engine within 1.5 times the error of full attention in bfloat16, against
float64; measured peak bytes within 15 % of the compiled ones; a step of 128,000 positions at half
of the chip's measured bfloat16 peak. It has not been run on a GPU yet: the smoke mode has, on CPU.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentic_bpt.bench.core import useful_operations
from agentic_bpt.bench.train import seconds_of as times_of
from agentic_bpt.blockwise.cache import extend_stack, init_cache, pretend_filled
from agentic_bpt.blockwise.core import SCHEMES, CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.memory import bytes_of
from agentic_bpt.experiment import replace_in
from agentic_bpt.made_by import made_by
from agentic_bpt.methods import preset_of
from agentic_bpt.planner.prediction import device_at_hand
from agentic_bpt.planner.step import EpisodeShape, example_batch, training_step
from agentic_bpt.reports.results import write_json

CORE = ("agent", "model", "core")
ROUNDS = 3


def seconds_of(run) -> float:
    """Time the fastest of some rounds, after one that does not count."""
    return times_of({"run": run}, rounds=ROUNDS)["run"]


def gradient_of(config: CoreConfig):
    """Make the gradient of a sum of squares of the stack's output over parameters and input."""
    loss = lambda params, x_BLD, valid_BL: jnp.square(  # noqa: E731
        jnp.where(
            valid_BL[..., None], apply_stack(params, x_BLD, config=config, valid_BL=valid_BL), 0
        )
    ).sum()
    return jax.jit(jax.grad(loss, (0, 1)))


def numbers(smoke: bool) -> list[dict]:
    """Compare gradients of every scheme in bfloat16 with full attention in float64."""
    rows = []
    for heads, width in ((4, 128),) if smoke else ((1, 128), (4, 128), (2, 64)):
        shape: dict[str, Any] = {
            "layers": 2,
            "width": width,
            "heads": heads,
            "kv_heads": max(1, heads // 2),
        }
        length = 100 if smoke else 1000
        params = init_stack(jax.random.key(0), CoreConfig(**shape))
        x_BLD = jax.random.normal(jax.random.key(1), (2, length, width))
        valid_BL = jnp.arange(length) < jnp.array([[length], [length - 30]])
        with jax.enable_x64(True):
            wide = lambda tree: jax.tree.map(  # noqa: E731
                lambda w: jnp.asarray(np.asarray(w), jnp.float64), tree
            )
            dense = CoreConfig(**shape, scheme="vanilla", dtype="float64")
            expected = jax.tree.map(
                np.asarray, gradient_of(dense)(wide(params), wide(x_BLD), valid_BL)
            )
        for scheme in SCHEMES:
            config = CoreConfig(**shape, scheme=scheme, dtype="bfloat16")
            found = jax.tree.map(np.asarray, gradient_of(config)(params, x_BLD, valid_BL))
            error = lambda a, b: float(np.abs(a - b).max() / np.abs(b).max())  # noqa: E731
            errors = jax.tree.leaves(jax.tree.map(error, found, expected))
            engine = config.engine_with(dropout=0.0)
            rows.append(shape | {"scheme": scheme, "engine": engine, "error": max(errors)})
    return rows


def bytes_and_steps(smoke: bool) -> list[dict]:
    """Run the real training step at growing lengths.

    The peak of a process only grows, so a row has one only where it takes more than all before.
    """
    episode = EpisodeShape(24, 6, 20 if smoke else 1000)
    limit, rows, highest = device_at_hand().usable_bytes, [], None
    for trajectories in (1,) if smoke else (4, 32, 128, 512):
        for scheme in SCHEMES[::-1]:
            experiment = preset_of("at", "paper")
            for path, value in (
                ((*CORE, "scheme"), scheme),
                ((*CORE, "dtype"), "bfloat16"),
                ((*CORE, "dropout"), 0.0),
                (("agent", "chain", "trajectories"), trajectories),
                (("batch",), 1),
            ):
                experiment = replace_in(experiment, path, value)
            step = training_step(experiment, episode)
            row = {"trajectories": trajectories, "scheme": scheme, "seconds": None}
            rows.append(row)
            compiled = jax.jit(step.function).lower(step.state, step.batch).compile()
            row["compiled_bytes"] = bytes_of(compiled).total
            if row["compiled_bytes"] > limit:
                row["why"] = "oom"
                continue
            state = jax.jit(step.init)()
            row["seconds"] = seconds_of(partial(compiled, state, example_batch(step)))
            peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
            row["peak_bytes"] = peak if peak != highest else None
            highest = peak
            operations = useful_operations(trajectories * episode.steps * 4)
            row["operations_per_second"] = operations / row["seconds"]
    return rows


def decoding(smoke: bool) -> list[dict]:
    """Time one new token against the filled part of a bfloat16 cache."""
    config = CoreConfig(layers=3, width=128, dtype="bfloat16")
    params = init_stack(jax.random.key(0), config)
    capacity, rows = 4096 if smoke else 262_144, []
    for filled in (capacity // 8, capacity // 2, capacity - 1):
        cache = pretend_filled(
            init_cache(config, batch=1, capacity=capacity, dtype="bfloat16"), filled
        )
        step = jax.jit(partial(extend_stack, config=config))
        x_BMD = jnp.ones((1, 1, config.width))
        seconds = seconds_of(lambda step=step, x=x_BMD, c=cache: step(params, x, c)[0])
        rows.append({"filled": filled, "seconds": seconds})
    return rows


def main() -> None:
    """Run all parts and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small shapes, on any device")
    parser.add_argument("--out", type=Path, default=Path("experiments/results/gpu_check.json"))
    asked = parser.parse_args()
    device = jax.devices()[0]
    if device.platform == "cpu" and not asked.smoke:
        raise SystemExit("no GPU here: --smoke runs small shapes on a CPU")
    size = 1024 if asked.smoke else 8192
    a = jnp.ones((size, size), jnp.bfloat16)
    peak = 2 * size**3 / seconds_of(partial(jax.jit(jnp.dot), a, a))
    document = {
        **made_by("jax", "jaxlib"),
        "device": device.device_kind,
        "peak_operations_per_second": peak,
        "numbers": numbers(asked.smoke),
        "training_steps": bytes_and_steps(asked.smoke),
        "decoding": decoding(asked.smoke),
    }
    write_json(asked.out, document)
    print(asked.out.read_text())


if __name__ == "__main__":
    main()
