"""Cells run apart: what one of them does to itself touches no other."""

import json
import os
import sys
import time

import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation
from agentic_bpt.methods import preset_of
from agentic_bpt.suites import runner
from agentic_bpt.suites.cell import OUT_OF_MEMORY, USER_ERROR, Cell, state_of

FAKE = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with open(folder / "begun", "a") as file:
    file.write("x")
what = folder.name.split("-")[0]
(folder / "environment").write_text(json.dumps(dict(os.environ)))
if what == "slow":
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(600)
times = len((folder / "begun").read_text())
if what == "killed" and times == 1 or what == "murdered":
    os.kill(os.getpid(), 9)
if what == "oom":
    print("RESOURCE_EXHAUSTED: 3 GB")
    raise SystemExit({oom})
if what == "wrong":
    print("this store has no episodes")
    raise SystemExit({wrong})
cores = json.loads((folder / "asked/request.json").read_text())["cores"]
steps = json.loads((folder / "asked/experiment.json").read_text())["loop"]["steps"]
training = dict(steps=steps // 2 if what == "half" else steps)
(folder / {result!r}).write_text(json.dumps(dict(training=training, cores=cores)))
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    evaluation = Evaluation(trajectories=2, chains=1)
    script = tmp_path / "fake.py"
    script.write_text(
        FAKE.format(oom=OUT_OF_MEMORY, wrong=USER_ERROR, result=evaluation.file_name())
    )
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, str(script)))

    def make(*columns):
        return [
            Cell(
                task="walker_walk",
                column=column,
                experiment=preset_of("bc10", "cpu"),
                evaluation=evaluation,
                folder=tmp_path / f"{column}-seed0",
            )
            for column in columns
        ]

    return make


def begun(cell) -> int:
    return len((cell.folder / "begun").read_text())


def test_the_rest_goes_on_whatever_a_cell_does(cells):
    asked = cells("killed", "murdered", "oom", "wrong", "good")
    told = {}
    states = runner.run_cells(
        asked, workers=2, changed=lambda cell, state, left: told.update({cell.column: state})
    )
    kinds = {cell.column: states[cell.name].kind for cell in asked}
    assert kinds == {
        "killed": "done",
        "murdered": "failed",
        "oom": "oom",
        "wrong": "failed",
        "good": "done",
    }
    assert [begun(cell) for cell in asked] == [2, 2, 1, 1, 1]
    assert "signal 9" in told["murdered"].why
    assert told["oom"].why == "oom: RESOURCE_EXHAUSTED: 3 GB"
    assert told["wrong"].why == "this store has no episodes"


def test_what_is_done_is_not_run_again_and_what_failed_is(cells):
    asked = cells("wrong", "good")
    for _ in range(2):
        runner.run_cells(asked, workers=1)
    assert [begun(cell) for cell in asked] == [2, 1]
    assert state_of(asked[0]).kind == "failed"


def test_a_result_of_half_the_updates_is_none(cells):
    (cell,) = cells("half")
    assert runner.run_cells([cell], workers=1)[cell.name].kind == "failed"
    assert cell.result.exists()


def test_each_of_several_workers_has_its_share_of_the_cores(cells):
    (cell,) = cells("good")
    runner.run_cells([cell], workers=1)
    assert json.loads(cell.result.read_text())["cores"] == sorted(os.sched_getaffinity(0))


def test_an_error_while_reporting_leaves_no_cell_running(cells):
    slow, good = cells("slow", "good")

    def changed(cell, state, left):
        while not (slow.folder / "pid").exists():
            time.sleep(0.05)
        raise InputError("cannot report")

    with pytest.raises(InputError, match="cannot report"):
        runner.run_cells([slow, good], workers=2, changed=changed)
    with pytest.raises(ProcessLookupError):
        os.kill(int((slow.folder / "pid").read_text()), 0)


def test_cells_have_an_accelerator_to_themselves_and_tell_the_reason(cells, monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(name, raising=False)
    runner.leave_memory_to_cells()
    assert os.environ[name] == "false"
    (cell,) = cells("good")
    runner.run_cells([cell], workers=1)
    seen = json.loads((cell.folder / "environment").read_text())
    assert name not in seen
    assert seen["JAX_TRACEBACK_FILTERING"] == "off"


def test_cells_of_one_folder_never_run_at_once(cells, tmp_path):
    first, second = cells("good", "other")
    running = [runner.Running(first, None, [], 1)]
    beside = second.__class__(**{**vars(second), "folder": first.folder})
    assert runner._startable([beside], running) is None
    assert runner._startable([beside, second], running) is second
