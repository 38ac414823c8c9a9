"""Pictures of all returns: a panel for each method, a strip of chains for each trajectory."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from agentic_bpt.reports.plots import (
    COLORS,
    DOTS_PER_INCH,
    GREY,
    INK,
    SIZE_INCHES,
    figure_png,
    fit_returns,
    tidy,
)
from agentic_bpt.reports.results import Result, check_comparable, exclude_unfinished
from agentic_bpt.reports.table import group_results, random_returns

_PANELS_ABREAST = 3
_PANEL_INCHES = 2.4  # height
_STRIP = 0.6  # width of a trajectory's points, of the distance between trajectories
_TITLE_CHARACTERS = 38


def returns_figure(results: Sequence[Result]) -> Figure:
    """Draw every chain's return at each trajectory, and their mean, from results of one task.

    In a strip the points lie in the order of seeds and chains, from left to right.

    Raises:
        InputError: As `check_comparable` and `exclude_unfinished`.
    """
    check_comparable(results)
    kept, _ = exclude_unfinished(results)
    panels = [(group.label, group.returns) for group in group_results(kept)]
    panels.append(("random", random_returns(kept)))
    abreast = min(_PANELS_ABREAST, len(panels))
    rows = math.ceil(len(panels) / abreast)
    figure = Figure(
        figsize=(SIZE_INCHES[0], _PANEL_INCHES * rows + 0.5),
        dpi=DOTS_PER_INCH,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, abreast, squeeze=False, sharex=True, sharey=True)
    for number, (axes, (label, returns_SCN)) in enumerate(zip(grid.flat, panels, strict=False)):
        color = GREY if label == "random" else COLORS[number % len(COLORS)]
        _draw_strips(axes, returns_SCN, color=color)
        axes.axhline(kept[0].dataset.best, color=INK, linestyle=(0, (4, 3)), linewidth=0.8)
        axes.set_title(textwrap.fill(label, _TITLE_CHARACTERS))
        tidy(axes)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    fit_returns(*grid.flat[: len(panels)])
    for axes in grid[:, 0]:
        axes.set_ylabel("return")
    figure.supxlabel(
        "trajectory of the chain; a point a chain, a bar their mean, dashed the best training "
        f"episode ({kept[0].dataset.best:.0f})",
        fontsize=9,
        color=INK,
    )
    figure.suptitle(kept[0].task, fontsize=10, color=INK)
    return figure


def returns_png(results: Sequence[Result]) -> bytes:
    """Give `returns_figure` as the bytes of a PNG.

    Raises:
        InputError: As `returns_figure`.
    """
    return figure_png(returns_figure(results))


def _draw_strips(axes: Axes, returns_SCN: np.ndarray, *, color: str) -> None:
    N = returns_SCN.shape[-1]
    returns_PN = returns_SCN.reshape(-1, N)  # P points: seeds times chains
    P = len(returns_PN)
    offsets_P = _STRIP * (np.arange(P) - (P - 1) / 2) / P
    trajectories_N = np.arange(1, N + 1)
    x_PN = trajectories_N + offsets_P[:, None]
    axes.scatter(x_PN, returns_PN, s=7, color=color, alpha=0.55, linewidths=0.0, zorder=2)
    half = _STRIP / 2 + 0.05
    axes.hlines(
        returns_PN.mean(axis=0),
        trajectories_N - half,
        trajectories_N + half,
        color=INK,
        linewidth=1.4,
        zorder=3,
    )
    axes.set_xlim(0.5, N + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
