"""What a result says of its training, when a run counts as evaluated, and what is refused."""

import dataclasses
from types import SimpleNamespace

import pytest

from agentic_bpt.environments.hidden_tasks import reward_file_hash
from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation, evaluate_hidden, is_evaluated, settings_of
from agentic_bpt.evaluation.in_context import InContext
from agentic_bpt.experiment import replace_in
from agentic_bpt.methods import METHODS, preset_of
from agentic_bpt.reports.results import write_json


@pytest.mark.parametrize("method", METHODS)
def test_what_no_number_depends_on_and_what_is_said_elsewhere_is_no_setting(method):
    experiment = preset_of(method, "cpu")
    usual = settings_of(experiment)
    assert usual["batch"] == experiment.batch
    assert not any("." in name for name in usual)
    loop = dataclasses.replace(experiment.loop, steps=7)
    assert settings_of(dataclasses.replace(experiment, store="x", seed=3, loop=loop)) == usual


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        ("at", ("optimizer", "learning_rate"), 0.5),
        ("at", ("agent", "model", "core", "layers"), 7),
        ("dt", ("agent", "model", "core", "dropout"), 0.5),
        ("bc10", ("agent", "best_fraction"), 0.5),
        ("td3_bc", ("agent", "learner", "noise"), 0.5),
    ],
)
def test_every_field_that_is_not_the_usual_one_is_a_setting(method, path, value):
    experiment = preset_of(method, "cpu")
    changed = replace_in(experiment, path, value)
    assert settings_of(changed) == settings_of(experiment) | {".".join(path): value}


def test_a_run_that_was_evaluated_half_trained_is_not_evaluated(tmp_path):
    evaluation = Evaluation()
    assert not is_evaluated(tmp_path, evaluation, steps=100)
    path = tmp_path / evaluation.file_name()
    write_json(path, {"training": {"steps": 50}})
    assert not is_evaluated(tmp_path, evaluation, steps=100)
    write_json(path, {"training": {"steps": 100}})
    assert is_evaluated(tmp_path, evaluation, steps=100)
    path.write_text("{")  # a report names it, and nothing is trained again for it
    assert is_evaluated(tmp_path, evaluation, steps=100)


def test_what_cannot_be_evaluated_in_context_is_refused_before_work(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("")
    hidden = {"hidden_task": f"{file}:reward", "hidden_hash": reward_file_hash(f"{file}:reward")}
    experiment = preset_of("dt", "cpu")
    agent = dataclasses.replace(experiment.agent, **hidden)
    run = SimpleNamespace(experiment=dataclasses.replace(experiment, agent=agent))
    monkeypatch.setattr("agentic_bpt.evaluating.load_run", lambda workdir: run)
    with pytest.raises(InputError, match="no room for a prompt: use --prompt-trajectories 0"):
        evaluate_hidden(tmp_path, InContext())
    file.write_text("# other rewards")
    with pytest.raises(InputError, match=r"its reward file has changed since: .*mine\.py:reward"):
        evaluate_hidden(tmp_path, InContext())
