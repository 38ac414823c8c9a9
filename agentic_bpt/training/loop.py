"""The training loop: batches ahead of time, metrics, checkpoints, and a stop that loses nothing."""

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from agentic_bpt.errors import InputError
from agentic_bpt.training.checkpoint import Checkpoints
from agentic_bpt.training.metrics import MetricsWriter
from agentic_bpt.training.step import TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How long to train and how often to say so."""

    steps: int = 2000
    """Updates in all."""
    log_every_steps: int = 20
    """Updates between two lines of metrics."""
    checkpoint_every_steps: int = 200
    """Updates between two checkpoints; the last state is always one."""

    def __post_init__(self):
        """Refuse empty runs."""
        for name in ("steps", "log_every_steps", "checkpoint_every_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Hook:
    """Something to measure now and then."""

    every_steps: int
    measure: Callable[[TrainState], dict[str, float]]


def train(
    state: TrainState,
    *,
    config: LoopConfig,
    step_function: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
    batch_at: Callable[[int], Any],
    tokens_per_batch: int,
    checkpoints: Checkpoints,
    saved_beside: dict[str, Any],
    metrics: MetricsWriter | None,
    hooks: Sequence[Hook] = (),
    label: str = "train",
) -> TrainState:
    """Train from `state` to `config.steps` updates; step s uses the batch `batch_at(s)`.

    Ctrl-C ends the update, writes a checkpoint and then stops; a second one stops at once.
    `saved_beside` goes into every checkpoint. Without `metrics` nothing is said: another process of
    the same run says it.

    Raises:
        InputError: the loss or its gradient is not finite; the step and the last good checkpoint
            are named.
        KeyboardInterrupt: after the checkpoint, on Ctrl-C.
    """
    step = int(state.step)
    clock = _Clock(tokens_per_batch)

    def save(state: TrainState) -> None:
        checkpoints.save(int(state.step), {"state": state, **saved_beside})

    def tell(step: int, values: dict[str, float]) -> None:
        if metrics:
            metrics.write(step, values)

    with (
        ThreadPoolExecutor(1) as reader,
        _progress(quiet=metrics is None) as progress,
        _interrupt_held() as interrupted,
    ):
        bar = progress.add_task(label, total=config.steps, completed=step, note="")
        future = reader.submit(batch_at, step) if step < config.steps else None
        while future is not None:
            with clock.waiting():
                batch = future.result()
            future = reader.submit(batch_at, step + 1) if step + 1 < config.steps else None
            state, values = step_function(state, batch)
            step += 1
            loss = float(values["loss"])
            _require_finite(values, step, checkpoints)
            clock.count()
            progress.update(bar, completed=step, note=f"loss {loss:.4f}  {clock.rate()}")
            if step % config.log_every_steps == 0 or step == config.steps:
                numbers = {name: float(value) for name, value in values.items()}
                tell(step, {**numbers, **clock.read()})
                if metrics and not progress.console.is_terminal:  # a log file: lines, no bar
                    print(f"{label}: step {step}/{config.steps}, loss {loss:.4f}", flush=True)
            for hook in hooks:
                if step % hook.every_steps == 0 or step == config.steps:
                    tell(step, hook.measure(state))
                    clock.restart()
            stop = interrupted()
            if step % config.checkpoint_every_steps == 0 or step == config.steps or stop:
                save(state)
                clock.restart()
            if stop:
                break
    if interrupted():
        raise KeyboardInterrupt
    return state


@contextlib.contextmanager
def _interrupt_held() -> Iterator[Callable[[], bool]]:
    """Hold a first Ctrl-C back, and say whether there was one; a second one is as ever.

    Raised in the middle of an update it would find the old state given away and the new one not
    there yet, or a checkpoint half written.
    """
    asked = False

    def hold(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        print("stopping after this update; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.getsignal(signal.SIGINT)
    held = threading.current_thread() is threading.main_thread() and callable(before)
    if held:
        signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: asked
    finally:
        if held:
            signal.signal(signal.SIGINT, before)


def _require_finite(values: Mapping[str, Any], step: int, checkpoints: Checkpoints) -> None:
    """Refuse a step whose loss is not finite, or whose gradient is not: the next loss would be."""
    for name in ("loss", "gradient_norm"):
        value = float(values.get(name, 0.0))
        if not np.isfinite(value):
            good = checkpoints.latest_step
            where = f"{checkpoints.folder}/{good}" if good is not None else "none was written yet"
            raise InputError(
                f"the {name.replace('_', ' ')} is {value} at step {step}; lower --learning-rate; "
                f"last good checkpoint: {where}"
            )


class _Clock:
    """Tokens per second, and the share of time spent waiting for data, since the last reading."""

    def __init__(self, tokens_per_batch: int):
        self._tokens = tokens_per_batch
        self.restart()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this context as waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def count(self) -> None:
        """Count one update."""
        self._steps += 1

    def rate(self) -> str:
        """Say the tokens per second since the last reading."""
        return f"{self._per_second():,.0f} tokens/s"

    def read(self) -> dict[str, float]:
        """Give tokens/s and the data share since the last reading, and begin anew."""
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        values = {
            "tokens_per_second": self._per_second(),
            "data_wait_share": self._waited / elapsed,
        }
        self.restart()
        return values

    def restart(self) -> None:
        """Begin anew, so that saving and measuring do not count as training."""
        self._steps, self._waited = 0, 0.0
        self._start = time.perf_counter()

    def _per_second(self) -> float:
        return self._steps * self._tokens / max(time.perf_counter() - self._start, 1e-9)


def _progress(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=quiet,
    )
