"""The suite's table: what a cell pools, what is averaged, what a cell without numbers says."""

import csv
import io
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from report_builders import write_result

from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.protocol import PROTOCOLS, normalized_score, summarize
from agentic_bpt.reports.published import paper_column
from agentic_bpt.reports.results import Result, read_results
from agentic_bpt.reports.suite_picture import suite_figure, suite_png
from agentic_bpt.reports.suite_renderings import (
    ORDER,
    render_suite_csv,
    render_suite_latex,
    render_suite_markdown,
)
from agentic_bpt.reports.suite_samples import JACO, JACO_TARGETS, NOT_ALL, RANDOM
from agentic_bpt.reports.suite_table import AVERAGE, SuiteTable, build_suite_table

RETURNS = np.array([[100.0, 200.0, 150.0], [110.0, 190.0, 170.0]])


def results_of(tmp_path: Path, *runs: dict[str, Any]) -> list[Result]:
    return read_results([write_result(tmp_path / str(i), **run) for i, run in enumerate(runs)])


def two_seeds(**run: Any) -> list[dict[str, Any]]:
    returns = run.pop("returns", RETURNS)
    return [{**run, "seed": seed, "returns": returns + 10 * seed} for seed in (0, 1)]


def table_of(
    results: list[Result], tasks: list[str], methods: list[str], **more: Any
) -> SuiteTable:
    return build_suite_table(results, tasks=tasks, methods=methods, **{"unmeasured": {}, **more})


def test_a_cell_pools_its_seeds_as_the_report_of_the_task_does(tmp_path: Path):
    results = results_of(tmp_path, *two_seeds(), *two_seeds(method="dt"))
    table = table_of(results[::-1], ["walker_run"], ["DT", "AT+BPT N=4"])
    cell = table.cells["walker_run", "AT+BPT N=4"]
    expected = summarize(np.stack([RETURNS, RETURNS + 10]))
    assert cell.returns == expected
    assert cell.scores["last"].high == pytest.approx(
        normalized_score("walker_run", expected["last"].high or 0.0)
    )
    assert (cell.seeds, cell.published, cell.unmeasured) == (2, 88.56, "")
    assert table.cells["walker_run", "DT"].published == 49.82
    assert table.trajectories == 3


def test_columns_are_named_as_the_paper_names_them():
    name = lambda method, **settings: paper_column(method, settings)  # noqa: E731
    assert name("at", trajectories=32, scheme="vanilla") == "AT N=32"
    assert name("at", trajectories=32, scheme="memory_efficient") == "AT+ME N=32"
    assert name("at", trajectories=8, scheme="blockwise") == "AT+BPT N=8"
    assert name("dt", trajectories=1, scheme="blockwise") == "DT"
    assert (name("bc10"), name("td3_bc")) == ("BC-10%", "TD3+BC")


def test_one_training_has_no_interval_and_says_n_is_1(tmp_path: Path):
    table = table_of(results_of(tmp_path, {}), ["walker_run"], ["AT+BPT N=4", RANDOM])
    assert table.cells["walker_run", "AT+BPT N=4"].returns["last"] == (160.0, None, None)
    page = render_suite_markdown(table)
    assert "| 160.0 [n = 1, no interval] (16.1) paper 88.56 |" in page
    assert "n = 1: one training" in page
    # The random policy is not trained: its chains are all the chance there is.
    assert table.cells["walker_run", RANDOM].returns["last"].low is not None


