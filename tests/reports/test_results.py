"""Result files: written whole or not at all, read with every fault named, refused when unlike."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_builders import result_document, write_result

from agentic_bpt.errors import InputError
from agentic_bpt.reports.results import (
    check_comparable,
    exclude_unfinished,
    read_result,
    read_results,
    write_json,
    write_report,
)

PROTOCOL = {"trajectories": 3, "chains": 2, "prompt_trajectories": 0, "evaluation_seed": 7}


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    path = write_result(tmp_path, seed=3, multipliers=(0.5, 1.0))
    result = read_result(path)
    assert (result.method, result.task, result.seed) == ("at", "walker_run", 3)
    assert result.main.target_return == 400.0
    np.testing.assert_array_equal(result.main.returns, [[100, 200, 150], [110, 190, 170]])
    np.testing.assert_array_equal(result.conditions[0].returns, [[50, 100, 75], [55, 95, 85]])
    assert result.random_returns.shape == (2, 3)
    assert result.dataset.best_tenth_mean == 114.5
    assert result.dataset.returns.shape == (100,)
    assert result.protocol == (3, 2, 0, 7)


def test_json_has_no_nan_and_takes_numpy(tmp_path: Path):
    path = tmp_path / "new folder" / "a.json"
    write_json(path, {"a": np.float32(0.5), "b": np.array([1.0, np.inf]), "c": (Path("x"), None)})
    assert json.loads(path.read_text()) == {"a": 0.5, "b": [1.0, None], "c": ["x", None]}


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("agentic_bpt.whole_file.os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "training"}, '"kind" must be "evaluation", got \'training\''),
        ({"format": 2}, '"format" must be 1, got 2'),
        ({"protocol": {**PROTOCOL, "chains": 5}}, r"= \[5, 3\], got \[2, 3\]"),
        ({"protocol": {"trajectories": 3, "chains": 2}}, "'prompt_trajectories' is missing"),
        ({"conditions": []}, '"conditions" is empty'),
        ({"multipliers": (0.5, 1.25)}, r"target_multiplier 1, and none twice, got \[0.5, 1.25\]"),
        ({"multipliers": (1.0, 0.5, 0.5)}, r"none twice, got \[1.0, 0.5, 0.5\]"),
        ({"random": {"returns": [[1.0, 2.0], [3.0]]}}, "malformed"),
        ({"random": {"returns": [1.0, 2.0]}}, r'"random.returns" must be .* got \[2\]'),
        ({"created": "yesterday"}, "malformed .*yesterday"),
    ],
)
def test_each_fault_of_a_file_is_named(tmp_path: Path, changes: dict[str, Any], message: str):
    path = write_result(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_result(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff".encode("utf-8", "surrogateescape")])
def test_what_is_no_result_file_is_refused(tmp_path: Path, text: str | bytes):
    path = tmp_path / "evaluation-a.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match=r"not a JSON file|must be"):
        read_results([path])


def test_missing_file_empty_folder_and_folder_one_level_up_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        read_results([tmp_path / "none.json"])
    with pytest.raises(InputError, match="evaluate the run"):
        read_results([tmp_path])
    write_result(tmp_path / "at-0")
    with pytest.raises(InputError, match=r"name the run folders in it: .*at-0"):
        read_results([tmp_path])
    with pytest.raises(InputError, match="no results given"):
        read_results([])


def test_of_a_folder_only_the_newest_protocol_and_evaluation_is_taken(tmp_path: Path):
    day = "2025-01-0{}T10:00:00+00:00"
    write_result(tmp_path, key="a", seed=5, returns=[[1.0, 2.0]], created=day.format(1))
    old = write_result(tmp_path, key="c", created=day.format(4))
    # Half an hour later than the one before, though its text sorts first.
    new = write_result(tmp_path, key="b", created="2025-01-04T09:30:00-01:00")
    other_method = write_result(tmp_path, key="d", method="dt", created="2025-01-02T10:00:00")
    assert [result.path for result in read_results([tmp_path])] == [new, other_method]
    assert [result.path for result in read_results([old, new, tmp_path])] == [
        old,
        new,
        other_method,
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": "walker_walk"},
            r"task is 'walker_run' in .*a.json but 'walker_walk' in .*b.json",
        ),
        ({"action_repeat": 2}, r"action_repeat is 1 in .*a.json but 2 in .*b.json"),
        ({"returns": [[1.0, 2.0]] * 2}, r"protocol.trajectories is 3 .* but 2 in"),
        ({"returns": [[1.0, 2.0, 3.0]] * 4}, r"protocol.chains is 2 .* but 4 in"),
        ({"protocol": {**PROTOCOL, "prompt_trajectories": 2}}, r"prompt_trajectories is 0 .* 2"),
        ({"protocol": {**PROTOCOL, "evaluation_seed": 8}}, r"evaluation_seed is 7 .* 8"),
        ({"multipliers": (0.5,)}, r"target_return is \S+ in .* but"),
        ({"dataset": {**result_document()["dataset"], "data_hash": "ff"}}, "data_hash .* 'ff'"),
        ({"seed": 0}, "seed 0 of at with these settings is also in"),
    ],
)
def test_unlike_results_are_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    paths = [
        write_result(tmp_path, key="a"),
        write_result(tmp_path, key="b", **{"seed": 1, **changes}),
    ]
    with pytest.raises(InputError, match=message):
        check_comparable(read_results(paths))


def test_a_policy_without_target_needs_no_prompt(tmp_path: Path):
    paths = [
        write_result(tmp_path, key="a", protocol={**PROTOCOL, "prompt_trajectories": 2}),
        write_result(tmp_path, key="b", method="bc10", multipliers=(None,)),
    ]
    results = read_results(paths)
    check_comparable(results)
    assert [result.has_target for result in results] == [True, False]


def test_runs_with_returns_that_are_not_finite_are_parted(tmp_path: Path):
    good = write_result(tmp_path, key="a")
    bad = write_result(tmp_path, key="b", seed=1, returns=[[1.0, float("nan"), 2.0]] * 2)
    kept, excluded = exclude_unfinished(read_results([good, bad]))
    assert ([r.path for r in kept], [r.path for r in excluded]) == ([good], [bad])
    with pytest.raises(InputError, match=r"not finite.*evaluation-b.json"):
        exclude_unfinished(read_results([bad]))


def test_report_says_where_its_numbers_are_from(tmp_path: Path):
    paths = [
        write_result(tmp_path / f"at-{seed}", seed=seed, versions={"mujoco": version})
        for seed, version in ((0, "3.17.0"), (1, "3.18.0"))
    ]
    files = write_report(paths, tmp_path / "report")
    assert files.png.read_bytes().startswith(b"\x89PNG")
    assert files.csv.read_text().startswith("task,action_repeat,kind,label")
    page = files.markdown.read_text()
    for said in (
        "](report.png)",
        "agentic-bpt evaluate runs/at-1",
        "hash `0123456789ab`",
        "training episodes of 100, hash",
        "chains of n = 3 trajectories, 2 chains a run",
        "evaluation seed 7",
        "- mujoco: 3.17.0, 3.18.0 (differs between the runs)",
        "| `runs/at-1` | at | 1 | trajectories = 4, scheme = blockwise | steps 1000, tokens 64000",
    ):
        assert said in page
    assert sorted(path.name for path in files.png.parent.iterdir()) == [
        "report.csv",
        "report.md",
        "report.png",
        "report.tex",
    ]


def test_same_results_give_the_same_report(tmp_path: Path):
    path = write_result(tmp_path / "at-0", multipliers=(0.5, 1.0))
    first, second = (write_report([path], tmp_path / name) for name in ("one", "two"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_report_into_a_file_is_refused(tmp_path: Path):
    path = write_result(tmp_path)
    with pytest.raises(InputError, match="is a file; name a folder"):
        write_report([path], path)


def test_reports_load_no_jax_and_reading_loads_no_matplotlib():
    code = (
        "import sys, agentic_bpt.reports.results; assert 'matplotlib' not in sys.modules;"
        "import agentic_bpt.reports.table, agentic_bpt.reports.plots;"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
