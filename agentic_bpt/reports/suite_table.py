"""The table of a suite: tasks as rows, methods as columns, as in Table 5 of arXiv 2305.19370."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.protocol import (
    FEW_SEEDS,
    FEW_SEEDS_NOTE,
    Interval,
    normalized_score,
)
from agentic_bpt.reports.published import CAVEAT, JACO_CAVEAT, published_entry, published_row
from agentic_bpt.reports.results import Result
from agentic_bpt.reports.suite_samples import (
    JACO,
    JACO_TARGETS,
    NOT_RUN,
    OOM,
    Cells,
    Key,
    add_jaco,
    intervals_of,
    mean_of,
    measure,
    scored,
    share,
    sort_results,
)
from agentic_bpt.reports.table import one_decimal

AVERAGE = "average"
"""Row of the averages of normalised scores."""


class SuiteRow(NamedTuple):
    """A task, the mean of jaco's targets, or the average."""

    name: str
    """Full name of a task, `JACO` or `AVERAGE`."""
    label: str
    """What is printed: the name, and an action repeat that is not 1."""


class SuiteCell(NamedTuple):
    """What one column got in one row."""

    returns: dict[str, Interval]
    """Protocol -> raw return; empty in the row `AVERAGE` and where nothing was measured."""
    scores: dict[str, Interval]
    """Protocol -> normalised score; empty for a task without a reference."""
    seeds: int
    """Trainings; 0 for the random policy, and where unlike trainings were averaged."""
    published: float | str | None
    """The paper's entry, for its order only."""
    unmeasured: str
    """Why there are no numbers, such as "not run" or "oom: ..."; empty where there are."""


class SuiteTable(NamedTuple):
    """All rows and columns, and what must be said with them."""

    rows: tuple[SuiteRow, ...]
    columns: tuple[str, ...]
    cells: dict[Key, SuiteCell]
    """(name of the row, column) -> cell; every pair is there."""
    trajectories: int
    """Episodes in a chain, n; 0 without a result."""
    seeds: int
    """The most trainings that a cell has."""
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def build_suite_table(
    results: Sequence[Result],
    *,
    tasks: Sequence[str],
    methods: Sequence[str],
    unmeasured: Mapping[tuple[str, str], str],
    shared: Mapping[Key, str] | None = None,
) -> SuiteTable:
    """Build the table of results of several tasks; a cell pools the training seeds it finds.

    Args:
        results: of any of the tasks, in any order.
        tasks: full names, in the order of the rows. With all four of jaco's targets among them a
            row with their mean follows.
        methods: names of the columns, in order, as `published.paper_column` gives them; `RANDOM`
            is the random policy of the same result files.
        unmeasured: (task, column) -> why it has no result, as "oom: 165 GB of 80 GB"; "not run" is
            said of a cell without a reason.
        shared: (task, column) -> the column whose results it shows, since both compute the same
            numbers; where `unmeasured` names such a cell, that is said instead.

    Raises:
        InputError: a result of another task or column, results of one task that are not
            comparable, unlike numbers of trajectories, or unlike settings in one cell.
    """
    shared = shared or {}
    trajectories = _shared_trajectories(results)
    by_cell = sort_results(results, tasks, methods)
    found = measure(by_cell, tasks, methods)
    found.reasons.update(unmeasured)
    share(found, shared)
    names = _row_names(tasks)
    if JACO in names:
        add_jaco(found, methods)
    cells = {}
    for name in names:
        for column in methods:
            part = found.samples.get((name, column))
            returns = intervals_of(part) if part else {}
            cells[name, column] = SuiteCell(
                returns=returns,
                scores=_scores(name, returns),
                seeds=len(part.seeds) if part else 0,
                published=_published(name, column, names, by_cell),
                unmeasured="" if part else found.reasons.get((name, column), NOT_RUN),
            )
    averages, averaged = _averages(found, names, methods)
    seeds = max((cell.seeds for cell in cells.values()), default=0)
    return SuiteTable(
        rows=(*_rows(names, results), SuiteRow(AVERAGE, AVERAGE)),
        columns=tuple(methods),
        cells=cells | {(AVERAGE, column): cell for column, cell in averages.items()},
        trajectories=trajectories,
        seeds=seeds,
        warnings=tuple(found.warnings),
        notes=(
            *_notes(results, tasks, [*cells.values(), *averages.values()], seeds, shared),
            *_unlike_settings(by_cell, methods),
            *(
                f"{column} on {name}: a training is left out: {why}."
                for (name, column), why in found.reasons.items()
                if (name, column) in found.samples
            ),
            averaged,
        ),
    )


def _shared_trajectories(results: Sequence[Result]) -> int:
    """Give n, which all results must share: max of 4 is not max of 16."""
    found = {result.protocol.trajectories: result.path for result in results}
    if len(found) > 1:
        parts = " but ".join(f"{n} in {path}" for n, path in found.items())
        raise InputError(
            f"protocol.trajectories must be the same in all results; evaluate again, got {parts}"
        )
    return next(iter(found), 0)


