"""A tiny run is diagnosed from its folder, and the file and the text say the same."""

import dataclasses
import json
from pathlib import Path

import h5py
import pytest

from agentic_bpt.datasets.store import Store
from agentic_bpt.diagnosis import diagnose_run
from agentic_bpt.diagnosis_text import render
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, replace_in, write_experiment
from agentic_bpt.methods import preset_of
from agentic_bpt.reports.results import write_json
from agentic_bpt.run import describe_data, make_parts
from agentic_bpt.training.checkpoint import Checkpoints
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import init_state
from tests.builders import make_store
from tests.reports.report_builders import write_result

METHODS = ("at", "dt", "bc10")


def keep_untrained(experiment: Experiment, workdir: Path) -> None:
    """Make the folder of a run that was stopped before its first update."""
    with Store.open(Path(experiment.store)) as store:
        parts = make_parts(experiment, store)
        workdir.mkdir()
        write_experiment(experiment, workdir)
        write_json(workdir / "data.json", describe_data(store))
    state = init_state(parts.params, make_optimizer(experiment.optimizer, steps=1))
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.save(0, {"state": state, "scales": parts.scales})
    checkpoints.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Untrained runs on 30 made-up episodes of 5 steps, whose actions are random."""
    folder = tmp_path_factory.mktemp("runs")
    store = make_store(folder, episodes=30, validation_fraction=0.3)
    for method in METHODS:
        experiment = dataclasses.replace(preset_of(method, "cpu"), batch=2, store=str(store))
        if method != "bc10":
            for name, value in (("width", 8), ("layers", 1)):
                experiment = replace_in(experiment, ("agent", "model", "core", name), value)
            experiment = replace_in(experiment, ("agent", "chain", "target_excess"), 0.0)
        if method == "at":
            experiment = replace_in(experiment, ("agent", "chain", "trajectories"), 3)
        keep_untrained(experiment, folder / method)
    # The made-up result file asks for a return of 400; five rewards below 1 make less than 5.
    write_result(folder / "at", multipliers=(1.0, 0.5))
    return folder


@pytest.fixture(scope="module")
def diagnosed(runs):
    """The diagnosis of each method."""
    return {method: diagnose_run(runs / method, chains=4, seed=1) for method in METHODS}


def test_an_untrained_agent_and_a_target_above_the_data_are_found(diagnosed):
    found = diagnosed["at"]
    assert any("predicts actions no better than their mean" in line for line in found.verdict)
    assert any("target of 400 is above every return" in line for line in found.verdict)
    assert found.measures.evaluations[0].target_K == [200.0, 400.0]
    assert any("made after 1000 updates, this agent has 0" in line for line in found.skipped)
    assert len(found.measures.held_out.agent_N) == 3
    assert set(found.measures.context.changes) == {"dropped", "foreign", "reversed"}
    # In a chain of hindsight the best, which is the last, reaches the target, and the others not.
    assert found.measures.training.completed_trajectories_N == [0.0, 0.0, 1.0]


def test_file_and_text_say_the_same(runs, diagnosed):
    found = diagnosed["at"]
    document = json.loads((runs / "at" / "diagnosis.json").read_text())
    assert document["verdict"] == list(found.verdict)
    assert document["measures"] == json.loads(json.dumps(dataclasses.asdict(found.measures)))
    assert (document["chains"], document["seed"], document["training_seed"]) == (4, 1, 0)
    assert len(document["data_hash"]) == 64
    assert document["versions"]["jax"]
    text = render(found)
    for line in (*found.verdict, *found.skipped):
        assert f"- {line}\n" in f"{text}\n"


def test_the_seed_decides_the_chains(runs, diagnosed):
    assert diagnose_run(runs / "bc10", chains=4, seed=1) == diagnosed["bc10"]
    other = diagnose_run(runs / "bc10", chains=4, seed=2)
    assert other.measures.training != diagnosed["bc10"].measures.training


@pytest.mark.parametrize("method", ["dt", "bc10"])
def test_what_has_no_meaning_for_a_method_is_left_out_and_said(diagnosed, method):
    found = diagnosed[method]
    assert found.measures.trajectories == 1
    assert found.measures.context is None
    assert f"context: {method} has no earlier trajectories in its context" in found.skipped
    assert (found.measures.asked == []) == (method == "bc10")
    assert ("targets and completion: bc10 is told no return" in found.skipped) == (method == "bc10")
    assert "Context:" not in render(found)


def test_the_default_target_is_the_best_of_the_data(diagnosed):
    measures = diagnosed["dt"].measures
    assert [asked.target for asked in measures.asked] == [measures.best_return]
    assert measures.asked[0].quantile == 1.0


def test_refusals(runs, tmp_path):
    with pytest.raises(InputError, match="--chains must be at least 1, got 0"):
        diagnose_run(runs / "at", chains=0)
    with pytest.raises(InputError, match="is not a run"):
        diagnose_run(tmp_path)
    data = json.loads((runs / "dt" / "data.json").read_text())
    with h5py.File(data["path"], "r+") as file:
        kept = file.attrs["data_hash"]
        file.attrs["data_hash"] = "0" * 64
    with pytest.raises(InputError, match="is not the data that"):
        diagnose_run(runs / "dt")
    with h5py.File(data["path"], "r+") as file:
        file.attrs["data_hash"] = kept
