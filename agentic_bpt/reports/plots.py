"""Pictures: returns along the chain, bytes against trajectories, times beside those of peers."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from agentic_bpt.evaluation.protocol import along_the_chain
from agentic_bpt.reports.results import Result, check_comparable, exclude_unfinished
from agentic_bpt.reports.table import group_results, random_returns

# Okabe and Ito's palette, told apart by the colour-blind, without its yellow (pale on white) and
# its black (kept for the dataset). Markers and dashes tell the same, for prints without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")  # the next one after each round of colours
GREY = "#8C8C8C"
INK = "#333333"
SIZE_INCHES = (9.0, 4.2)
DOTS_PER_INCH = 200  # 1800 x 840 pixels, shown at 900 x 420
_PALETTE_COLOURS = 128  # lines of few colours and their edges: none is missed
_MARKED_TRAJECTORIES = 40  # beyond so many, markers hide the line
_LEGEND_CHARACTERS = 60  # of one line of a label: a column of them fits the width
_LABEL_GAP = 0.055  # of the y axis: nearer than that, two labels overlap
_LIMIT_GAP = 1.35  # on the logarithmic axis of bytes: names nearer than that overlap


def chain_figure(results: Sequence[Result]) -> Figure:
    """Draw both panels from results that belong together.

    Raises:
        InputError: As `check_comparable` and `exclude_unfinished`.
    """
    check_comparable(results)
    kept, _ = exclude_unfinished(results)
    first = kept[0]
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    chain_axes, data_axes = figure.subplots(
        1, 2, sharey=True, gridspec_kw={"width_ratios": (2.6, 1.0)}
    )
    _draw_chains(chain_axes, kept)
    _draw_dataset(data_axes, first)
    for axes in (chain_axes, data_axes):
        for value in (first.dataset.best, first.dataset.best_tenth_mean):
            axes.axhline(value, color=INK, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1.5)
    fit_returns(chain_axes, data_axes)
    _label_dataset_lines(data_axes, first)
    chains = first.protocol.chains
    chain_axes.set_title(
        f"{first.task}: {chains} chain{'s' if chains > 1 else ''} a run, "
        "band = 95 % bootstrap interval"
    )
    data_axes.set_title("dataset")
    for axes in (chain_axes, data_axes):
        tidy(axes)
    _add_legend(figure, chain_axes)
    return figure


def chain_png(results: Sequence[Result]) -> bytes:
    """Give `chain_figure` as the bytes of a PNG.

    Raises:
        InputError: As `chain_figure`.
    """
    return figure_png(chain_figure(results))


def figure_png(figure: Figure) -> bytes:
    """Give a figure as the bytes of a PNG with a palette, a third of one with every colour."""
    drawn, stream = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as picture:
        palette = picture.convert("RGB").quantize(_PALETTE_COLOURS, dither=Image.Dither.NONE)
    palette.save(stream, format="png", optimize=True)
    return stream.getvalue()


def _draw_chains(axes: Axes, results: Sequence[Result]) -> None:
    _draw_line(axes, random_returns(results), label="random", color=GREY, linestyle="-", marker="")
    for number, group in enumerate(group_results(results)):
        seeds = len(group.results)
        _draw_line(
            axes,
            group.returns,
            label=f"{group.label}, {seeds} seed{'s' if seeds > 1 else ''}",
            color=COLORS[number % len(COLORS)],
            linestyle=DASHES[number // len(COLORS) % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
        )
    trajectories = results[0].protocol.trajectories
    axes.set_xlim(0.5, trajectories + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    axes.set_xlabel("trajectory of the chain")
    axes.set_ylabel("return")


def _draw_line(
    axes: Axes, returns_SCN: np.ndarray, *, label: str, color: str, linestyle: str, marker: str
) -> None:
    """Draw the mean at each trajectory and the band of its interval."""
    intervals = along_the_chain(returns_SCN)
    trajectories = np.arange(1, len(intervals) + 1)
    if len(intervals) == 1:
        marker = marker or "x"  # a line of one point shows nothing
    elif len(intervals) > _MARKED_TRAJECTORIES:
        marker = ""
    axes.plot(
        trajectories,
        [interval.value for interval in intervals],
        label=label,
        color=color,
        linestyle=linestyle,
        marker=marker,
        markersize=4.5,
        markeredgecolor=color if marker == "x" else "white",
        markeredgewidth=1.0 if marker == "x" else 0.6,
        linewidth=1.8,
        zorder=3,
    )
    ends = [(i.low, i.high) for i in intervals if i.low is not None and i.high is not None]
    if len(ends) < len(intervals):
        return
    low, high = np.array(ends).T
    if len(ends) == 1:
        axes.vlines(trajectories, low, high, color=color, alpha=0.5, linewidth=3.0, zorder=2)
    else:
        axes.fill_between(trajectories, low, high, color=color, alpha=0.16, linewidth=0.0, zorder=2)


def _draw_dataset(axes: Axes, result: Result) -> None:
    returns_E = result.dataset.returns
    bins = min(40, max(8, math.isqrt(returns_E.size)))
    axes.hist(returns_E, bins=bins, orientation="horizontal", color="#BFC9D1", zorder=1)
    axes.set_xlabel(f"{len(result.dataset.returns)} training episodes")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))


def tidy(axes: Axes) -> None:
    """Keep what the eye needs: two spines, a faint grid, text that can be read when small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set(color=INK, fontsize=10)
    axes.yaxis.label.set(color=INK, fontsize=10)
    axes.set_title(axes.get_title(), color=INK, fontsize=10, loc="left")
    axes.set_title("", loc="center")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend under the panels, in as many columns as the width holds."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, _LEGEND_CHARACTERS) for label in labels]
    for columns in range(min(4, len(labels)), 0, -1):
        legend = figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
            columnspacing=1.4,
            labelcolor=INK,
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def fit_returns(*panels: Axes) -> None:
    """Start the shared axis at 0 where no return is negative, since rewards here start there."""
    ends = np.concatenate([axes.dataLim.intervaly for axes in panels])
    low, high = float(ends.min()), float(ends.max())
    room = 0.05 * (high - min(0.0, low)) or 1.0
    panels[0].set_ylim(0.0 if low >= 0.0 else low - room, high + room)


