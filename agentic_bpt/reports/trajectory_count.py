"""Return against the number of trajectories N: the grid, the curve, and what each N costs."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentic_bpt.evaluation.protocol import Interval, bootstrap_interval
from agentic_bpt.reports.plots import COLORS, DOTS_PER_INCH, INK, MARKERS, figure_png, tidy
from agentic_bpt.reports.results import Result

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
    returns_SCN = np.stack([result.main.returns[:, :n] for result in results])
    values_SC = returns_SCN[..., -1] if statistic == "last" else returns_SCN.mean(axis=-1)
    return bootstrap_interval(values_SC)


def grid_lines(comparison: Comparison) -> list[str]:
    """Write the grids of N in training x n at test as Markdown, one a series and statistic."""
    lines = []
    for series in comparison.series:
        for statistic in STATISTICS:
            what = "the last of n episodes" if statistic == "last" else "the mean of n episodes"
            lines += [f"**{series.label}: {what}**", ""]
            heads = [f"n = {n}" for n in comparison.test]
            lines += [f"| N in training | seeds | {' | '.join(heads)} |"]
            lines += ["|---:|---:|" + "---:|" * len(heads)]
            for trajectories, results in series.by_trajectories.items():
                cells = [_text(statistic_at(results, n, statistic)) for n in comparison.test]
                lines.append(f"| {trajectories} | {len(results)} | {' | '.join(cells)} |")
            for label, results in comparison.marks.items():
                cells = [_text(statistic_at(results, n, statistic)) for n in comparison.test]
                lines.append(f"| {label} | {len(results)} | {' | '.join(cells)} |")
            lines.append("")
    return lines


def cost_lines(comparison: Comparison) -> list[str]:
    """Write what each N costs as a Markdown table."""
    lines = [
        "| N | updates | predicted memory | tokens/s | evaluation |",
        "|---:|---:|---:|---:|---:|",
    ]
    for cost in comparison.costs:
        lines.append(
            f"| {cost.trajectories} | {cost.updates:,} | {cost.predicted_bytes / 2**20:,.0f} MiB "
            f"| {cost.tokens_per_second:,.0f} | {cost.evaluation_seconds:,.0f} s |"
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
    """Draw return against N at the largest n, with the data's best and the yardsticks as levels."""
    n = max(comparison.test)
    figure = Figure(figsize=(9.0, 4.2), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    first = next(iter(comparison.series[0].by_trajectories.values()))[0]
    for axes, statistic in zip(figure.subplots(1, 2, sharey=True), STATISTICS, strict=True):
        for number, series in enumerate(comparison.series):
            counts = list(series.by_trajectories)
            found = [
                statistic_at(results, n, statistic) for results in series.by_trajectories.values()
            ]
            color = COLORS[number % len(COLORS)]
            axes.plot(
                counts,
                [interval.value for interval in found],
                label=series.label,
                color=color,
                marker=MARKERS[number % len(MARKERS)],
                linewidth=1.8,
            )
            ends = [(i.low, i.high) for i in found if i.low is not None and i.high is not None]
            if len(ends) == len(found):
                axes.fill_between(counts, *np.array(ends).T, color=color, alpha=0.16, linewidth=0)
        for number, (label, results) in enumerate(comparison.marks.items()):
            level = statistic_at(results, n, statistic).value
            dashes = (0, (5 - number, 2))
            axes.axhline(level, color=INK, linestyle=dashes, linewidth=1.0, label=label)
        axes.axhline(first.dataset.best, color=INK, linestyle=":", label="best of the data")
        counts = sorted({c for series in comparison.series for c in series.by_trajectories})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("trajectories N in training")
        axes.set_title(f"{comparison.task}: {statistic} of {n} at test")
        tidy(axes)
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


def _text(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.1f}"
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
