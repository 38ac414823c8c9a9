"""One cell of a table: an experiment on one store with one seed, and the file that it ends in.

A cell is a run folder like any other. It is done when its result file is there, made after all
updates, so a stopped or killed suite goes on where it was, and results that were carried here
without their checkpoints count.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation, evaluate_run, is_evaluated, settings_of
from agentic_bpt.experiment import (
    FILE_NAME,
    Experiment,
    difference_from_run,
    read_experiment,
    write_experiment,
)
from agentic_bpt.reports.results import read_result, write_json
from agentic_bpt.run import only_run, train_run

REQUEST = "request.json"
OUT_OF_MEMORY = 3
"""Exit code of a cell that the device had no memory for."""
USER_ERROR = 2
"""Exit code of a cell that cannot be run as it is asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What to train and what to evaluate."""

    task: str
    """Full name of the task."""
    column: str
    """Name of the column, unique among those of the table."""
    experiment: Experiment
    """With store, its data hash and seed."""
    evaluation: Evaluation
    """What is rolled out at the end."""
    folder: Path
    """Of the run; `<workdir>/<task>/<column>-seed<seed>`."""
    shared_with: str | None = None
    """Column whose training this one takes, since both compute the same numbers."""

    @property
    def result(self) -> Path:
        """Name the result file."""
        return self.folder / self.evaluation.file_name()

    @property
    def name(self) -> str:
        """Name the cell in one line."""
        return f"{self.task} {self.column}-seed{self.experiment.seed}"

    @property
    def state_file(self) -> Path:
        """Name the file that says why there is no result."""
        return self.folder / f"cell-{self.column}.json"


class State(NamedTuple):
    """How far a cell is."""

    kind: str
    """`done`, `pending`, `oom` (the device has too little memory) or `failed`."""
    why: str = ""
    """One line for `oom` and `failed`."""


def state_of(cell: Cell) -> State:
    """Look at what is on disk."""
    if is_evaluated(cell.folder, cell.evaluation, steps=cell.experiment.loop.steps):
        return State("done")
    try:
        found = json.loads(cell.state_file.read_text())
        return State(str(found["kind"]), str(found["why"]))
    except (OSError, ValueError, KeyError):
        return State("pending")


def require_own(cells: Sequence[Cell]) -> None:
    """Refuse what another experiment left in the folder of a cell, before it is taken for its own.

    A run says all of its experiment; a result that was carried here without its run says less.

    Raises:
        InputError: the first difference.
    """
    for cell in cells:
        carried = cell.result.exists() and not (cell.folder / FILE_NAME).exists()
        difference = (
            _difference(cell) if carried else difference_from_run(cell.experiment, cell.folder)
        )
        if difference:
            raise InputError(
                f"{cell.folder}: holds another experiment: {difference}; give another --workdir, "
                "or remove it"
            )


def _difference(cell: Cell) -> str | None:
    try:
        there = read_result(cell.result)
    except InputError:
        return None  # of whom it is, nobody knows; the report leaves it out, and says so
    experiment = cell.experiment
    pairs = {
        "task": (there.task, cell.task),
        "method": (there.method, experiment.method),
        "seed": (there.seed, experiment.seed),
        "steps": (there.training["steps"], experiment.loop.steps),
        "settings": (there.settings, settings_of(experiment)),
        "data_hash": (there.dataset.data_hash, experiment.data_hash),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            return f"{name} is {theirs!r} there and {ours!r} here"
    return None


def record(cell: Cell, state: State) -> State:
    """Keep why a cell has no result beside the others' results."""
    write_json(cell.state_file, {"task": cell.task, "column": cell.column, **state._asdict()})
    return state


def write_request(cell: Cell, *, command: str, cores: list[int]) -> None:
    """Leave in the folder of a cell what its process must know."""
    asked = cell.folder / "asked"
    asked.mkdir(parents=True, exist_ok=True)
    write_experiment(cell.experiment, asked)
    request: dict[str, Any] = {"evaluation": cell.evaluation._asdict()}
    write_json(asked / REQUEST, {**request, "command": command, "cores": cores})


def run_requested(folder: Path) -> None:
    """Train and evaluate what `write_request` left in a folder; skip what is done."""
    request = json.loads((folder / "asked" / REQUEST).read_text())
    if request["cores"]:
        os.sched_setaffinity(0, request["cores"])
    evaluation = Evaluation(**request["evaluation"])
    experiment = read_experiment(folder / "asked")
    train_run(experiment, folder)
    with only_run(folder):
        if not is_evaluated(folder, evaluation, steps=experiment.loop.steps):
            evaluate_run(folder, evaluation, command=request["command"])


def main() -> None:
    """Be the process of one cell: its exit code says how it ended, stderr's last line why."""
    import jax

    try:
        run_requested(Path(sys.argv[1]))
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except MemoryError:
        print("the host has no memory left", file=sys.stderr)
        raise SystemExit(OUT_OF_MEMORY) from None
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(str(error).splitlines()[0], file=sys.stderr)
        raise SystemExit(OUT_OF_MEMORY) from None


if __name__ == "__main__":
    main()