def test_a_cell_without_result_says_why(tmp_path: Path):
    bad = [[1.0, np.nan, 2.0]] * 2
    results = results_of(tmp_path, {}, {"method": "dt", "returns": bad})
    table = table_of(
        results,
        ["walker_run", "cheetah_run"],
        ["BC-10%", "DT", "AT N=32", "AT+BPT N=4"],
        unmeasured={("walker_run", "AT N=32"): "oom: 165 GB of 80 GB"},
    )
    texts = [table.cells["walker_run", column].unmeasured for column in table.columns]
    assert texts == ["not run", "not finite", "oom: 165 GB of 80 GB", ""]
    assert {table.cells["cheetah_run", c].unmeasured for c in table.columns} == {"not run"}
    # The paper's entries stand beside what was not run too.
    assert table.cells["walker_run", "AT N=32"].published == "oom"
    assert table.cells["cheetah_run", "BC-10%"].published == 34.66
    assert table.cells["cheetah_run", "AT+BPT N=4"].published == 125.68
    assert any("dt, seed 0" in warning for warning in table.warnings)
    for text in (render_suite_markdown(table), render_suite_latex(table), render_suite_csv(table)):
        assert "oom: 165 GB of 80 GB" in text
        assert "not finite" in text


def test_schemes_that_share_a_training_show_it_and_say_so(tmp_path: Path):
    results = results_of(tmp_path, *two_seeds(settings={"trajectories": 32, "scheme": "blockwise"}))
    table = table_of(
        results,
        ["walker_run", "walker_walk"],
        ["AT N=32", "AT+ME N=32", "AT+BPT N=32"],
        unmeasured={("walker_run", "AT N=32"): "oom: 165 GB of 80 GB"},
        shared={("walker_run", c): "AT+BPT N=32" for c in ("AT N=32", "AT+ME N=32")},
    )
    vanilla, efficient, blockwise = (table.cells["walker_run", c] for c in table.columns)
    assert (vanilla.returns, vanilla.unmeasured) == ({}, "oom: 165 GB of 80 GB")
    assert efficient.returns == blockwise.returns
    assert not table.cells["walker_walk", "AT+ME N=32"].returns
    assert (efficient.published, blockwise.published) == ("oom", 105.88)
    assert "AT+ME N=32 takes the trainings of AT+BPT N=32" in render_suite_markdown(table)


def test_jaco_is_its_targets_and_their_mean_and_counts_once_in_the_average(tmp_path: Path):
    offsets = dict(zip(JACO_TARGETS, (0.0, 4.0, 8.0, 12.0), strict=True))
    runs = [run for t, more in offsets.items() for run in two_seeds(task=t, returns=RETURNS + more)]
    results = results_of(tmp_path, *runs, *two_seeds())
    table = table_of(results, [*JACO_TARGETS, "walker_run"], ["AT+BPT N=4"])
    names = [row.name for row in table.rows]
    assert names == [*JACO_TARGETS, JACO, "walker_run", AVERAGE]
    mean, walker = table.cells[JACO, "AT+BPT N=4"], table.cells["walker_run", "AT+BPT N=4"]
    for protocol in PROTOCOLS:
        assert mean.returns[protocol].value == pytest.approx(walker.returns[protocol].value + 6.0)
    # The same chance in every target: the mean has an interval as wide as one target's.
    widths = [table.cells[name, "AT+BPT N=4"].returns["last"] for name in (JACO_TARGETS[0], JACO)]
    assert widths[0].high - widths[0].low == pytest.approx(widths[1].high - widths[1].low)
    assert mean.scores["last"].value == pytest.approx(
        100 * (mean.returns["last"].value - 11.0) / (250.0 - 11.0)
    )
    average = table.cells[AVERAGE, "AT+BPT N=4"]
    assert average.returns == {}
    assert average.scores["max"].value == pytest.approx(
        (mean.scores["max"].value + walker.scores["max"].value) / 2
    )
    assert average.scores["max"].low is not None
    # The paper's one number stands once.
    assert [table.cells[name, "AT+BPT N=4"].published for name in names] == [
        *[None] * 4,
        52.98,
        88.56,
        None,
    ]


