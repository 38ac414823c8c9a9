"""Cells on a Ray cluster of one machine: the same files, and a worker that dies is replaced."""

import sys

import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation
from agentic_bpt.methods import preset_of
from agentic_bpt.suites import runner
from agentic_bpt.suites.cell import Cell

ray = pytest.importorskip("ray", reason="needs the extra ray")
# Ray forks before it starts its own programs; by then another test may have started JAX's threads.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")

CELL = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
with open(folder / "begun", "a") as file:
    file.write("x")
if folder.name.startswith("dies") and (folder / "begun").read_text() == "x":
    os.kill(os.getppid(), 9)  # the worker
    os.read(os.pipe()[0], 1)  # this process must not outlive it
if folder.name.startswith("fails"):
    print("this store has no episodes", file=sys.stderr, flush=True)
    raise SystemExit(2)
steps = json.loads((folder / "asked/experiment.json").read_text())["loop"]["steps"]
(folder / {result!r}).write_text(json.dumps(dict(training=dict(steps=steps))))
"""


@pytest.fixture
def cluster():
    yield ray.init(num_cpus=2, include_dashboard=False).address_info["address"]
    ray.shutdown()


def test_cells_run_on_the_cluster_and_one_whose_worker_dies_runs_again(
    cluster, tmp_path, monkeypatch
):
    evaluation = Evaluation(trajectories=2, chains=1)
    script = tmp_path / "cell.py"
    script.write_text(CELL.format(result=evaluation.file_name()))
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, str(script)))
    cells = [
        Cell(
            task="walker_walk",
            column=column,
            experiment=preset_of("bc10", "cpu"),
            evaluation=evaluation,
            folder=tmp_path / f"{column}-seed0",
        )
        for column in ("works", "dies", "fails")
    ]
    told = []
    states = runner.run_cells(
        cells, workers=2, ray=cluster, changed=lambda cell, state, left: told.append(cell.column)
    )
    assert {name.split()[1]: state.kind for name, state in states.items()} == {
        "works-seed0": "done",
        "dies-seed0": "done",
        "fails-seed0": "failed",
    }
    assert [len((cell.folder / "begun").read_text()) for cell in cells] == [1, 2, 1]
    assert states["walker_walk fails-seed0"].why == "this store has no episodes"
    assert sorted(told) == ["dies", "fails", "works"]


def test_a_cluster_that_is_not_there_is_said():
    with pytest.raises(InputError, match=r"--ray 127\.0\.0\.1:1: no cluster can be joined"):
        runner.run_cells([], workers=1, ray="127.0.0.1:1")
