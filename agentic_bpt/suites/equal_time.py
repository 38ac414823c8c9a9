"""A second set of cells that train for equal time, by the seconds of an update of each N."""

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, flat, read_experiment, write_experiment
from agentic_bpt.planner.prediction import answer_of
from agentic_bpt.reports.results import write_json
from agentic_bpt.suites.cell import Cell
from agentic_bpt.suites.runner import CELL_ENVIRONMENT, cores_of_workers

FILE_NAME = "update-seconds.json"
ROUNDS = 10
"""In each an update of every N is timed. The least of them counts: other work only ever adds."""
TIMEOUT_SECONDS = 24 * 3600
"""Timing is as slow as training."""


def equal_time_cells(cells: Sequence[Cell], seconds: Mapping[str, float]) -> list[Cell]:
    """Compose the cells again with as many updates as the slowest N has time for.

    Updates are part of a folder's name: with another slowest N they are others. The slowest N
    itself is the cell that it was, in its folder.

    Args:
        cells: of AT without a prompt.
        seconds: of an update, by column.
    """
    longest = max(cell.experiment.loop.steps * seconds[cell.column] for cell in cells)
    again = []
    for cell in cells:
        steps = round(longest / seconds[cell.column])
        same = steps == cell.experiment.loop.steps
        loop = dataclasses.replace(cell.experiment.loop, steps=steps)
        name = f"{cell.column}-{steps}-updates-seed{cell.experiment.seed}"
        again.append(
            dataclasses.replace(
                cell,
                column=f"{cell.column}-time",
                experiment=dataclasses.replace(cell.experiment, loop=loop),
                folder=cell.folder if same else cell.folder.with_name(name),
            )
        )
    return again


def update_seconds(cells: Sequence[Cell], folder: Path, *, workers: int) -> dict[str, float]:
    """Give the seconds of an update by column; what was timed once is kept in `folder`.

    Those that are missing are timed beside the slowest that is there, and in its measure, in a
    process with the cores of a cell.

    Raises:
        InputError: they cannot be timed, as where one has too little memory.
    """
    experiments = {cell.column: cell.experiment for cell in cells}  # a seed changes no time
    path = folder / FILE_NAME
    timed: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    kept = {
        column: timed[column]["seconds"]
        for column, experiment in experiments.items()
        if column in timed and timed[column]["experiment"] == _timed_fields(experiment)
    }
    missing = [column for column in experiments if column not in kept]
    if missing:
        slowest = max(kept, key=lambda column: kept[column], default=None)
        beside = [slowest] if slowest is not None else []
        asked = [experiments[column] for column in (*missing, *beside)]
        found = _timed_apart(asked, cores_of_workers(workers)[0])
        measure = kept[slowest] / found[-1] if slowest is not None else 1.0
        kept |= {name: value * measure for name, value in zip(missing, found, strict=False)}
        timed |= {
            column: {"experiment": _timed_fields(experiments[column]), "seconds": kept[column]}
            for column in missing
        }
        write_json(path, timed)
    return kept


def _timed_fields(experiment: Experiment) -> dict[str, Any]:
    """Give the fields that the time of an update depends on."""
    apart = ("store", "seed", "loop.")
    return {name: v for name, v in flat(experiment).items() if not name.startswith(apart)}


def _timed_apart(experiments: Sequence[Experiment], cores: list[int]) -> list[float]:
    """Time updates in another process: this one must leave an accelerator's memory to cells."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{number}" for number in range(len(experiments))]
        for name, experiment in zip(names, experiments, strict=True):
            write_experiment(experiment, Path(name))
        command = [sys.executable, "-m", __name__, ",".join(map(str, cores)), *names]
        answer = answer_of(command, CELL_ENVIRONMENT, timeout=TIMEOUT_SECONDS)
    if isinstance(answer, str):
        raise InputError(f"--equal-time: an update cannot be timed; got {answer}")
    return answer["seconds"]


def time_updates(experiments: Sequence[Experiment]) -> list[float]:
    """Time an update of each experiment in turn, so that all meet the same other work."""
    import jax

    from agentic_bpt.datasets.store import Store
    from agentic_bpt.run import make_training

    running = []
    for experiment in experiments:
        with Store.open(Path(experiment.store)) as store:
            training = make_training(experiment, store)
            batch = training.batch_at(0)
        step = jax.jit(training.step, donate_argnums=0)
        state, _ = jax.block_until_ready(step(training.state, batch))
        running.append([step, state, batch])
    least = [float("inf")] * len(running)
    for _ in range(ROUNDS):
        for number, (step, state, batch) in enumerate(running):
            start = time.perf_counter()
            running[number][1], _ = jax.block_until_ready(step(state, batch))
            least[number] = min(least[number], time.perf_counter() - start)
    return least


if __name__ == "__main__":
    cores, *folders = sys.argv[1:]
    os.sched_setaffinity(0, map(int, cores.split(",")))
    timed = time_updates([read_experiment(Path(folder)) for folder in folders])
    print(json.dumps({"seconds": timed}))