def _unlike_settings(by_cell: Mapping[Key, Sequence[Result]], methods: Sequence[str]) -> list[str]:
    """Say which columns are not set alike in all tasks."""
    notes = []
    for column in methods:
        settings = {task: found[0].settings for (task, c), found in by_cell.items() if c == column}
        for name in sorted({name for one in settings.values() for name in one}):
            values = {task: str(one.get(name)) for task, one in settings.items()}
            if len(set(values.values())) > 1:
                said = ", ".join(f"{value} for {task}" for task, value in values.items())
                notes.append(f"{column} is not set alike in all tasks: {name} is {said}.")
    return notes


def _row_names(tasks: Sequence[str]) -> list[str]:
    """Name the rows but the average: the tasks, and jaco's mean after its last target."""
    names = list(tasks)
    if set(JACO_TARGETS) <= set(tasks):
        names.insert(max(map(names.index, JACO_TARGETS)) + 1, JACO)
    return names


def _rows(names: Sequence[str], results: Sequence[Result]) -> list[SuiteRow]:
    repeats = {result.task: result.action_repeat for result in results}
    rows = []
    for name in names:
        repeat = repeats.get(name, 1)
        rows.append(SuiteRow(name, name if repeat == 1 else f"{name} (action repeat {repeat})"))
    return rows


def _scale(name: str) -> str:
    """Name the task whose reference a row is normalised by; jaco's targets share theirs."""
    return JACO_TARGETS[0] if name == JACO else name


def _has_scale(name: str) -> bool:
    return normalized_score(_scale(name), 0.0) is not None


def _scores(name: str, returns: Mapping[str, Interval]) -> dict[str, Interval]:
    """Normalise intervals end by end, which keeps their order; empty without a reference."""
    score = partial(normalized_score, _scale(name))
    return {
        protocol: Interval(value, *(None if end is None else score(end) for end in interval[1:]))
        for protocol, interval in returns.items()
        if (value := score(interval.value)) is not None
    }


def _averages(
    found: Cells, names: Sequence[str], methods: Sequence[str]
) -> tuple[dict[str, SuiteCell], str]:
    """Average the scores over all measured tasks, and say which these are.

    Jaco's targets count as one task where their mean is a row. A column without a number on one of
    them, as where it did not fit the device, has no average, and takes no task from the others'.
    """
    units = [n for n in names if _has_scale(n) and not (JACO in names and n in JACO_TARGETS)]
    measured = [u for u in units if any((u, column) in found.samples for column in methods)]
    cells = {}
    for column in methods:
        oom = any(found.reasons.get((unit, column), "").startswith(OOM) for unit in units)
        cells[column] = SuiteCell({}, {}, 0, None, OOM if oom else "-")
        if measured and all((unit, column) in found.samples for unit in measured):
            parts = [scored(found.samples[unit, column], _scale(unit)) for unit in measured]
            mean = mean_of(parts)
            cells[column] = SuiteCell({}, intervals_of(mean), len(mean.seeds), None, "")
    over = f"{len(measured)} of {len(units)}: {', '.join(measured)}" if measured else "none"
    note = (
        f"Average: of the normalised scores over the tasks that were run ({over}), of the methods "
        "that have them all."
    )
    return cells, note


def _published(
    name: str, column: str, names: Sequence[str], by_cell: Mapping[Key, Sequence[Result]]
) -> float | str | None:
    """Find the paper's entry by a result's settings, or by the name of a column without results."""
    if JACO in names and name in JACO_TARGETS:
        return None  # the paper's one number stands in the row of the mean
    for (_, found), results in by_cell.items():
        if found == column:
            return published_entry(name, results[0].method, results[0].settings)
    return (published_row(name) or {}).get(column)


def _notes(
    results: Sequence[Result],
    tasks: Sequence[str],
    cells: Sequence[SuiteCell],
    seeds: int,
    shared: Mapping[Key, str],
) -> list[str]:
    notes = [
        "Each cell: return [95 % bootstrap interval over seeds and chains] (normalised score), and "
        "the paper's number for its order only. Score 0 is a random policy, 100 is TD-MPC2 trained "
        "online for 4M steps, or for jaco its bound of 250, all at action repeat 1: at another, a "
        "random policy does not score 0.",
        "Max of n rewards luck too: read it beside the random policy and the other tables.",
    ]
    if seeds:
        notes.append(f"Trainings (seeds) a cell: {seeds}, where it does not say n = fewer.")
    if any(cell.seeds == 1 for cell in cells):
        notes.append("n = 1: one training, so no interval; another may give another number.")
    if any(1 < cell.seeds < FEW_SEEDS for cell in cells):
        notes.append(FEW_SEEDS_NOTE)
    notes += [
        f"{column} takes the trainings of {source}: both compute the same numbers."
        for column, source in {column: source for (_, column), source in shared.items()}.items()
    ]
    for task in tasks:
        data = next((result.dataset for result in results if result.task == task), None)
        if data:
            notes.append(
                f"Data of {task}: {len(data.returns)} training episodes, mean "
                f"{one_decimal(data.mean)}, best tenth {one_decimal(data.best_tenth_mean)}, best "
                f"{one_decimal(data.best)}."
            )
    if any(cell.published is not None for cell in cells):
        jaco = any(task.startswith(JACO) for task in tasks)
        notes.append(f"{CAVEAT} {JACO_CAVEAT}" if jaco else CAVEAT)
    return notes
