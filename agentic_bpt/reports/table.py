"""The table of results: a row for each method and settings, seeds pooled, in three renderings."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentic_bpt.evaluation.protocol import (
    FEW_SEEDS,
    FEW_SEEDS_NOTE,
    MIN_CHAINS,
    PROTOCOLS,
    REFERENCE_RETURNS,
    Interval,
    bootstrap_interval,
    interquartile_mean,
    normalized_score,
    summarize,
)
from agentic_bpt.reports.published import CAVEAT, JACO_CAVEAT, published_entry, published_row
from agentic_bpt.reports.results import Condition, Result, check_comparable, exclude_unfinished

STATISTICS = (*PROTOCOLS, "iqm_last")


class Group(NamedTuple):
    """The results of one method with one set of settings: its training seeds."""

    label: str
    results: tuple[Result, ...]

    @property
    def method(self) -> str:
        """Give the method's name."""
        return self.results[0].method

    @property
    def settings(self) -> dict[str, Any]:
        """Give the settings, which all its results share."""
        return self.results[0].settings

    @property
    def returns(self) -> np.ndarray:
        """Give the returns under the target that the table shows: [seeds, chains, trajectories]."""
        return np.stack([result.main.returns for result in self.results])


class Row(NamedTuple):
    """One row of numbers; the dataset's rows hold some of `STATISTICS` only."""

    kind: str  # "method", "random" or "dataset"
    label: str
    statistics: dict[str, Interval]
    method: str = ""
    settings: dict[str, Any] | None = None
    seeds: tuple[int, ...] = ()
    target_multiplier: float | None = None
    target_return: float | None = None
    published: float | str | None = None

    @property
    def seeds_text(self) -> str:
        """Say the number of training seeds, so that no interval of one is taken for several."""
        if self.kind != "method":
            return "-"
        return "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"


class ResultsTable(NamedTuple):
    """All rows of one task, and what must be said with them."""

    task: str
    action_repeat: int
    trajectories: int
    chains: int
    rows: tuple[Row, ...]
    target_rows: tuple[Row, ...]  # one a method and target; empty if all have one target only
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def group_results(results: Sequence[Result]) -> list[Group]:
    """Pool the seeds of each method and settings; the label names the settings that differ."""
    by_key: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_key.setdefault(result.row_key, []).append(result)
    groups = [Group(method, tuple(found)) for (method, _), found in by_key.items()]
    return [group._replace(label=_label(group, groups)) for group in groups]


def _label(group: Group, groups: Sequence[Group]) -> str:
    alike = [other.settings for other in groups if other.method == group.method]
    differing = [
        f"{name}={value}"
        for name, value in group.settings.items()
        if any(name not in settings or settings[name] != value for settings in alike)
    ]
    return f"{group.method} ({', '.join(differing)})" if differing else group.method


def random_returns(results: Sequence[Result]) -> np.ndarray:
    """Give the random policy's returns [1, chains, trajectories]: no rollout counts twice.

    It has no training, so results of the same evaluation seed repeat the same rollouts.
    """
    unlike = {result.random_returns.tobytes(): result.random_returns for result in results}
    return np.concatenate(list(unlike.values()))[None]


def _statistics(returns_SCN: np.ndarray) -> dict[str, Interval]:
    last_SC = returns_SCN[..., -1]
    return {
        **summarize(returns_SCN),
        "iqm_last": bootstrap_interval(last_SC, interquartile_mean),
    }


def build_table(results: Sequence[Result]) -> ResultsTable:
    """Build the table of results that belong together, in the order given.

    Raises:
        InputError: As `check_comparable` and `exclude_unfinished`.
    """
    check_comparable(results)
    kept, excluded = exclude_unfinished(results)
    first = kept[0]
    groups = group_results(kept)
    rows = [_method_row(group, group.results[0].main) for group in groups]
    rows.append(Row("random", "random policy", _statistics(random_returns(kept))))
    data = first.dataset
    for label, statistic, value in (
        ("dataset: mean", "mean", data.mean),
        ("dataset: best tenth, mean", "mean", data.best_tenth_mean),
        ("dataset: best", "max", data.best),
    ):
        rows.append(Row("dataset", label, {statistic: Interval(value, None, None)}))
    return ResultsTable(
        task=first.task,
        action_repeat=first.action_repeat,
        trajectories=first.protocol.trajectories,
        chains=first.protocol.chains,
        rows=tuple(rows),
        target_rows=tuple(_target_rows(groups)),
        warnings=tuple(warnings_of(groups, excluded)),
        notes=tuple(_notes(first, rows)),
    )


