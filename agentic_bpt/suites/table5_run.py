"""`agentic-bpt table5`: plan, run what is not done, report."""

import dataclasses
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.made_by import command_line
from agentic_bpt.progress import counting
from agentic_bpt.reports.results import write_json
from agentic_bpt.run import episode_steps
from agentic_bpt.suites.attribution import BOUND, STEPS, scheme_distances
from agentic_bpt.suites.cell import Cell, State, require_own
from agentic_bpt.suites.plan import estimates, print_estimates, runnable, suite_console
from agentic_bpt.suites.runner import leave_memory_to_cells, run_cells
from agentic_bpt.suites.suite_report import SuiteReport, film_cells, write_suite_report
from agentic_bpt.suites.table5 import cells_of, columns_of, preset_named, rows_of

SCHEMES_FILE = "schemes.json"


def run_table5(
    *,
    data: Path,
    workdir: Path,
    preset: str,
    tasks: Sequence[str],
    seeds: int,
    only: Sequence[str],
    episodes: int | None,
    steps: int | None,
    workers: int,
    ray: str | None,
    video: bool,
    strict: bool,
    dry_run: bool,
    device: str | None = None,
) -> bool:
    """Run the cells that are not done, and write the report after every one.

    Gives whether no cell failed; with `strict`, and every result file could be read.

    Raises:
        InputError: a wrong argument, or data that is not fit.
    """
    console = suite_console()
    chosen = preset_named(preset)
    if seeds < 1 or workers < 1:
        raise InputError(f"--seeds and --workers must be at least 1, got {seeds} and {workers}")
    leave_memory_to_cells()
    if device is not None and not dry_run:
        raise InputError(f"--device {device} is asked about only: add --dry-run")
    stores = workdir / "stores"
    with counting("ingest", "episodes") as advance:
        once = list(dict.fromkeys(tasks))
        rows = rows_of(data, once, episodes=episodes, stores=stores, progress=advance)
    cells = cells_of(chosen, rows, seeds=seeds, steps=steps, workdir=workdir)
    require_own(cells)
    selected = selected_cells(cells, only)
    if not selected:
        raise InputError(f"no cell is left to run: look at --data {data}, --tasks and --only")
    timesteps = {row.task: _timesteps(row.store) for row in rows if row.store}
    found = estimates(selected, timesteps, device)
    for row in rows:
        if row.store is None:
            console.print(f"{row.task}: {row.why}")
    print_estimates(found, console)
    if dry_run:
        return True
    fitting = runnable(found)
    prove_alike(fitting, workdir, console)
    cells, fitting = shared_where_proved(cells, workdir), shared_where_proved(fitting, workdir)

    def report() -> SuiteReport:
        return write_suite_report(
            cells,
            rows=rows,
            columns=columns_of(chosen),
            out=workdir / "report",
            command=command_line(),
        )

    def changed(cell: Cell, state: State, left: int) -> None:
        console.print(f"{cell.name}: {state.kind} {state.why}; {left} left")
        report()

    states = run_cells(fitting, workers=workers, ray=ray, changed=changed)
    if video:
        for line in film_cells(fitting):
            console.print(line)
    written = report()
    if written.unreadable:
        console.print(f"{len(written.unreadable)} result files are left out:")
        console.print("\n".join(written.unreadable))
    console.print(f"written: {written.page}")
    failed = any(state.kind == "failed" for state in states.values())
    return not failed and not (strict and written.unreadable)


def _timesteps(store: Path) -> int:
    with Store.open(store) as opened:
        return episode_steps(opened)


def selected_cells(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Give the cells whose names match a pattern, and those whose trainings they share."""

    def wanted(cell: Cell) -> bool:
        return not only or any(fnmatch.fnmatch(cell.name, pattern) for pattern in only)

    shared = {(cell.task, cell.shared_with, cell.experiment.seed) for cell in cells if wanted(cell)}
    return [c for c in cells if wanted(c) or (c.task, c.column, c.experiment.seed) in shared]


def prove_alike(cells: Sequence[Cell], workdir: Path, console: Console) -> None:
    """Train schemes that would share a training for a few steps, task by task; say how it went."""
    first = {cell.task: cell for cell in reversed(cells) if cell.shared_with}
    for task, cell in first.items():
        data = cell.experiment.data_hash
        worst = _worst_distance(task, data, workdir)
        if worst is None:
            distances = scheme_distances(cell.experiment, Path(cell.experiment.store))
            document = {"task": task, "steps": STEPS, "data_hash": data, "distances": distances}
            write_json(workdir / task / SCHEMES_FILE, document)
            worst = max(distances.values())
        verdict = "share one training" if worst <= BOUND else "are trained apart"
        console.print(
            f"{task}: after {STEPS} steps of SGD the schemes are {worst:.1e} of the distance "
            f"moved apart (bound {BOUND:g}): they {verdict}"
        )


def shared_where_proved(cells: Sequence[Cell], workdir: Path) -> list[Cell]:
    """Let a cell have a training of its own where its scheme was not shown to train alike."""
    found = []
    for cell in cells:
        worst = _worst_distance(cell.task, cell.experiment.data_hash, workdir)
        if worst is None or worst > BOUND:
            cell = dataclasses.replace(cell, shared_with=None)
        found.append(cell)
    return found


def _worst_distance(task: str, data_hash: str, workdir: Path) -> float | None:
    """Read how far apart schemes ended on these data; None where it was not measured."""
    path = workdir / task / SCHEMES_FILE
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    if document.get("data_hash") != data_hash:
        return None
    return max(document["distances"].values())
