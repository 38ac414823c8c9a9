"""`agentic-bpt compare-trajectories`: run the cells of the curve, and report it."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.protocol import FEW_SEEDS, FEW_SEEDS_NOTE
from agentic_bpt.made_by import command_line
from agentic_bpt.reports.published import paper_column
from agentic_bpt.reports.results import Result, provenance, read_result
from agentic_bpt.reports.trajectory_count import (
    Comparison,
    Cost,
    Series,
    chain_lines,
    cost_lines,
    curve_png,
    grid_csv,
    grid_lines,
)
from agentic_bpt.run import episode_steps
from agentic_bpt.suites.cell import Cell, State, require_own, state_of
from agentic_bpt.suites.equal_time import equal_time_cells, update_seconds
from agentic_bpt.suites.plan import estimates, print_estimates, runnable, suite_console
from agentic_bpt.suites.runner import leave_memory_to_cells, run_cells
from agentic_bpt.suites.table5 import preset_named
from agentic_bpt.suites.trajectory_count import (
    YARDSTICKS,
    Grid,
    column_of,
    grid_cells,
    plain_cells,
)
from agentic_bpt.whole_file import write_whole


def run_trajectory_count(
    *,
    store: Path,
    workdir: Path,
    preset: str,
    trajectories: Sequence[int],
    test: Sequence[int],
    prompts: Sequence[int],
    seeds: int,
    steps: int | None,
    equal_time: bool,
    workers: int,
    ray: str | None,
    dry_run: bool,
) -> bool:
    """Run the cells that are not done, then report; gives whether none failed.

    Raises:
        InputError: a wrong argument, or a store with too few episodes.
    """
    if not (trajectories and test and prompts):
        raise InputError("--trajectories, --test and --prompts need a number each")
    if min(*trajectories, *test, seeds, workers) < 1:
        raise InputError("--trajectories, --test, --seeds and --workers must be at least 1")
    if equal_time and 0 not in prompts:
        raise InputError("--equal-time is about chains without a prompt: add 0 to --prompts")
    if equal_time and ray is not None:
        raise InputError("--equal-time times updates on this machine: leave out --ray")
    leave_memory_to_cells()
    console = suite_console()
    with Store.open(store) as opened:
        task, timesteps = opened.task, episode_steps(opened)
    counts, tests = sorted(set(trajectories)), sorted(set(test))
    grid = Grid(task, store, tuple(counts), tuple(tests), tuple(sorted(set(prompts))), seeds)
    chosen = preset_named(preset)
    cells = grid_cells(grid, chosen, steps=steps, workdir=workdir)
    require_own(cells)
    found = estimates(cells, {task: timesteps})
    print_estimates(found, console)
    if equal_time:
        longest = max(one.training_seconds or 0.0 for one in found)
        hours = longest * len(counts) * seeds / 3600
        console.print(f"--equal-time trains each N once more: at most {hours:,.1f} hours")
    if dry_run:
        return True
    fitting = runnable(found)
    seconds: dict[str, float] = {}
    out = workdir / "report" / task
    if equal_time and (plain := plain_cells(fitting)):
        seconds = update_seconds(plain, workdir / task, workers=workers)
        again = equal_time_cells(plain, seconds)
        require_own(again)
        folders = {cell.folder for cell in cells}
        fitting = [*fitting, *(cell for cell in again if cell.folder not in folders)]
        cells = [*cells, *again]
    costs = Costs({one.cell.column: one.bytes.total for one in found if one.bytes}, seconds)

    def changed(cell: Cell, state: State, left: int) -> None:
        console.print(f"{cell.name}: {state.kind} {state.why}; {left} left")
        write_comparison(grid, cells, costs, out=out)

    states = run_cells(fitting, workers=workers, ray=ray, changed=changed)
    path = write_comparison(grid, cells, costs, out=out)
    if path is None:
        raise InputError(f"{workdir}: no cell of AT is done, so there is no curve to draw")
    console.print(f"written: {path}")
    return all(state.kind != "failed" for state in states.values())


class Costs(NamedTuple):
    """What a training step of each column costs."""

    predicted_bytes: dict[str, int]
    update_seconds: dict[str, float]
    """Timed side by side; empty where equal time was not asked for."""


def write_comparison(grid: Grid, cells: Sequence[Cell], costs: Costs, *, out: Path) -> Path | None:
    """Write trajectory_count.md, .csv and .png of the cells that are done; None without any.

    What is not done, cannot be read or holds returns that are not finite is listed with the reason.
    """
    results: dict[str, list[Result]] = defaultdict(list)
    left_out = []
    for cell in cells:
        try:
            result = _result_of(cell)
        except InputError as error:
            left_out.append(f"- {cell.name}: {error}")
        else:
            results[cell.column].append(result)
    series = []
    suffixes = {"": "equal updates", "-time": "equal time"}
    suffixes |= {f"-prompt{k}": f"equal updates, prompt of {k}" for k in grid.prompts if k}
    for suffix, label in suffixes.items():
        found = {n: results.get(f"{column_of(n).name}{suffix}", []) for n in grid.trajectories}
        found = {n: of for n, of in found.items() if of}
        if found:
            series.append(Series(label, found))
    if not series:
        return None
    marks = {paper_column(name, {}): results[name] for name in YARDSTICKS if results.get(name)}
    plain = {n: results[column_of(n).name] for n in grid.trajectories}
    rows = [_cost(n, of, costs) for n, of in plain.items() if of]
    comparison = Comparison(grid.task, series, grid.test, marks, rows)
    picture = out / "trajectory_count.png"
    write_whole(picture, curve_png(comparison))
    write_whole(out / "trajectory_count.csv", grid_csv(comparison).encode())
    every = list({r.path: r for of in results.values() for r in of}.values())
    lines = [
        f"# {grid.task}: return against the number of trajectories",
        "",
        f"![return against N]({picture.name})",
        "",
        f"Command: `{command_line()}`",
        "",
        "In brackets: 95 % bootstrap intervals over seeds and chains; of one seed over its chains "
        "only, which says nothing of another training."
        + (f" {FEW_SEEDS_NOTE}" if grid.seeds < FEW_SEEDS else ""),
        "",
        *grid_lines(comparison),
        *chain_lines(comparison),
        "**What each N costs** (equal updates)",
        "",
        *cost_lines(comparison),
        "",
        *(["**Left out**", "", *left_out, ""] if left_out else []),
        provenance(every),
    ]
    path = out / "trajectory_count.md"
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return path


def _result_of(cell: Cell) -> Result:
    """Read the result of a cell.

    Raises:
        InputError: there is none that can be shown.
    """
    state = state_of(cell)
    if state.kind != "done":
        raise InputError("not run" if state.kind == "pending" else state.why)
    result = read_result(cell.result)
    if not result.is_finite:
        raise InputError(f"{cell.result}: holds returns that are not finite")
    return result


def _cost(trajectories: int, results: Sequence[Result], costs: Costs) -> Cost:
    column = column_of(trajectories).name
    rates = [result.training["median_tokens_per_second"] for result in results]
    seconds = [result.seconds["model"] + result.seconds["physics"] for result in results]
    return Cost(
        trajectories=trajectories,
        predicted_bytes=costs.predicted_bytes[column],
        update_seconds=costs.update_seconds.get(column),
        tokens_per_second=float(np.mean(rates)),
        updates=results[0].training["steps"],
        evaluation_seconds=float(np.mean(seconds)),
    )
