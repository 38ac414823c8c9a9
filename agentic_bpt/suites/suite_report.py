"""The report of a suite from what its cells left on disk: table, pictures and one HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import film_run
from agentic_bpt.reports.distributions import returns_png
from agentic_bpt.reports.page import Section, write_page
from agentic_bpt.reports.plots import chain_png
from agentic_bpt.reports.results import Result, provenance, read_result
from agentic_bpt.reports.suite_picture import suite_png
from agentic_bpt.reports.suite_renderings import (
    ORDER,
    render_suite_csv,
    render_suite_latex,
    render_suite_markdown,
    suite_grid,
    suite_title,
)
from agentic_bpt.reports.suite_samples import RANDOM
from agentic_bpt.reports.suite_table import SuiteTable, build_suite_table
from agentic_bpt.run import CHECKPOINTS
from agentic_bpt.suites.cell import Cell, state_of
from agentic_bpt.suites.table5 import Column, Row
from agentic_bpt.whole_file import write_whole

NAME = "table5"


class SuiteReport(NamedTuple):
    """What was written, and what could not be read for it."""

    page: Path
    unreadable: list[str]
    """A line for each result file."""


def write_suite_report(
    cells: Sequence[Cell],
    *,
    rows: Sequence[Row],
    columns: Sequence[Column],
    out: Path,
    command: str,
) -> SuiteReport:
    """Write table5.md, .csv, .tex, .png and .html of the cells that are done.

    A cell without a result says why: not run, oom, failed, unreadable.

    Raises:
        InputError: result files that do not belong in one table.
    """
    titles = {column.name: column.title for column in columns}
    results, unmeasured, unreadable = [], {}, []
    for row in rows:
        if row.store is None:
            unmeasured |= {(row.task, title): "not run" for title in titles.values()}
    shared = {}
    for cell in cells:
        state = state_of(cell)
        if state.kind == "done":
            try:
                results.append(read_result(cell.result))
            except InputError as error:
                unreadable.append(str(error))
                unmeasured[cell.task, titles[cell.column]] = "unreadable"
        elif state.kind in ("oom", "failed"):
            unmeasured.setdefault((cell.task, titles[cell.column]), state.why)
        elif cell.shared_with:
            shared[cell.task, titles[cell.column]] = titles[cell.shared_with]
    table = build_suite_table(
        results,
        tasks=[row.task for row in rows],
        methods=[RANDOM, *titles.values()],
        unmeasured=unmeasured,
        shared=shared,
    )
    write_whole(out / f"{NAME}.csv", render_suite_csv(table).encode())
    write_whole(out / f"{NAME}.tex", render_suite_latex(table).encode())
    picture = suite_png(table)
    write_whole(out / f"{NAME}.png", picture)
    by_task = {row.task: [r for r in results if r.task == row.task] for row in rows}
    by_task = {t: found for t, found in by_task.items() if any(r.is_finite for r in found)}
    lines = [
        "# Table 5: return of every method on every task",
        f"![the table]({NAME}.png)",
        f"Command: `{command}`",
        render_suite_markdown(table),
        *(f"# {task}\n\n{provenance(found)}" for task, found in by_task.items()),
    ]
    write_whole(out / f"{NAME}.md", ("\n\n".join(lines) + "\n").encode())
    sections = [*_tables(table, picture, command), *_tasks(by_task), *_films(cells, titles)]
    path = out / f"{NAME}.html"
    write_page(path, title="Table 5", summary="\n\n".join(table.notes), sections=sections)
    return SuiteReport(path, unreadable)


def film_cells(cells: Sequence[Cell]) -> Iterator[str]:
    """Film the first seed of every trained cell that has no video yet; says what came of each."""
    for cell in cells:
        trained = state_of(cell).kind == "done" and (cell.folder / CHECKPOINTS).exists()
        if cell.experiment.seed or not trained or _video(cell):
            continue
        filmed = film_run(cell.folder, cell.evaluation)
        yield f"{filmed.path}: written" if filmed.path else f"{cell.name}: {filmed.why_not}"


def _video(cell: Cell) -> Path | None:
    return next(cell.folder.glob(f"{cell.evaluation.video_stem()}.*"), None)


def _tables(table: SuiteTable, picture: bytes, command: str) -> list[Section]:
    sections = []
    for protocol in ORDER:
        header, rows = suite_grid(table, protocol, "\n")
        first = protocol == ORDER[0]
        sections.append(
            Section(
                heading=suite_title(table, protocol),
                text="\n\n".join(table.warnings) if first else "",
                header=header,
                rows=rows,
                png=picture if first else None,
                alt="the table below" if first else "",
                command=command if first else "",
            )
        )
    return sections


def _tasks(by_task: dict[str, list[Result]]) -> list[Section]:
    """Show each task's chains: mean along the chain, then every single return."""
    sections = []
    for task, results in by_task.items():
        commands = "\n".join(dict.fromkeys(result.command for result in results))
        sections += [
            Section(
                heading=f"{task}: along the chain",
                text="Mean return of the 1st, 2nd, ... episode of a chain, with intervals.",
                png=chain_png(results),
                alt=f"return along the chain of every method on {task}",
                command=commands,
            ),
            Section(
                heading=f"{task}: every return",
                text="A point is one chain.",
                png=returns_png(results),
                alt=f"returns of every chain of every method on {task}",
            ),
        ]
    return sections


def _films(cells: Sequence[Cell], titles: Mapping[str, str]) -> list[Section]:
    sections = []
    for cell in cells:
        path = _video(cell)
        if path and not cell.shared_with:
            heading = f"{cell.task}: {titles[cell.column]} acting"
            text = "The first chain of the first seed, its trajectories one after another."
            content = path.read_bytes()
            sections.append(Section(heading=heading, text=text, video=content, alt=heading))
    return sections
