"""Return against the number of trajectories N: the grid, the curve, and what each N costs."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentic_bpt.evaluation.protocol import Interval, along_the_chain, bootstrap_interval
from agentic_bpt.reports.plots import COLORS, DOTS_PER_INCH, INK, MARKERS, figure_png, tidy
from agentic_bpt.reports.results import Result
from agentic_bpt.reports.table import Group

STATISTICS = ("last", "mean")
"""Of the n episodes of a chain: the last one's return, and the mean of all."""


class Series(NamedTuple):
    """Results that differ in N (and in seed) only."""

    label: str
    """Such as "equal updates" or "equal time"."""
    by_trajectories: Mapping[int, Sequence[Result]]
    """N in training -> one result a seed."""


class Cost(NamedTuple):
    """What an N costs."""

    trajectories: int
    predicted_bytes: int
    """Of the training step, by the planner."""
    tokens_per_second: float
    """Median over training, mean of the seeds."""
    updates: int
    update_seconds: float | None
    """The least of some, timed beside the other N; None where they were not."""
    evaluation_seconds: float
    """Model and physics of one evaluation, mean of the seeds."""


class Comparison(NamedTuple):
    """All that is shown of one task."""

    task: str
    series: Sequence[Series]
    test: Sequence[int]
    """n at test."""
    marks: Mapping[str, Sequence[Result]]
    """Yardsticks: label -> one result a seed."""
    costs: Sequence[Cost]


def statistic_at(results: Sequence[Result], n: int, statistic: str) -> Interval:
    """Give a statistic of the first n episodes of every chain, over seeds and chains."""
    returns_SCN = _returns(results)[..., :n]
    values_SC = returns_SCN[..., -1] if statistic == "last" else returns_SCN.mean(axis=-1)
    return bootstrap_interval(values_SC)


def along_chain(results: Sequence[Result]) -> list[Interval]:
    """Give the return of each trajectory of the chain, in its order."""
    return along_the_chain(_returns(results))


def rise(results: Sequence[Result]) -> Interval:
    """Give how much more the last trajectory returns than the first of its chain."""
    returns_SCN = _returns(results)
    return bootstrap_interval(returns_SCN[..., -1] - returns_SCN[..., 0])


def _returns(results: Sequence[Result]) -> np.ndarray:
    return Group("", tuple(results)).returns


def chain_lines(comparison: Comparison) -> list[str]:
    """Give in Markdown the return of each trajectory of a chain, of the first series."""
    series = comparison.series[0]
    episodes = next(iter(series.by_trajectories.values()))[0].protocol.trajectories
    lines = [
        f"**{series.label}: along the chain**",
        "",
        f"| N in training | seeds | {' | '.join(map(str, range(1, episodes + 1)))} "
        "| last minus first |",
        "|---:|---:|" + "---:|" * (episodes + 1),
    ]
    for trajectories, results in series.by_trajectories.items():
        values = " | ".join(f"{interval.value:.1f}" for interval in along_chain(results))
        lines.append(f"| {trajectories} | {len(results)} | {values} | {_text(rise(results))} |")
    return [*lines, ""]


def grid_lines(comparison: Comparison) -> list[str]:
    """Write the grids of N in training x n at test as Markdown, one a series and statistic."""
    lines = []
    for series in comparison.series:
        for statistic in STATISTICS:
            what = "the last of n episodes" if statistic == "last" else "the mean of n episodes"
            lines += [f"**{series.label}: {what}**", ""]
            heads = [f"n = {n}" for n in comparison.test]
            lines += [f"| N in training | updates | seeds | {' | '.join(heads)} |"]
            lines += ["|---:|---:|---:|" + "---:|" * len(heads)]
            for trajectories, results in series.by_trajectories.items():
                lines.append(_grid_line(trajectories, results, comparison.test, statistic))
            for label, results in comparison.marks.items():
                lines.append(_grid_line(label, results, comparison.test, statistic))
            lines.append("")
    return lines