def test_without_all_targets_jaco_has_no_mean(tmp_path: Path):
    results = results_of(tmp_path, {"task": JACO_TARGETS[0]})
    table = table_of(results, list(JACO_TARGETS), ["AT+BPT N=4", "DT"])
    assert table.cells[JACO, "AT+BPT N=4"].unmeasured == NOT_ALL
    assert table.cells[JACO, "DT"].unmeasured == "not run"
    few = table_of(results, [JACO_TARGETS[0]], ["AT+BPT N=4"])
    assert [row.name for row in few.rows] == [JACO_TARGETS[0], AVERAGE]
    assert few.cells[JACO_TARGETS[0], "AT+BPT N=4"].published == 52.98


def test_the_average_is_over_all_tasks_that_were_run_or_it_is_none(tmp_path: Path):
    results = results_of(
        tmp_path,
        *two_seeds(),
        *two_seeds(method="dt", returns=RETURNS * 2),
        *two_seeds(task="cheetah_run"),
    )
    methods = ["DT", "AT+BPT N=4", "AT N=32"]  # run on one task, on both, nowhere
    table = table_of(results, ["walker_run", "cheetah_run", "quadruped_walk"], methods)
    for protocol in PROTOCOLS:
        parts = [
            table.cells[t, "AT+BPT N=4"].scores[protocol] for t in ("walker_run", "cheetah_run")
        ]
        average = table.cells[AVERAGE, "AT+BPT N=4"].scores[protocol]
        assert average.value == pytest.approx(np.mean([part.value for part in parts]))
    assert [table.cells[AVERAGE, name].unmeasured for name in methods] == ["-", "", "-"]
    assert "(2 of 2: walker_run, cheetah_run), of the methods that have them all" in table.notes[-1]


def test_a_cell_of_fewer_trainings_says_so_and_why(tmp_path: Path):
    three = [{"seed": seed, "returns": RETURNS + seed} for seed in range(3)]
    results = results_of(tmp_path, *three, *two_seeds(method="dt"))
    why = {("walker_run", "DT"): "ended by signal 9"}
    table = table_of(results, ["walker_run"], ["AT+BPT N=4", "DT"], unmeasured=why)
    row = render_suite_markdown(table).split("| walker_run |")[1].splitlines()[0]
    at, dt = row.split("|")[:2]
    assert "n = 2" in dt
    assert "n =" not in at
    notes = "\n".join(table.notes)
    assert "DT on walker_run: a training is left out: ended by signal 9." in notes
    assert "Trainings (seeds) a cell: 3, where it does not say n = fewer." in notes
    assert "75 % with 3" in notes


def test_unlike_seeds_are_averaged_without_an_interval(tmp_path: Path):
    results = results_of(tmp_path, *two_seeds(), {"task": "walker_walk", "seed": 5})
    table = table_of(results, ["walker_run", "walker_walk"], ["AT+BPT N=4"])
    average = table.cells[AVERAGE, "AT+BPT N=4"].scores["mean"]
    tasks = ("walker_run", "walker_walk")
    parts = [table.cells[task, "AT+BPT N=4"].scores["mean"].value for task in tasks]
    assert average == (pytest.approx(np.mean(parts)), None, None)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"task": "walker_stand"}, "its task is not in the table"),
        ({"method": "bc10"}, "its column is not in the table"),
        ({"returns": RETURNS[:, :2], "task": "walker_walk"}, "trajectories must be the same"),
        ({"settings": {"trajectories": 4, "scheme": "blockwise", "x": 1}}, "set otherwise"),
        ({"seed": 1, "dataset": "other"}, "dataset.data_hash"),
    ],
)
def test_what_is_no_part_of_one_table_is_refused(tmp_path: Path, run: dict[str, Any], said: str):
    results = results_of(tmp_path, {}, {k: v for k, v in run.items() if k != "dataset"})
    if "dataset" in run:
        results[1] = results[1]._replace(dataset=results[1].dataset._replace(data_hash="other"))
    with pytest.raises(InputError, match=said):
        table_of(results, ["walker_run", "walker_walk"], ["AT+BPT N=4"])


