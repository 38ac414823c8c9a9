"""What a result says of its training, and when a run counts as evaluated."""

import dataclasses

import pytest

from agentic_bpt.evaluating import Evaluation, is_evaluated, settings_of
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
