"""The table of a suite as Markdown, CSV and LaTeX: one table a protocol, as its cells are."""

import csv
import io

from agentic_bpt.evaluation.protocol import Interval
from agentic_bpt.reports.latex import PREAMBLE, latex_table
from agentic_bpt.reports.suite_table import AVERAGE, SuiteCell, SuiteTable
from agentic_bpt.reports.table import one_decimal

ORDER = ("mean", "last", "first", "max")
"""Protocols in the order of the tables: the one that rewards no luck first."""


def suite_title(table: SuiteTable, protocol: str) -> str:
    """Say what the table of a protocol shows."""
    return f"{protocol.capitalize()} of n = {table.trajectories} trajectories of a chain"


def cell_lines(cell: SuiteCell, protocol: str, seeds: int) -> list[str]:
    """Write a cell: the return and its interval, the score, the paper's number.

    A cell of fewer trainings than `seeds` says how many.
    """
    lines = [cell.unmeasured] if cell.unmeasured else []
    score = cell.scores.get(protocol)
    if protocol in cell.returns:
        interval = cell.returns[protocol]
        lines += [one_decimal(interval.value), _ends(interval, cell.seeds)]
        lines += [f"({one_decimal(score.value)})"] if score else []
    elif score:
        lines += [f"({one_decimal(score.value)})", _ends(score, cell.seeds)]
    lines += [f"n = {cell.seeds}"] if 1 < cell.seeds < seeds else []
    if cell.published is not None:
        lines.append(f"paper {cell.published}")
    return lines


def _ends(interval: Interval, seeds: int) -> str:
    if interval.low is not None and interval.high is not None:
        return f"[{one_decimal(interval.low)}, {one_decimal(interval.high)}]"
    return "[n = 1, no interval]" if seeds == 1 else "[no interval]"


def suite_grid(table: SuiteTable, protocol: str, join: str) -> tuple[list[str], list[list[str]]]:
    """Lay out the table of a protocol as (header, rows of text), lines of a cell joined."""
    rows = []
    for row in table.rows:
        cells = [table.cells[row.name, column] for column in table.columns]
        rows.append(
            [row.label, *(join.join(cell_lines(cell, protocol, table.seeds)) for cell in cells)]
        )
    return ["task", *table.columns], rows


def render_suite_markdown(table: SuiteTable) -> str:
    """Write a table for each protocol, warnings before and notes after them."""
    parts = [f"**Warning:** {warning}" for warning in table.warnings]
    for protocol in ORDER:
        header, rows = suite_grid(table, protocol, " ")
        escaped = [[cell.replace("|", "\\|") for cell in line] for line in [header, *rows]]
        lines = [f"| {' | '.join(line)} |" for line in escaped]
        lines.insert(1, "|---|" + "---:|" * len(table.columns))
        parts.append(f"## {suite_title(table, protocol)}\n\n" + "\n".join(lines))
    parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def render_suite_latex(table: SuiteTable) -> str:
    """Write a LaTeX table for each protocol, warnings and notes under the first."""
    remarks = [*(f"Warning: {warning}" for warning in table.warnings), *table.notes]
    average = [number for number, row in enumerate(table.rows) if row.name == AVERAGE]
    parts = []
    for number, protocol in enumerate(ORDER):
        header, rows = suite_grid(table, protocol, "\n")
        parts.append(
            latex_table(
                suite_title(table, protocol),
                header,
                rows,
                remarks=() if number else remarks,
                rules_before=average,
            )
        )
    return PREAMBLE + "\n".join(parts)


def render_suite_csv(table: SuiteTable) -> str:
    """Write one line a cell and protocol, numbers unrounded; a cell without numbers says why."""
    header = ["row", "column", "protocol", "trajectories", "seeds"]
    header += [f"{kind}{end}" for kind in ("return", "score") for end in ("", "_low", "_high")]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*header, "published", "unmeasured"])
    for row in table.rows:
        for column in table.columns:
            cell = table.cells[row.name, column]
            for protocol in ORDER:
                numbers = [
                    *cell.returns.get(protocol, ("", "", "")),
                    *cell.scores.get(protocol, ("", "", "")),
                ]
                start = [row.name, column, protocol, table.trajectories, cell.seeds]
                writer.writerow([*start, *numbers, cell.published, cell.unmeasured])
    return stream.getvalue()
