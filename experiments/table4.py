"""Reproduces the paper's Table 4 in small: speed and loss of a byte-level GPT in three schemes.

Command:   python experiments/table4.py      (resumable: what is in the results is not run again)
Text:      the sources of Python's standard library; every 20th file is held out
Time:      about 40 minutes of one core, 16 GB of memory
Expected:  experiments/results/language_model/table4.md: losses of the schemes that differ by less
           than 1e-4; and what the paper does not show, loss against context at equal tokens
"""

import hashlib
import json
import os
import sysconfig
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from language_model import RESULTS, gpt_loss, gpt_step, init_gpt

from agentic_bpt.blockwise.core import SCHEMES, CoreConfig
from agentic_bpt.blockwise.memory import bytes_of
from agentic_bpt.planner.prediction import host_bytes
from agentic_bpt.reports.results import write_json
from agentic_bpt.whole_file import write_whole

LAYERS, WIDTH, HEADS = 3, 128, 2
VOCABULARY = 256
TOKENS_PER_STEP = 8_192
STEPS, VALIDATE_EVERY = 200, 20
SPEED_CONTEXTS = (2_048, 4_096, 8_192, 16_384, 32_768)
SPEED_SECONDS = 5.0
"""A step is timed again until so much time is spent; the fastest counts."""
SAME_LOSS_CONTEXT = 1_024
LOSS_CONTEXTS = (256, 1_024, 4_096)
VALIDATION_BYTES = 2**16
SEED = 0
FILE = RESULTS / "table4.json"


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Read the training and the held-out text, bytes as int32; files are in order of path."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    texts = [path.read_bytes() + b"\0" for path in files]
    held_out = b"".join(text for number, text in enumerate(texts) if number % 20 == 19)
    training = b"".join(text for number, text in enumerate(texts) if number % 20 != 19)
    as_tokens = lambda text: np.frombuffer(text, np.uint8).astype(np.int32)  # noqa: E731
    return as_tokens(training), as_tokens(held_out[: VALIDATION_BYTES + 1])


def core_of(scheme: str) -> CoreConfig:
    """Give the core of the model."""
    return CoreConfig(
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        activation="gelu",
        scheme=scheme,
        engine="portable",
    )


def make_step(scheme: str) -> tuple[Any, Any]:
    """Give the first state, and the function of a training step."""
    core = core_of(scheme)
    schedule = optax.warmup_constant_schedule(0.0, 2e-3, 20)
    optimizer = optax.adamw(schedule)
    params = init_gpt(jax.random.key(SEED), core, VOCABULARY)

    return (params, optimizer.init(params)), jax.jit(gpt_step(core, optimizer), donate_argnums=0)