def test_settings_that_differ_between_tasks_are_said(tmp_path: Path):
    settings = {"trajectories": 4, "scheme": "blockwise"}
    results = results_of(
        tmp_path,
        {"settings": {**settings, "batch": 64}},
        {"settings": {**settings, "batch": 16}, "task": "walker_walk", "action_repeat": 2},
    )
    table = table_of(results, ["walker_run", "walker_walk"], ["AT+BPT N=4"])
    assert any("batch is 64 for walker_run, 16 for walker_walk" in note for note in table.notes)
    assert [row.label for row in table.rows] == [
        "walker_run",
        "walker_walk (action repeat 2)",
        "average",
    ]


def test_csv_holds_every_number_unrounded(tmp_path: Path):
    table = table_of(results_of(tmp_path, *two_seeds()), ["walker_run"], ["AT+BPT N=4", "DT"])
    lines = list(csv.DictReader(io.StringIO(render_suite_csv(table))))
    assert [line["protocol"] for line in lines[: len(ORDER)]] == ["mean", "last", "first", "max"]
    found = {(line["row"], line["column"], line["protocol"]): line for line in lines}
    line = found["walker_run", "AT+BPT N=4", "last"]
    interval = table.cells["walker_run", "AT+BPT N=4"].returns["last"]
    assert tuple(float(line[f"return{end}"]) for end in ("", "_low", "_high")) == interval
    assert (line["seeds"], line["published"]) == ("2", "88.56")
    assert found["walker_run", "DT", "max"]["unmeasured"] == "not run"
    assert found["walker_run", "DT", "max"]["return"] == ""
    assert len(lines) == 2 * 2 * len(ORDER)


def test_latex_has_a_table_a_protocol_with_the_average_apart(tmp_path: Path):
    table = table_of(results_of(tmp_path, *two_seeds(method="a_b%")), ["walker_run"], ["a_b%"])
    latex = render_suite_latex(table)
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 4
    assert "task & a\\_b\\% \\\\" in latex
    assert "\\midrule\naverage & " in latex
    assert r"\shortstack[r]{158.3\\{}[" in latex


def test_picture_holds_every_text_inside_its_borders(tmp_path: Path):
    tasks = ["walker_run", "cheetah_run"]
    long = "an even longer name of a column with $ in it"
    results = results_of(tmp_path, *two_seeds(), *two_seeds(method=long))
    table = table_of(
        results,
        tasks,
        ["AT+BPT N=4", long],
        unmeasured={("cheetah_run", long): "oom: 165 GB predicted of 76 GB that the device has"},
    )
    figure = suite_figure(table, "max")
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    boxes = [text.get_window_extent() for text in texts]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)
    overlaps = [
        (a.get_text(), b.get_text())
        for i, (a, box_a) in enumerate(zip(texts, boxes, strict=True))
        for b, box_b in zip(texts[i + 1 :], boxes[i + 1 :], strict=True)
        if box_a.overlaps(box_b)
    ]
    assert not overlaps
    pixels = matplotlib.image.imread(io.BytesIO(suite_png(table, "max")))
    assert pixels.shape[1] == round(figure.get_figwidth() * figure.dpi)


def test_a_column_that_did_not_fit_has_no_average_and_takes_no_task_from_the_others(tmp_path: Path):
    vanilla = {"settings": {"trajectories": 32, "scheme": "vanilla"}}
    tasks = ["walker_run", "cheetah_run"]
    runs = [run for task in tasks for run in two_seeds(task=task)]
    results = results_of(tmp_path, *runs, *two_seeds(**vanilla))
    table = table_of(
        results,
        tasks,
        ["AT+BPT N=4", "AT N=32"],
        unmeasured={("cheetah_run", "AT N=32"): "oom: 165 GB of 80 GB"},
    )
    assert table.cells[AVERAGE, "AT N=32"].unmeasured == "oom"
    assert "(2 of 2: walker_run, cheetah_run)" in table.notes[-1]