def _label_dataset_lines(axes: Axes, result: Result) -> None:
    """Name the two dashed lines outside the right edge, where they hide no data."""
    low, high = axes.get_ylim()
    best, tenth = result.dataset.best, result.dataset.best_tenth_mean
    gap = _LABEL_GAP * (high - low)
    apart = max(0.0, gap - (best - tenth)) / 2.0
    for text, value, shift in (
        (f"best {best:.0f}", best, apart),
        (f"best tenth {tenth:.0f}", tenth, -apart),
    ):
        _name_level(axes, text, value + shift, size=9)


def _name_level(axes: Axes, text: str, value: float, *, size: int) -> None:
    """Write outside the right edge, at a value of the y axis."""
    axes.annotate(
        text,
        xy=(1.0, value),
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=size,
        color=INK,
        annotation_clip=False,
    )


def memory_png(
    curves: Mapping[str, Mapping[int, int]],
    limits: Mapping[str, int],
    *,
    title: str,
    counted: str = "trajectories in a chain",
) -> bytes:
    """Draw bytes against a count, a curve for each scheme, as the bytes of a PNG.

    Args:
        curves: Scheme -> count -> bytes.
        limits: Device -> its bytes, drawn as level lines.
        title: What was compiled, and for what.
        counted: What is counted.
    """
    figure = Figure(figsize=(6.6, SIZE_INCHES[1]), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (scheme, curve) in enumerate(curves.items()):
        axes.plot(
            list(curve),
            [size / 1e9 for size in curve.values()],
            label=scheme,
            color=COLORS[number % len(COLORS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4.5,
            linewidth=1.8,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted({count for curve in curves.values() for count in curve})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xlabel(counted)
    axes.set_ylabel("GB (powers of 10)")
    axes.set_title(title)
    _draw_limits(axes, limits)
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure_png(figure)


def _draw_limits(axes: Axes, limits: Mapping[str, int]) -> None:
    """Draw each device's memory; names that would overlap share a line of text."""
    groups: list[tuple[float, list[str]]] = []
    for name, size in sorted(limits.items(), key=lambda item: item[1]):
        axes.axhline(size / 1e9, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1.5)
        if groups and size / 1e9 < _LIMIT_GAP * groups[-1][0]:
            groups[-1][1].append(name)
        else:
            groups.append((size / 1e9, [name]))
    for size, names in groups:
        _name_level(axes, ", ".join(names), size, size=8)


def ratios_png(rows: Sequence[Mapping[str, Any]], *, ours: str) -> bytes:
    """Draw the time of each contender over ours against positions, as the bytes of a PNG.

    Args:
        rows: Of `agentic-bpt bench core`; a panel for each number of threads and heads.
        ours: Name of the contender that is 1.
    """
    panels = sorted({(row["threads"], row["heads"]) for row in rows})
    width, height = SIZE_INCHES
    figure = Figure(
        figsize=(width, height / 2 * (1 + len(panels) // 2)),
        dpi=DOTS_PER_INCH,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False, sharey=True)
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if name != ours]
    for panel, axes in zip(panels, grid.flat, strict=False):
        here = [row for row in rows if (row["threads"], row["heads"]) == panel]
        base = {row["positions"]: row["seconds"] for row in here if row["name"] == ours}
        for number, name in enumerate(names):
            timed = [row for row in here if row["name"] == name and row["seconds"] is not None]
            axes.plot(
                [row["positions"] for row in timed],
                [row["seconds"] / base[row["positions"]] for row in timed],
                label=name,
                color=COLORS[number % len(COLORS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number // len(COLORS)],
                markersize=4.5,
            )
        axes.axhline(1.0, color=INK, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(sorted(base), [f"{count:,}" for count in sorted(base)])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{panel[0]} thread(s), {panel[1]} head(s)")
        tidy(axes)
    for axes in grid[-1]:
        axes.set_xlabel("positions")
    figure.supylabel(f"time over that of {ours}", fontsize=9)
    figure.legend(
        *grid.flat[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
    )
    return figure_png(figure)