def _method_row(group: Group, condition: Condition) -> Row:
    """Pool the seeds that were evaluated under this condition's target multiplier."""
    pooled = [
        (result, found)
        for result in group.results
        for found in result.conditions
        if found.target_multiplier == condition.target_multiplier
    ]
    targets = [found.target_return for _, found in pooled if found.target_return is not None]
    return Row(
        kind="method",
        label=group.label,
        statistics=_statistics(np.stack([found.returns for _, found in pooled])),
        method=group.method,
        settings=group.settings,
        seeds=tuple(result.seed for result, _ in pooled),
        target_multiplier=condition.target_multiplier if targets else None,
        target_return=float(np.mean(targets)) if targets else None,
        published=published_entry(group.results[0].task, group.method, group.settings),
    )


def _target_rows(groups: Sequence[Group]) -> list[Row]:
    rows = []
    for group in groups:
        conditions = {
            condition.target_multiplier: condition
            for result in group.results
            for condition in result.conditions
            if condition.target_multiplier is not None and condition.target_return is not None
        }
        if len(conditions) > 1:
            rows += [
                _method_row(group, conditions[multiplier]) for multiplier in sorted(conditions)
            ]
    return rows


def warnings_of(groups: Sequence[Group], excluded: Sequence[Result]) -> list[str]:
    """Say what a reader must know before the numbers; without groups, what was left out."""
    warnings = []
    chains = groups[0].results[0].protocol.chains if groups else MIN_CHAINS
    if chains < MIN_CHAINS:
        warnings.append(
            f"{chains} chain{'s' if chains > 1 else ''} a run: too few for the intervals to be "
            f"believed; evaluate with {MIN_CHAINS} or more."
        )
    for group in groups:
        steps = {str(result.training.get("steps", "unknown")) for result in group.results}
        if len(steps) > 1:
            warnings.append(
                f"{group.label}: the seeds were trained for unlike numbers of steps "
                f"({', '.join(sorted(steps))})."
            )
    warnings += [
        f"left out, since returns in it are not finite: {result.method}, seed {result.seed} "
        f"({result.path})."
        for result in excluded
    ]
    return warnings


def _notes(first: Result, rows: Sequence[Row]) -> list[str]:
    notes = []
    if any(row.kind == "method" and len(row.seeds) == 1 for row in rows):
        notes.append(
            "1 seed: the interval is over the chains of that one training, not over trainings; "
            "another seed may lie outside it."
        )
    if any(row.kind == "method" and 1 < len(row.seeds) < FEW_SEEDS for row in rows):
        notes.append(FEW_SEEDS_NOTE)
    random = next(row for row in rows if row.kind == "random").statistics
    notes.append(
        f"Max of n rewards luck too: it takes the random policy from {random['mean'].value:.1f} to "
        f"{random['max'].value:.1f}. Read it beside first, last and mean."
    )
    if first.task in REFERENCE_RETURNS:
        low, high = REFERENCE_RETURNS[first.task]
        name = "the bound" if first.task.startswith("jaco_") else "TD-MPC2 online, 4M steps"
        repeat = " measured at action repeat 1" if first.action_repeat != 1 else ""
        notes.append(
            f"In parentheses the normalised score: 0 is a random policy ({low:g}), 100 is {name} "
            f"({high:g}){repeat}."
        )
    published = published_row(first.task)
    if published:
        entries = ", ".join(f"{column} {entry}" for column, entry in published.items())
        jaco = f" {JACO_CAVEAT}" if first.task.startswith("jaco_") else ""
        notes.append(f"Published: {entries}. {CAVEAT}{jaco}")
    return notes


def one_decimal(value: float) -> str:
    """Write a number as the tables do."""
    return f"{round(value, 1) + 0.0:.1f}"  # + 0.0: no "-0.0"


def _cell(row: Row, statistic: str, task: str, join: str) -> str:
    """Write "return (score)" and "[low, high]", joined by a space or a line break."""
    if statistic not in row.statistics:
        return "-"
    interval = row.statistics[statistic]
    score = normalized_score(task, interval.value)
    parts = [one_decimal(interval.value)]
    if score is not None:
        parts[0] += f" ({one_decimal(score)})"
    if interval.low is not None and interval.high is not None:
        parts.append(f"[{one_decimal(interval.low)}, {one_decimal(interval.high)}]")
    elif row.kind != "dataset":
        parts.append("[no interval]")
    return join.join(parts)


