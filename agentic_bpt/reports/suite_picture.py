"""The table of a suite as a picture, with the rules of a printed table."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentic_bpt.reports.plots import DOTS_PER_INCH, GREY, INK, figure_png
from agentic_bpt.reports.suite_renderings import cell_lines, suite_title
from agentic_bpt.reports.suite_table import AVERAGE, SuiteTable

CAPTION = (
    "Return [95 % bootstrap interval] (normalised score: 0 is random, 100 the reference, both at "
    "action repeat 1) and the paper's number, for its order only."
)
_LABEL_INCHES, _COLUMN_INCHES, _LINE_INCHES, _GAP_INCHES = 1.8, 1.25, 0.15, 0.14
_TITLE_INCHES = 0.35
_MARGIN_INCHES = 0.08
_LABEL_CHARACTERS, _CELL_CHARACTERS = 26, 18  # of a line
_POINTS = 8.0
_THICK, _THIN = 1.4, 0.7  # points


class _Row(NamedTuple):
    """What is written in a row."""

    label: list[str]
    cells: list[list[str]]
    grey: list[bool]
    rule: float  # width in points of the line above; 0: none

    @property
    def inches(self) -> float:
        """Give the height that its highest cell needs."""
        return _LINE_INCHES * max(map(len, [self.label, *self.cells])) + _GAP_INCHES


def suite_figure(table: SuiteTable, protocol: str = "mean") -> Figure:
    """Draw the table of one protocol."""
    rows = _rows(table, protocol)
    width = _LABEL_INCHES + _COLUMN_INCHES * len(table.columns)
    caption = textwrap.wrap(CAPTION, round(15 * width))
    height = _TITLE_INCHES + sum(row.inches for row in rows)
    below = _LINE_INCHES * len(caption) + _GAP_INCHES
    figure = Figure(figsize=(width, height + below), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height + below, 0))  # inches from the top left corner
    axes.set_axis_off()
    _write(axes, _MARGIN_INCHES, _TITLE_INCHES / 2, [suite_title(table, protocol)], points=11)
    top = _TITLE_INCHES
    for row in rows:
        _rule(axes, top, row.rule)
        middle = top + row.inches / 2
        _write(axes, _MARGIN_INCHES, middle, row.label)
        for number, (lines, grey) in enumerate(zip(row.cells, row.grey, strict=True), start=1):
            right = _LABEL_INCHES + number * _COLUMN_INCHES - _MARGIN_INCHES
            _write(axes, right, middle, lines, side="right", color=GREY if grey else INK)
        top += row.inches
    _rule(axes, top, _THICK)
    _write(axes, _MARGIN_INCHES, top + below / 2, caption, points=_POINTS - 1)
    return figure


def suite_png(table: SuiteTable, protocol: str = "mean") -> bytes:
    """Give `suite_figure` as the bytes of a PNG."""
    return figure_png(suite_figure(table, protocol))


def _rows(table: SuiteTable, protocol: str) -> list[_Row]:
    """Wrap every text to the width of its column; the header comes first."""
    header = [textwrap.wrap(column, _CELL_CHARACTERS) for column in table.columns]
    rows = [_Row(["task"], header, [False] * len(header), _THICK)]
    for number, row in enumerate(table.rows):
        cells = [table.cells[row.name, column] for column in table.columns]
        texts = [
            [
                part
                for line in cell_lines(cell, protocol, table.seeds)
                for part in textwrap.wrap(line, _CELL_CHARACTERS)
            ]
            for cell in cells
        ]
        label = textwrap.wrap(row.label, _LABEL_CHARACTERS)
        rule = _THIN if number == 0 or row.name == AVERAGE else 0.0
        rows.append(_Row(label, texts, [bool(cell.unmeasured) for cell in cells], rule))
    return rows


def _write(
    axes: Axes,
    x: float,
    y: float,
    lines: Sequence[str],
    *,
    side: str = "left",
    color: str = INK,
    points: float = _POINTS,
) -> None:
    # Labels are users' text: without parse_math a "$" would begin a formula.
    axes.text(
        x,
        y,
        "\n".join(lines),
        ha=side,
        va="center",
        color=color,
        fontsize=points,
        parse_math=False,
    )


def _rule(axes: Axes, y: float, points: float) -> None:
    if points:
        axes.axhline(y, color=INK, linewidth=points)
