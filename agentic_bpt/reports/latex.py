"""Tables in LaTeX: booktabs, every character of a label printed as it is."""

import re
from collections.abc import Sequence

from agentic_bpt.reports.table import ResultsTable, grids

PREAMBLE = "% needs \\usepackage{booktabs}\n"

# Of the last three the usual font encoding, OT1, prints other characters.
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))


def render_latex(table: ResultsTable) -> str:
    """Write the sections as LaTeX tables, with the rows and the notes of `render_markdown`.

    Warnings and notes stand under the first table.
    """
    remarks = [*(f"Warning: {warning}" for warning in table.warnings), *table.notes]
    parts = [
        latex_table(title, header, rows, remarks=() if number else remarks)
        for number, (title, header, rows) in enumerate(grids(table, " "))
    ]
    return PREAMBLE + "\n".join(parts)


def latex_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    remarks: Sequence[str] = (),
    rules_before: Sequence[int] = (),
) -> str:
    """Write one `table` of plain text; lines of a cell stand above one another.

    Args:
        title: the caption.
        header: names of the columns; the first is set left, the others right.
        rows: as wide as the header.
        remarks: small print under the table.
        rules_before: numbers of the rows with a line above them.
    """
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize",
        rf"\caption{{{escape(title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        _line(header),
        r"\midrule",
    ]
    for number, row in enumerate(rows):
        lines += [r"\midrule"] * (number in rules_before) + [_line(row)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip {escape(remark)}" for remark in remarks]
    return "\n".join([*lines, r"\end{table}", ""])


def escape(text: str) -> str:
    r"""Write plain text on one line of LaTeX.

    A leading bracket or star is kept apart from a line break before it, `\\`, which would take it
    for its own argument.
    """
    escaped = _SPECIAL.sub(lambda found: _ESCAPES[found[0]], " ".join(text.split()))
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(_cell, cells)) + r" \\"


def _cell(text: str) -> str:
    lines = [escape(line) for line in text.split("\n")]
    stacked = r"\\".join(lines)
    return stacked if len(lines) == 1 else rf"\shortstack[r]{{{stacked}}}"
