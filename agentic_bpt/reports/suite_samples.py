"""What the cells of a suite's table are made of: results sorted by cell, one number a chain."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.protocol import (
    PROTOCOLS,
    Interval,
    bootstrap_interval,
    normalized_score,
    reduce_chains,
)
from agentic_bpt.reports.published import paper_column
from agentic_bpt.reports.results import Result, check_comparable
from agentic_bpt.reports.table import Group, random_returns, warnings_of

Key = tuple[str, str]
"""(name of a row, name of a column)."""
RANDOM = "random"
"""Column of the random policy, whose rollouts every result file holds."""
JACO = "jaco_reach"
"""Row of the mean over the four targets; the paper has one row for them."""
JACO_TARGETS = tuple(
    f"{JACO}_{target}" for target in ("top_left", "top_right", "bottom_left", "bottom_right")
)
NOT_RUN, NOT_FINITE, NOT_ALL = "not run", "not finite", "not all targets"
OOM = "oom"
"""What a reason begins with where the device has too little memory."""


class Samples(NamedTuple):
    """What an interval is made of."""

    seeds: tuple[int, ...]
    """Of the trainings; empty for the random policy, and where unlike trainings were averaged."""
    values: dict[str, np.ndarray]
    """Protocol -> one number a chain, float64 [seeds, chains]."""


class Cells(NamedTuple):
    """Samples by cell, and what else is known of the cells."""

    samples: dict[Key, Samples]
    reasons: dict[Key, str]
    """Why a cell has no samples, or not those of all its trainings."""
    warnings: list[str]


def sort_results(
    results: Sequence[Result],
    tasks: Sequence[str],
    methods: Sequence[str],
) -> dict[Key, list[Result]]:
    """Sort results into cells, the seeds of each ascending.

    Raises:
        InputError: a result of another task or column, or unlike settings in one cell.
    """
    cells: dict[Key, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        column = paper_column(result.method, result.settings)
        for kind, value, known in (("task", result.task, tasks), ("column", column, methods)):
            if value not in known:
                raise InputError(
                    f"{result.path}: its {kind} is not in the table, which has "
                    f"{', '.join(known)}; leave it out, got {value!r}"
                )
        cell = cells.setdefault((result.task, column), [])
        if cell and cell[0].row_key != result.row_key:
            raise InputError(
                f"{result.path}: {column} of {result.task} is set otherwise in {cell[0].path}; "
                f"a cell holds one setting, got {result.settings} and {cell[0].settings}"
            )
        cell.append(result)
    return cells


def measure(
    by_cell: Mapping[Key, Sequence[Result]], tasks: Sequence[str], methods: Sequence[str]
) -> Cells:
    """Turn the results of each cell into samples; a run that is not finite is left out by rule.

    Raises:
        InputError: As `check_comparable`, of the results of one task.
    """
    cells = Cells({}, {}, [])
    for task in tasks:
        groups = [Group(c, tuple(by_cell[task, c])) for c in methods if (task, c) in by_cell]
        results = [result for group in groups for result in group.results]
        if not results:
            continue
        check_comparable(results)
        excluded = [result for result in results if not result.is_finite]
        finite = []
        for group in groups:
            kept = tuple(result for result in group.results if result.is_finite)
            if kept:
                group = Group(group.label, kept)
                seeds = tuple(result.seed for result in kept)
                cells.samples[task, group.label] = _samples(group.returns, seeds)
                finite.append(group)
            else:
                cells.reasons[task, group.label] = NOT_FINITE
        if finite and RANDOM in methods:
            measured = [result for group in finite for result in group.results]
            cells.samples[task, RANDOM] = _samples(random_returns(measured), ())
        cells.warnings.extend(f"{task}: {warning}" for warning in warnings_of(finite, excluded))
    return cells


def _samples(returns_SCN: np.ndarray, seeds: tuple[int, ...]) -> Samples:
    return Samples(seeds, {p: reduce_chains(returns_SCN, p) for p in PROTOCOLS})


def share(cells: Cells, shared: Mapping[Key, str]) -> None:
    """Give cells that compute the same numbers as another column's the samples of that one."""
    for (task, column), source in shared.items():
        if (task, column) in cells.reasons or (task, column) in cells.samples:
            continue
        if (task, source) in cells.samples:
            cells.samples[task, column] = cells.samples[task, source]
        elif (task, source) in cells.reasons:
            cells.reasons[task, column] = cells.reasons[task, source]


def add_jaco(cells: Cells, methods: Sequence[str]) -> None:
    """Add the row of the mean over jaco's targets where all were measured, else why it is not."""
    for column in methods:
        parts = [cells.samples[t, column] for t in JACO_TARGETS if (t, column) in cells.samples]
        whys = {cells.reasons.get((t, column), NOT_RUN) for t in JACO_TARGETS}
        if len(parts) == len(JACO_TARGETS):
            cells.samples[JACO, column] = mean_of(parts)
        else:
            cells.reasons[JACO, column] = whys.pop() if not parts and len(whys) == 1 else NOT_ALL


def mean_of(parts: Sequence[Samples]) -> Samples:
    """Average the numbers of several rows, chain by chain and seed by seed.

    Where seeds or chains are not the same in all, there is no such pairing: only the mean of the
    rows' means is left, a single number, which has no interval.
    """
    alike = {(part.seeds, part.values[PROTOCOLS[0]].shape) for part in parts}
    if len(alike) > 1:
        means = {p: np.mean([part.values[p].mean() for part in parts]) for p in PROTOCOLS}
        return Samples((), {p: np.full((1, 1), mean) for p, mean in means.items()})
    means = {p: np.mean([part.values[p] for part in parts], axis=0) for p in PROTOCOLS}
    return Samples(parts[0].seeds, means)


def scored(samples: Samples, task: str) -> Samples:
    """Normalise every number by the reference of a task, which must have one."""
    score = np.vectorize(lambda raw: normalized_score(task, raw), otypes=[np.float64])
    return Samples(samples.seeds, {p: score(values) for p, values in samples.values.items()})


def intervals_of(samples: Samples) -> dict[str, Interval]:
    """Give the mean under each protocol; of one training without an interval.

    Over the chains of one training there is an interval, but it says nothing of another training,
    and beside those of several it would be read as if it did.
    """
    found = {p: bootstrap_interval(values_SC) for p, values_SC in samples.values.items()}
    if len(samples.seeds) == 1:
        return {p: Interval(interval.value, None, None) for p, interval in found.items()}
    return found
