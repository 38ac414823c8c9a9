"""A second set of cells that train for equal time, by the seconds of an update of each N."""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from agentic_bpt.datasets.store import Store
from agentic_bpt.experiment import Experiment
from agentic_bpt.reports.results import write_json
from agentic_bpt.run import make_training
from agentic_bpt.suites.cell import Cell

FILE_NAME = "update-seconds.json"
ROUNDS = 10
"""In each an update of every N is timed. The least of them counts: other work only ever adds."""


def equal_time_cells(cells: Sequence[Cell], seconds: Mapping[str, float]) -> list[Cell]:
    """Compose the cells again with as many updates as the slowest N has time for.

    Updates are part of a folder's name: with another slowest N they are others. The slowest N
    itself is the cell that it was.

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


def update_seconds(cells: Sequence[Cell], folder: Path) -> dict[str, float]:
    """Give the seconds of an update by column; they are timed once and kept in `folder`."""
    one_each = {cell.column: cell.experiment for cell in cells}
    data_hash = cells[0].experiment.data_hash
    path = folder / FILE_NAME
    if path.exists():
        document = json.loads(path.read_text())
        if document["data_hash"] == data_hash and document["seconds"].keys() == one_each.keys():
            return document["seconds"]
    seconds = dict(zip(one_each, time_updates(list(one_each.values())), strict=True))
    write_json(path, {"data_hash": data_hash, "rounds": ROUNDS, "seconds": seconds})
    return seconds


def time_updates(experiments: Sequence[Experiment]) -> list[float]:
    """Time an update of each experiment in turn, so that all meet the same other work."""
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