def batch_at(text: np.ndarray, number: int, context: int) -> np.ndarray:
    """Draw the batch of a step, [B, context + 1]: a function of the seed and its number."""
    generator = np.random.default_rng([SEED, number])
    starts = generator.integers(0, len(text) - context, TOKENS_PER_STEP // context or 1)
    return np.stack([text[start : start + context + 1] for start in starts])


def measure_speed(text: np.ndarray, scheme: str, context: int) -> dict[str, Any]:
    """Time training steps of one sequence, or say that they would not fit."""
    state, step = make_step(scheme)
    tokens_BL = jnp.asarray(text[None, : context + 1])
    compiled = step.lower(state, tokens_BL).compile()
    taken = bytes_of(compiled).total
    row = {"scheme": scheme, "context": context, "bytes": taken, "tokens_per_second": None}
    row["limit"] = host_bytes()
    if taken > row["limit"]:
        return row
    best = spent = 0.0
    while not best or spent < SPEED_SECONDS:
        began = time.perf_counter()
        state, loss = compiled(state, tokens_BL)
        loss.block_until_ready()
        seconds = time.perf_counter() - began
        best, spent = max(best, context / seconds), spent + seconds
    return row | {"tokens_per_second": best}


def train(text: np.ndarray, held_out: np.ndarray, scheme: str, context: int) -> dict[str, Any]:
    """Train at a context length and validate on the held-out text, cut at that length."""
    state, step = make_step(scheme)
    validate = jax.jit(partial(gpt_loss, core=core_of(scheme)))
    count = (len(held_out) - 1) // context
    windows = [held_out[i * context : (i + 1) * context + 1] for i in range(count)]
    batch = max(1, TOKENS_PER_STEP // context)
    losses = {}
    for number in range(STEPS + 1):
        if number % VALIDATE_EVERY == 0:
            parts = [
                validate(state[0], np.stack(windows[i : i + batch]))
                for i in range(0, count - batch + 1, batch)
            ]
            losses[number] = float(np.mean(parts))
            print(f"{scheme}, {context:,}: step {number}, loss {losses[number]:.4f}", flush=True)
        if number < STEPS:
            state, _ = step(state, batch_at(text, number, context))
    return {"scheme": scheme, "context": context, "losses": losses}


def main() -> None:
    """Run what is missing, and write the page."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    text, held_out = corpus()
    known: dict[str, Any] = {
        "command": "python experiments/table4.py",
        "text": f"standard library of Python {sysconfig.get_python_version()}",
        "data_hash": hashlib.sha256(text.tobytes() + held_out.tobytes()).hexdigest(),
        "training_bytes": len(text),
        "seed": SEED,
        "n": 1,
        "model": [LAYERS, WIDTH, HEADS, STEPS, TOKENS_PER_STEP],
        "cores": 1,
        "versions": {name: version(name) for name in ("agentic-bpt", "jax", "optax")},
        "speed": [],
        "loss": [],
    }
    if FILE.exists():
        before = json.loads(FILE.read_text())
        if all(before.get(name) == known[name] for name in known if name not in ("speed", "loss")):
            known = before

    def has(part: str, scheme: str, context: int) -> bool:
        return any(r["scheme"] == scheme and r["context"] == context for r in known[part])

    trainings = [(scheme, SAME_LOSS_CONTEXT) for scheme in SCHEMES]
    trainings += [("blockwise", context) for context in LOSS_CONTEXTS]
    for scheme, context in trainings:
        if not has("loss", scheme, context):
            known["loss"].append(train(text, held_out, scheme, context))
            write_json(FILE, known)
    for context in SPEED_CONTEXTS:
        for scheme in SCHEMES:
            if not has("speed", scheme, context):
                known["speed"].append(measure_speed(text, scheme, context))
                write_json(FILE, known)
    page = "\n".join(lines_of(json.loads(FILE.read_text()))) + "\n"
    write_whole(RESULTS / "table4.md", page.encode())
    print(page)


def lines_of(known: dict[str, Any]) -> list[str]:
    """Write the page."""
    speed = {(row["scheme"], row["context"]): row for row in known["speed"]}
    loss = {(row["scheme"], row["context"]): row["losses"] for row in known["loss"]}
    lines = [
        "# Table 4 in small: a byte-level GPT in three schemes",
        "",
        f"{LAYERS} layers x {WIDTH}, {HEADS} heads, float32, one core, one sequence a step: tokens "
        "a second (compiled bytes where they are more than this machine had free).",
        "",
        f"| context | {' | '.join(SCHEMES)} |",
        "|---:|---:|---:|---:|",
    ]
    for context in SPEED_CONTEXTS:
        cells = []
        for scheme in SCHEMES:
            row = speed[scheme, context]
            rate = row["tokens_per_second"]
            cells.append(f"{rate:,.0f}" if rate else f"oom, {row['bytes'] / 1e9:.0f} GB")
        lines.append(f"| {context:,} | {' | '.join(cells)} |")
    curves = np.array(
        [list(loss[scheme, SAME_LOSS_CONTEXT].values()) for scheme in SCHEMES], np.float64
    )
    lines += [
        "",
        f"Validation loss (nats a byte) at context {SAME_LOSS_CONTEXT:,}, {STEPS} steps of "
        f"{TOKENS_PER_STEP:,} tokens: {curves[0, 0]:.3f} at the start, "
        + ", ".join(f"{end:.6f} {name}" for name, end in zip(SCHEMES, curves[:, -1], strict=True))
        + f" at the end; the largest difference between schemes at any of {curves.shape[1]} logged "
        f"steps is {np.ptp(curves, axis=0).max():.1e}.",
        "",
        "Loss against context at equal tokens (blockwise, same text, windows of the context):",
        "",
        "| context | validation loss |",
        "|---:|---:|",
        *(
            f"| {context:,} | {list(loss['blockwise', context].values())[-1]:.4f} |"
            for context in LOSS_CONTEXTS
        ),
        "",
        f"Command: `{known['command']}`; seed {known['seed']}, n = {known['n']}; text: "
        f"{known['text']}, {known['training_bytes']:,} bytes, hash `{known['data_hash']}`; "
        f"versions {known['versions']}.",
    ]
    return lines


if __name__ == "__main__":
    main()
