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
from agentic_bpt.suites.cell import Cell, State
from agentic_bpt.suites.plan import estimates, print_estimates, runnable
from agentic_bpt.suites.runner import run_cells
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
    console = Console(width=None if Console().is_terminal else 130)
    chosen = preset_named(preset)
    if seeds < 1 or workers < 1:
        raise InputError(f"--seeds and --workers must be at least 1, got {seeds} and {workers}")
    if device is not None and not dry_run:
        raise InputError(f"--device {device} is asked about only: add --dry-run")
    stores = workdir / "stores"
    with counting("ingest", "episodes") as advance:
        rows = rows_of(data, tasks, episodes=episodes, stores=stores, progress=advance)
    cells = cells_of(chosen, rows, seeds=seeds, steps=steps, workdir=workdir)
    selected = [c for c in cells if not only or any(fnmatch.fnmatch(c.name, p) for p in only)]
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
    fitting = _shared_where_alike(runnable(found), workdir, console)

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


def _shared_where_alike(cells: Sequence[Cell], workdir: Path, console: Console) -> list[Cell]:
    """Let schemes share a training where a short one proves them alike, task by task."""
    alike = {}
    for cell in cells:
        if cell.shared_with and cell.task not in alike:
            alike[cell.task] = _schemes_alike(cell, workdir / cell.task / SCHEMES_FILE, console)
    return [
        cell if alike.get(cell.task) else dataclasses.replace(cell, shared_with=None)
        for cell in cells
    ]


def _schemes_alike(cell: Cell, path: Path, console: Console) -> bool:
    if path.exists():
        distances = json.loads(path.read_text())["distances"]
    else:
        distances = scheme_distances(cell.experiment, Path(cell.experiment.store))
        write_json(path, {"task": cell.task, "steps": STEPS, "distances": distances})
    worst = max(distances.values())
    verdict = "share one training" if worst <= BOUND else "are trained apart"
    console.print(
        f"{cell.task}: after {STEPS} steps of SGD the schemes are {worst:.1e} of the distance "
        f"moved apart (bound {BOUND:g}): they {verdict}"
    )
    return worst <= BOUND
