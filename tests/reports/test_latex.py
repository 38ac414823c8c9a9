"""LaTeX: what is printed is what stands in the Markdown, and no label breaks it."""

import re
from pathlib import Path

import pytest
from report_builders import write_result

from agentic_bpt.reports.latex import escape, latex_table, render_latex
from agentic_bpt.reports.results import read_results
from agentic_bpt.reports.table import build_table, render_markdown

WRITTEN = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
}
COMMAND = re.compile(r"\\text[a-z]+\{\}|\\[&%$#_{}]|\{\}")


def printed(latex: str) -> str:
    """Give what LaTeX prints of escaped text; anything special that is left over fails."""
    left = COMMAND.sub("", latex)
    assert not re.search(r"[\\&%$#_{}~^<>|]", left), left
    return COMMAND.sub(_character, latex)


def _character(found: re.Match) -> str:
    if found[0] in WRITTEN:
        return WRITTEN[found[0]]
    return "" if found[0] == "{}" else found[0][1:]


@pytest.mark.parametrize(
    "text",
    [
        r"\input{/etc/passwd}",
        "50% of $5 & #1_a^b~c",
        "{a} <b> |c|",
        "[first] of its line",
        "*starred",
        "\\\\[1em]",
        "plain 1.5 (2)",
    ],
)
def test_escaped_text_is_printed_as_it_is(text: str):
    assert printed(escape(text)) == text


def test_a_line_never_begins_with_what_a_line_break_would_take():
    latex = latex_table("t", ["a", "b"], [["[1, 2]", "3\n[4, 5]"], ["*", "-"]])
    assert r"\shortstack[r]{3\\{}[4, 5]}" in latex
    assert not re.search(r"\\\\\s*[\[*]", latex)


def test_rows_and_notes_are_those_of_the_markdown(tmp_path: Path):
    runs = [
        {"multipliers": (0.5, 1.0), "settings": {"x": "a_1|&"}},
        {"multipliers": (0.5, 1.0), "settings": {"x": "b%"}},
        {"method": "dt", "returns": [[1.0, float("inf"), 2.0]] * 2},
    ]
    table = build_table(
        read_results([write_result(tmp_path / str(i), **run) for i, run in enumerate(runs)])
    )
    markdown, latex = render_markdown(table), render_latex(table)
    rows = re.findall(r"^\| (.*) \|$", markdown, re.M)
    expected = [row.replace("\\|", "\0").split(" | ") for row in rows]
    found = [
        [printed(cell) for cell in re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))]
        for line in latex.splitlines()
        if line.endswith(r" \\")
    ]
    assert found == [[cell.replace("\0", "|") for cell in row] for row in expected]
    assert len(found) == 2 + 6 + 4  # headers, rows, and each target of the two methods
    for remark in (*table.warnings, *table.notes):
        assert escape(remark) in latex
    assert re.findall(r"tabular\}\{(l\w*)\}", latex) == ["lrrrrrr", "lrrrr"]
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 2
    assert latex.count(r"\begin{") == latex.count(r"\end{")
