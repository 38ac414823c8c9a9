"""The curve over N from data to page, with cells of two updates."""

import csv
import dataclasses
import json
import os

import numpy as np
import pytest

from agentic_bpt.datasets.store import ingest
from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import settings_of
from agentic_bpt.experiment import replace_in
from agentic_bpt.exploration.collect import collect
from agentic_bpt.reports.results import write_json
from agentic_bpt.suites import runner
from agentic_bpt.suites.cell import State, record, require_own
from agentic_bpt.suites.equal_time import equal_time_cells, update_seconds
from agentic_bpt.suites.table5 import PRESETS
from agentic_bpt.suites.trajectory_count import Grid, grid_cells, plain_cells
from agentic_bpt.suites.trajectory_count_run import (
    Costs,
    run_trajectory_count,
    write_comparison,
)
from tests.builders import make_store
from tests.reports.report_builders import result_document


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path, episodes=12)


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
    options = {"episodes": 12, "out": tmp_path / "played", "action_repeat": 100}
    collect("cartpole_swingup", expl_agent="random", progress=False, **options)
    source = tmp_path / "played/cartpole/random"
    store = ingest(source, task="cartpole_swingup", out=tmp_path / "played").path
    asked = {"store": store, "trajectories": (1, 2), "prompts": (0, 1), "equal_time": True}
    assert run(**asked, dry_run=True)
    assert not (tmp_path / "curve/report").exists()
    seconds = {1: 1.0, 2: 2.0}
    monkeypatch.setattr(
        "agentic_bpt.suites.equal_time._timed_apart",
        lambda experiments, cores: [seconds[e.agent.chain.trajectories] for e in experiments],
    )
    assert run(**asked)
    page = tmp_path / "curve/report/cartpole_swingup/trajectory_count.md"
    assert "along the chain" in page.read_text()
    assert "Left out" not in page.read_text()
    found = rows_of(page.with_suffix(".csv"))
    series = {"equal updates", "equal updates, prompt of 1", "equal time", "yardstick"}
    assert {row["series"] for row in found} == series
    yardsticks = {row["trajectories"] for row in found if row["series"] == "yardstick"}
    assert yardsticks == {"DT", "TD3", "TD3+BC"}
    folder = tmp_path / "curve/cartpole_swingup"
    longer = json.loads((folder / "at-n1-blockwise-4-updates-seed0/experiment.json").read_text())
    assert longer["loop"]["steps"] == 4  # twice as many as N = 2 has, which takes twice the time
    assert "| 1 | 4 | 1 |" in page.read_text()
    without, prompted = sorted((folder / "at-n2-blockwise-seed0").glob("evaluation-*.json"))
    returns_CN = np.array(json.loads(without.read_text())["conditions"][0]["returns"])
    assert json.loads(prompted.read_text())["protocol"]["prompt_trajectories"] == 1
    (last,) = (
        float(row["value"])
        for row in found
        if (row["series"], row["trajectories"], row["n"], row["statistic"])
        == ("equal updates", "2", "2", "last")
    )
    assert last == pytest.approx(returns_CN[:, -1].mean())
    monkeypatch.setattr(runner, "_start", None)  # a cell that is done is not begun again
    assert run(**asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trajectories": (1, 99)}, "too few for chains of 99"),
        ({"prompts": (0, 99)}, "--prompts must be from 0 to 11"),
        ({"prompts": (-1,)}, "--prompts must be from 0 to 11"),
        ({"prompts": (1,), "equal_time": True}, "add 0 to --prompts"),
        ({"equal_time": True, "ray": "auto"}, "times updates on this machine: leave out --ray"),
        ({"test": ()}, "--test and --prompts need a number each"),
    ],
)
def test_what_cannot_be_is_refused_before_training(run, tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        run(**changes)
    assert not (tmp_path / "curve/cartpole_swingup").exists()


def finish(cell) -> None:
    """Leave the result that a cell would have, carried here without its run."""
    experiment = cell.experiment
    document = result_document(
        method=experiment.method,
        seed=experiment.seed,
        task=cell.task,
        settings=settings_of(experiment),
        training={"steps": experiment.loop.steps, "median_tokens_per_second": 100.0},
    )
    document["dataset"]["data_hash"] = experiment.data_hash
    write_json(cell.result, document)


def test_what_cannot_be_shown_is_listed_and_what_is_not_ours_refused(store, tmp_path):
    grid = Grid("cartpole_swingup", store, (1, 2, 4), (1, 2), (0,), seeds=1)
    cells = grid_cells(grid, PRESETS["cpu"], steps=2, workdir=tmp_path)
    costs = Costs({cell.column: 2**20 for cell in cells}, {})
    assert write_comparison(grid, cells, costs, out=tmp_path) is None
    *finished, out_of_memory = sorted(cells, key=lambda cell: cell.column == "at-n4-blockwise")
    for cell in finished:
        finish(cell)
    require_own(cells)
    record(out_of_memory, State("oom", "oom: 5 GB predicted of 4"))
    of = {cell.column: cell.result for cell in cells}
    of["at-n1-blockwise"].write_text(of["at-n1-blockwise"].read_text()[:100])
    document = json.loads(of["dt"].read_text())
    document["conditions"][0]["returns"][0][0] = None  # JSON has no NaN
    of["dt"].write_text(json.dumps(document))
    path = write_comparison(grid, cells, costs, out=tmp_path)
    assert path
    page = path.read_text()
    assert "- cartpole_swingup at-n1-blockwise-seed0: " in page
    assert "- cartpole_swingup at-n4-blockwise-seed0: oom: 5 GB predicted of 4" in page
    assert f"- cartpole_swingup dt-seed0: {of['dt']}: holds returns that are not finite" in page
    assert "| DT |" not in page
    assert "| TD3 |" in page
    more = grid_cells(grid, PRESETS["cpu"], steps=3, workdir=tmp_path)
    with pytest.raises(InputError, match="steps is 2 there and 3 here"):
        require_own(more)


def test_at_equal_time_each_n_trains_as_long_as_the_slowest(store, tmp_path):
    grid = Grid("cartpole_swingup", store, (1, 2), (1,), (0,), seeds=2)
    cells = plain_cells(grid_cells(grid, PRESETS["cpu"], steps=100, workdir=tmp_path))
    seconds = {"at-n1-blockwise": 0.5, "at-n2-blockwise": 1.0}
    again = equal_time_cells(cells, seconds)
    steps = [(cell.column, cell.experiment.loop.steps, cell.folder.name) for cell in again]
    assert steps == [
        ("at-n1-blockwise-time", 200, "at-n1-blockwise-200-updates-seed0"),
        ("at-n2-blockwise-time", 100, "at-n2-blockwise-seed0"),  # the slowest is what it was
        ("at-n1-blockwise-time", 200, "at-n1-blockwise-200-updates-seed1"),
        ("at-n2-blockwise-time", 100, "at-n2-blockwise-seed1"),
    ]


def test_updates_are_timed_once_and_a_new_n_in_the_measure_of_the_old(store, tmp_path, monkeypatch):
    grid = Grid("cartpole_swingup", store, (1, 2, 4), (1,), (0,), seeds=2)
    cells = plain_cells(grid_cells(grid, PRESETS["cpu"], steps=100, workdir=tmp_path))
    two = [cell for cell in cells if cell.column != "at-n4-blockwise"]
    asked = []

    def timed(experiments, cores):
        asked.append([experiment.agent.chain.trajectories for experiment in experiments])
        assert cores == sorted(os.sched_getaffinity(0))
        speed = len(asked)  # the machine is slower the second time
        return [speed * experiment.agent.chain.trajectories for experiment in experiments]

    monkeypatch.setattr("agentic_bpt.suites.equal_time._timed_apart", timed)
    first = {"at-n1-blockwise": 1, "at-n2-blockwise": 2}
    for _ in range(2):
        assert update_seconds(two, tmp_path, workers=1) == first
    assert update_seconds(cells, tmp_path, workers=1) == first | {"at-n4-blockwise": 4}
    assert asked == [[1, 2], [4, 2]]
    wider = [
        dataclasses.replace(c, experiment=replace_in(c.experiment, ("batch",), 3)) for c in two
    ]
    update_seconds(wider, tmp_path, workers=1)  # another experiment is another time
    assert asked[2:] == [[1, 2]]


def test_an_update_that_cannot_be_timed_is_one_line(store, tmp_path):
    grid = Grid("cartpole_swingup", store, (1,), (1,), (0,), seeds=1)
    cells = plain_cells(grid_cells(grid, PRESETS["cpu"], steps=100, workdir=tmp_path))
    store.unlink()
    with pytest.raises(InputError, match=r"--equal-time: an update cannot be timed; got .*ingest"):
        update_seconds(cells, tmp_path, workers=1)