def _grid_line(
    label: int | str, results: Sequence[Result], test: Sequence[int], statistic: str
) -> str:
    cells = [_text(statistic_at(results, n, statistic)) for n in test]
    updates = results[0].training["steps"]
    return f"| {label} | {updates:,} | {len(results)} | {' | '.join(cells)} |"


def cost_lines(comparison: Comparison) -> list[str]:
    """Write what each N costs as a Markdown table."""
    lines = [
        "| N | updates | predicted memory | an update, side by side | tokens/s in training "
        "| evaluation |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for cost in comparison.costs:
        seconds = "-" if cost.update_seconds is None else f"{1000 * cost.update_seconds:,.0f} ms"
        lines.append(
            f"| {cost.trajectories} | {cost.updates:,} | {cost.predicted_bytes / 2**20:,.0f} MiB "
            f"| {seconds} | {cost.tokens_per_second:,.0f} | {cost.evaluation_seconds:,.0f} s |"
        )
    return lines


def grid_csv(comparison: Comparison) -> str:
    """Write every cell of the grids as a line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["task", "series", "trajectories", "n", "statistic", "seeds", *Interval._fields]
    )
    rows = [
        (series.label, trajectories, results)
        for series in comparison.series
        for trajectories, results in series.by_trajectories.items()
    ]
    rows += [("yardstick", label, results) for label, results in comparison.marks.items()]
    for label, trajectories, results in rows:
        for statistic in STATISTICS:
            for n in comparison.test:
                interval = statistic_at(results, n, statistic)
                line = [comparison.task, label, trajectories, n, statistic, len(results)]
                writer.writerow([*line, *interval])
    return stream.getvalue()


def curve_png(comparison: Comparison) -> bytes:
    """Draw return against N at the largest n, with data and yardsticks, and along the chain."""
    n = max(comparison.test)
    figure = Figure(figsize=(12.0, 4.2), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    *against, along = figure.subplots(1, 3, sharey=True)
    for axes, statistic in zip(against, STATISTICS, strict=True):
        for number, series in enumerate(comparison.series):
            found = {
                count: statistic_at(results, n, statistic)
                for count, results in series.by_trajectories.items()
            }
            _draw(axes, found, label=series.label, number=number)
        _draw_levels(axes, comparison, n, statistic)
        counts = sorted({c for series in comparison.series for c in series.by_trajectories})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("trajectories N in training")
        axes.set_title(f"{comparison.task}: {statistic} of {n} at test")
        tidy(axes)
    first = comparison.series[0]
    for number, (count, results) in enumerate(first.by_trajectories.items()):
        _draw(along, dict(enumerate(along_chain(results), start=1)), f"N = {count}", number)
    along.set_xlabel("trajectory of the chain")
    along.set_title(f"along the chain, {first.label}")
    tidy(along)
    along.legend(frameon=False, fontsize=9)
    figure.axes[0].set_ylabel("return")
    figure.axes[0].set_ylim(bottom=0)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    return figure_png(figure)


def _draw(axes: Axes, found: Mapping[int, Interval], label: str, number: int) -> None:
    """Draw a line over counts, with its intervals as a band where all have one."""
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    values = [interval.value for interval in found.values()]
    axes.plot(list(found), values, label=label, color=color, marker=marker, linewidth=1.8)
    ends = [(i.low, i.high) for i in found.values() if i.low is not None and i.high is not None]
    if len(ends) == len(found):
        axes.fill_between(list(found), *np.array(ends).T, color=color, alpha=0.16, linewidth=0)


def _draw_levels(axes: Axes, comparison: Comparison, n: int, statistic: str) -> None:
    """Draw what does not depend on N as levels, named where they stand."""
    first = next(iter(comparison.series[0].by_trajectories.values()))[0]
    levels = {"best of the data": first.dataset.best}
    for label, results in comparison.marks.items():
        levels[label] = statistic_at(results, n, statistic).value
    for label, level in levels.items():
        axes.axhline(level, color=INK, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1.5)
        axes.annotate(
            label,
            (0.01, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            color=INK,
            fontsize=8,
        )


def _text(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.1f}"
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
