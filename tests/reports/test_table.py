"""The table: what is pooled, what stands beside it, what must be said, and its renderings."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_builders import write_result

from agentic_bpt.evaluation.protocol import normalized_score, summarize
from agentic_bpt.reports.results import read_results
from agentic_bpt.reports.table import (
    ResultsTable,
    Row,
    build_table,
    random_returns,
    render_csv,
    render_markdown,
    render_plain,
)


def table_of(tmp_path: Path, *runs: dict[str, Any]) -> ResultsTable:
    return build_table(
        read_results([write_result(tmp_path / str(i), **run) for i, run in enumerate(runs)])
    )


def row_named(table: ResultsTable, label: str) -> Row:
    (row,) = [row for row in table.rows if row.label == label]
    return row


def test_seeds_are_pooled_and_settings_are_not(tmp_path: Path):
    one, two = [[1.0, 5.0, 3.0]] * 2, [[10.0, 7.0, 8.0]] * 2
    long = {"trajectories": 32, "scheme": "blockwise"}
    table = table_of(
        tmp_path,
        {"seed": 0, "returns": one},
        {"seed": 0, "returns": two, "settings": long},
        {"seed": 1, "returns": two},
        {"method": "dt", "returns": one, "settings": {}},
    )
    methods = [row for row in table.rows if row.kind == "method"]
    assert [(row.label, row.seeds) for row in methods] == [
        ("at (trajectories=4)", (0, 1)),
        ("at (trajectories=32)", (0,)),
        ("dt", (0,)),
    ]
    values = {name: interval.value for name, interval in methods[0].statistics.items()}
    assert values == {"first": 5.5, "last": 5.5, "mean": 17 / 3, "max": 7.5, "iqm_last": 5.5}
    assert methods[0].statistics["last"] == summarize(np.array([one, two]))["last"]


def test_random_and_dataset_stand_beside_the_methods(tmp_path: Path):
    table = table_of(tmp_path, {}, {"seed": 1})
    assert [row.kind for row in table.rows] == ["method", "random", "dataset", "dataset", "dataset"]
    # linspace(20, 25) over two chains of three
    assert row_named(table, "random policy").statistics["max"].value == pytest.approx(23.5)
    assert row_named(table, "dataset: mean").statistics == {"mean": (69.5, None, None)}
    assert row_named(table, "dataset: best tenth, mean").statistics["mean"].value == 114.5
    assert row_named(table, "dataset: best").statistics == {"max": (119.0, None, None)}


def test_rollouts_of_the_random_policy_count_once(tmp_path: Path):
    same = [write_result(tmp_path, key=key, seed=i) for i, key in enumerate("ab")]
    assert random_returns(read_results(same)).shape == (1, 2, 3)
    other = write_result(tmp_path, key="c", random={"returns": np.ones((2, 3))})
    assert random_returns(read_results([*same, other])).shape == (1, 4, 3)


def test_interquartile_mean_leaves_out_the_outlier(tmp_path: Path):
    table = table_of(tmp_path, {"returns": [[0.0, last] for last in (10.0, 11.0, 13.0, 900.0)]})
    statistics = row_named(table, "at").statistics
    assert statistics["iqm_last"].value == 12.0
    assert statistics["last"].value == 233.5


def test_one_seed_is_called_one_seed(tmp_path: Path):
    table = table_of(tmp_path, {"seed": 0}, {"seed": 1}, {"method": "dt"})
    page = render_markdown(table)
    assert "| at | 2 seeds |" in page
    assert "| dt | 1 seed |" in page
    assert "not over trainings" in page
    assert "not over trainings" not in render_markdown(table_of(tmp_path, {}, {"seed": 1}))


def test_how_the_result_moves_with_the_target(tmp_path: Path):
    multipliers = (1.25, 0.5, 1.0)
    table = table_of(
        tmp_path,
        {"multipliers": multipliers},
        {"multipliers": (0.5, 1.0), "seed": 1},
        {"method": "bc10", "multipliers": (None,)},
    )
    rows = [
        (row.label, row.target_multiplier, row.target_return, row.seeds)
        for row in table.target_rows
    ]
    assert rows == [
        ("at", 0.5, 200.0, (0, 1)),
        ("at", 1.0, 400.0, (0, 1)),
        ("at", 1.25, 500.0, (0,)),
    ]
    assert [row.statistics["last"].value for row in table.target_rows] == [80.0, 160.0, 200.0]
    assert [row.statistics["max"].value for row in table.target_rows] == [97.5, 195.0, 243.75]
    page = render_markdown(table)
    assert "| at | 0.5 x = 200.0 | 2 seeds | 80.0 (6.7) [75.0, 85.0] |" in page
    assert row_named(table, "bc10").target_return is None


def test_seeds_without_target_are_pooled_whatever_their_multiplier(tmp_path: Path):
    table = table_of(
        tmp_path,
        {"method": "bc10", "multipliers": (None,)},
        {
            "method": "bc10",
            "seed": 1,
            "conditions": [
                {"target_multiplier": 1.0, "target_return": None, "returns": [[1, 2, 3]] * 2}
            ],
        },
    )
    assert row_named(table, "bc10").seeds == (0, 1)


def test_without_other_targets_there_is_no_such_section(tmp_path: Path):
    assert "moves with the target" not in render_markdown(table_of(tmp_path, {}))


@pytest.mark.parametrize(("chains", "warned"), [(1, True), (4, True), (5, False)])
def test_few_chains_are_warned_of(tmp_path: Path, chains: int, warned: bool):
    table = table_of(tmp_path, {"returns": [[1.0, 2.0]] * chains})
    for text in (render_markdown(table), render_plain(table, width=200)):
        assert ("too few for the intervals to be believed" in text) is warned


def test_one_number_has_no_interval_and_says_so(tmp_path: Path):
    table = table_of(tmp_path, {"returns": [[100.0, 50.0]]})
    assert "100.0 (9.1) [no interval]" in render_markdown(table)
    assert "[no interval]" in render_plain(table, width=200)


def test_a_run_that_is_not_finite_is_left_out_and_listed(tmp_path: Path):
    table = table_of(tmp_path, {"seed": 0}, {"seed": 1, "returns": [[1.0, 2.0, np.inf]] * 2})
    assert row_named(table, "at").seeds == (0,)
    (said,) = [warning for warning in table.warnings if "left out" in warning]
    assert "at, seed 1" in said
    assert str(tmp_path / "1") in said


def test_seeds_of_unlike_training_are_pooled_with_a_warning(tmp_path: Path):
    table = table_of(tmp_path, {}, {"seed": 1, "training": {"steps": 500}})
    assert any("unlike numbers of steps (1000, 500)" in warning for warning in table.warnings)


def test_published_numbers_stand_beside_for_order_only(tmp_path: Path):
    table = table_of(
        tmp_path,
        {},
        {"settings": {"trajectories": 32, "scheme": "blockwise"}},
        {"settings": {"trajectories": 32, "scheme": "vanilla"}},
        {"method": "dt"},
        {"method": "td3_offline"},
    )
    published = [row.published for row in table.rows if row.kind == "method"]
    assert published == [88.56, 105.88, "oom", 49.82, None]
    page = render_markdown(table)
    assert "published (order only)" in page
    assert "their scale is not plain dm_control return" in page


def test_a_task_without_published_numbers_or_reference_has_neither(tmp_path: Path):
    page = render_markdown(table_of(tmp_path, {"task": "quadruped_walk"}))
    assert "published" not in page.lower()
    assert "normalised" not in page
    assert "| 160.0 [150.0, 170.0] |" in page


def test_plain_text_keeps_every_digit_and_bracket_when_narrow(tmp_path: Path):
    table = table_of(tmp_path, {"settings": {"x": "[red]"}}, {"settings": {"x": "[/]"}})
    wide = render_plain(table, width=160)
    assert "[red]" in wide
    assert "\x1b" not in wide
    assert "[150.0, 170.0]" in wide
    narrow = render_plain(table, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow


def test_a_score_that_rounds_to_nothing_has_no_sign(tmp_path: Path):
    page = render_markdown(table_of(tmp_path, {"returns": [[22.55, 22.55]] * 5}))
    assert "(0.0)" in page
    assert "-0.0" not in page


def test_csv_holds_every_number_unrounded(tmp_path: Path):
    thirds = [[100 / 3, 200 / 3]] * 5 + [[0.0, 50.0]]
    table = table_of(tmp_path, {"returns": thirds, "multipliers": (0.5, 1.0)})
    lines = list(csv.DictReader(io.StringIO(render_csv(table))))
    assert [line["kind"] for line in lines] == ["method", "random", *["dataset"] * 3, "method"]
    assert [line["target_multiplier"] for line in lines if line["kind"] == "method"] == [
        "1.0",
        "0.5",
    ]
    main = lines[0]
    expected = row_named(table, "at").statistics["last"]
    assert (float(main["last"]), float(main["last_low"]), float(main["last_high"])) == expected
    assert float(main["last_score"]) == normalized_score("walker_run", expected.value)
    assert (main["task"], main["action_repeat"]) == ("walker_run", "1")
    assert (main["seeds"], main["chains"], main["trajectories"]) == ("1", "6", "2")
    assert lines[2]["first"] == ""


def test_a_pipe_in_a_setting_does_not_break_the_table(tmp_path: Path):
    page = render_markdown(table_of(tmp_path, {"settings": {"x": "a|b"}}, {"settings": {"x": "c"}}))
    assert "at (x=a\\|b)" in page