def grids(table: ResultsTable, join: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """Lay out each section as (title, header, rows of text), parts of a cell joined by `join`."""
    n = table.trajectories
    has_published = any(row.published is not None for row in table.rows)
    header = ["method", "seeds", "first", "last", "mean", f"max of {n}", "IQM of last"]
    rows = [
        [row.label, row.seeds_text, *[_cell(row, s, table.task, join) for s in STATISTICS]]
        + (["-" if row.published is None else str(row.published)] if has_published else [])
        for row in table.rows
    ]
    title = (
        f"{table.task}: return, {table.chains} chain{'s' if table.chains > 1 else ''} of n = {n} "
        "a run [95 % bootstrap interval]"
    )
    sections = [(title, header + [f"published{join}(order only)"] * has_published, rows)]
    if table.target_rows:
        target_header = ["method", "target return", "seeds", "last", f"max of {n}"]
        target_rows = [
            [
                row.label,
                f"{row.target_multiplier:g} x = {row.target_return:.1f}",
                row.seeds_text,
                _cell(row, "last", table.task, join),
                _cell(row, "max", table.task, join),
            ]
            for row in table.target_rows
        ]
        sections.append(("How the result moves with the target return", target_header, target_rows))
    return sections


def render_markdown(table: ResultsTable) -> str:
    """Write the sections as Markdown tables, warnings before and notes after them."""
    parts = []
    for title, header, rows in grids(table, " "):
        escaped = [[cell.replace("|", "\\|") for cell in line] for line in [header, *rows]]
        lines = [f"| {' | '.join(line)} |" for line in escaped]
        lines.insert(1, "|---|" + "---:|" * (len(header) - 1))
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    parts[:0] = [f"**Warning:** {warning}" for warning in table.warnings]
    parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def print_table(table: ResultsTable, console: Console) -> None:
    """Print the sections to a terminal, values above their intervals."""
    for warning in table.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    for title, header, rows in grids(table, "\n"):
        # Text, not str: rich would read "[...]" in a label as markup and drop it.
        grid = Table(
            title=Text(title),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 0, 1, 0),
        )
        for number, name in enumerate(header):
            # Folded where it is too narrow: an ellipsis would take digits away.
            side = "left" if number == 0 else "right"
            grid.add_column(Text(name), justify=side, overflow="fold")
        for label, *cells in rows:
            # The settings below the method leave the width to the numbers.
            grid.add_row(Text(label.replace(" (", "\n(").replace(", ", ",\n")), *map(Text, cells))
        console.print(grid)
    for note in table.notes:
        console.print(Text(f"- {note}", style="dim"))


def render_plain(table: ResultsTable, *, width: int = 120) -> str:
    """Give what `print_table` prints, without colour, for a pipe or a file."""
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width, color_system=None, force_terminal=False))
    return stream.getvalue()


def render_csv(table: ResultsTable) -> str:
    """Write one line a row and target, every statistic with its ends and its normalised score."""
    header = ["task", "action_repeat", "kind", "label", "method", "settings", "seeds"]
    header += ["chains", "trajectories", "target_multiplier", "target_return"]
    for statistic in STATISTICS:
        header += [statistic, f"{statistic}_low", f"{statistic}_high", f"{statistic}_score"]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*header, "published"], restval="", lineterminator="\n")
    writer.writeheader()
    others = [row for row in table.target_rows if row.target_multiplier != 1.0]
    for row in (*table.rows, *others):
        record: dict[str, Any] = {
            "task": table.task,
            "action_repeat": table.action_repeat,
            "kind": row.kind,
            "label": row.label,
            "method": row.method,
            "settings": "" if row.settings is None else json.dumps(row.settings, sort_keys=True),
            "seeds": len(row.seeds) if row.kind == "method" else "",
            "chains": "" if row.kind == "dataset" else table.chains,
            "trajectories": "" if row.kind == "dataset" else table.trajectories,
            "target_multiplier": row.target_multiplier,
            "target_return": row.target_return,
            "published": row.published,
        }
        for statistic, interval in row.statistics.items():
            record[statistic] = interval.value
            record[f"{statistic}_low"] = interval.low
            record[f"{statistic}_high"] = interval.high
            record[f"{statistic}_score"] = normalized_score(table.task, interval.value)
        writer.writerow(record)
    return stream.getvalue()
