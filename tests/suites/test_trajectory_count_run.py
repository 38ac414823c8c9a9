"""The curve over N from data to page, with cells of two updates."""

import csv
import dataclasses
import json

import numpy as np
import pytest

from agentic_bpt.datasets.store import ingest
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import collect
from agentic_bpt.suites import runner
from agentic_bpt.suites.table5 import PRESETS
from agentic_bpt.suites.trajectory_count import Grid, equal_time_cells, grid_cells
from agentic_bpt.suites.trajectory_count_run import run_trajectory_count


@pytest.fixture
def store(tmp_path):
    collect(
        "cartpole_swingup",
        expl_agent="random",
        episodes=12,
        out=tmp_path / "data",
        action_repeat=100,
        progress=False,
    )
    return ingest(
        tmp_path / "data/cartpole/random", task="cartpole_swingup", out=tmp_path / "stores"
    ).path


@pytest.fixture
def run(tmp_path, store, monkeypatch):
    small = dataclasses.replace(PRESETS["cpu"], chains=2, timesteps_per_update=20)
    monkeypatch.setitem(PRESETS, "cpu", small)

    def run(**changes) -> bool:
        options = {
            "store": store,
            "workdir": tmp_path / "curve",
            "preset": "cpu",
            "trajectories": (2, 1),
            "test": (1, 2),
            "prompts": (0,),
            "seeds": 1,
            "steps": 2,
            "equal_time": False,
            "workers": 2,
            "ray": None,
            "dry_run": False,
        }
        return run_trajectory_count(**{**options, **changes})

    return run


def rows_of(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_from_a_store_to_the_curve_and_not_twice(run, tmp_path, monkeypatch):
    assert run(dry_run=True)
    assert not (tmp_path / "curve/report").exists()
    assert run()
    page = tmp_path / "curve/report/trajectory_count.md"
    assert "along the chain" in page.read_text()
    found = rows_of(page.with_suffix(".csv"))
    assert {row["series"] for row in found} == {"equal updates", "yardstick"}
    yardsticks = {row["trajectories"] for row in found if row["series"] == "yardstick"}
    assert yardsticks == {"DT", "TD3", "TD3+BC"}
    (of_n2,) = (tmp_path / "curve/cartpole_swingup/at-n2-blockwise-seed0").glob("evaluation-*.json")
    returns_CN = np.array(json.loads(of_n2.read_text())["conditions"][0]["returns"])
    (last,) = (
        float(row["value"])
        for row in found
        if (row["series"], row["trajectories"], row["n"], row["statistic"])
        == ("equal updates", "2", "2", "last")
    )
    assert last == pytest.approx(returns_CN[:, -1].mean())
    monkeypatch.setattr(runner, "_start", None)  # a cell that is done is not begun again
    assert run()


def test_prompts_are_further_evaluations_of_one_training(run, tmp_path):
    assert run(trajectories=(2,), prompts=(0, 1))
    folder = tmp_path / "curve/cartpole_swingup/at-n2-blockwise-seed0"
    assert len(list(folder.glob("evaluation-*.json"))) == 2
    found = rows_of(tmp_path / "curve/report/trajectory_count.csv")
    assert "equal updates, prompt of 1" in {row["series"] for row in found}


def test_more_trajectories_than_episodes_are_refused(run):
    with pytest.raises(InputError, match="too few for chains of 99"):
        run(trajectories=(1, 99))


def test_at_equal_time_each_n_trains_as_long_as_the_slowest(store, tmp_path):
    small = dataclasses.replace(PRESETS["cpu"], timesteps_per_update=20)
    grid = Grid("cartpole_swingup", store, (1, 2), (1,), (0,), seeds=1)
    cells = grid_cells(grid, small, steps=100, workdir=tmp_path)
    for cell in cells:
        # Both see 20 timesteps an update, so half the rate is twice the time.
        rate = {"at-n1-blockwise": 1000.0, "at-n2-blockwise": 500.0}.get(cell.column, 1.0)
        cell.folder.mkdir(parents=True)
        cell.result.write_text(json.dumps({"training": {"median_tokens_per_second": rate}}))
    again = equal_time_cells(cells, timesteps=10)
    steps = {cell.column: cell.experiment.loop.steps for cell in again}
    assert steps == {"at-n1-blockwise-time": 200, "at-n2-blockwise-time": 100}
    assert not {cell.folder for cell in again} & {cell.folder for cell in cells}


def test_the_page_of_equal_time_holds_both(run, tmp_path):
    assert run(equal_time=True)
    found = rows_of(tmp_path / "curve/report/trajectory_count.csv")
    assert {"equal updates", "equal time"} <= {row["series"] for row in found}
