"""Experiments survive their file, and say in which field they differ."""

import dataclasses

import pytest

from agentic_bpt.cli import OVERRIDES
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import (
    first_difference,
    override,
    read_experiment,
    replace_in,
    write_experiment,
)
from agentic_bpt.methods import METHODS, PRESETS, preset_of

EVERY = [(method, preset) for method in METHODS for preset in PRESETS]


@pytest.mark.parametrize(("method", "preset"), EVERY)
def test_every_preset_survives_its_file(method, preset, tmp_path):
    experiment = preset_of(method, preset)
    write_experiment(experiment, tmp_path)
    assert read_experiment(tmp_path) == experiment


def test_a_difference_is_named_with_both_values():
    ours = preset_of("at", "cpu")
    theirs = replace_in(ours, ("agent", "model", "core", "width"), 32)
    assert first_difference(ours, ours) is None
    assert first_difference(dataclasses.replace(ours, store="elsewhere"), ours) is None
    difference = first_difference(ours, theirs)
    assert difference is not None
    assert "agent.model.core.width is 32 there and" in difference


def test_every_option_of_train_stands_in_the_experiment_of_at():
    experiment = preset_of("at", "paper")
    values = {"completion": "final", "loss": "last", "trajectory_count": "fixed"}
    values |= {"sampling": "spread", "engine": "portable", "recompute_attention": True}
    values |= {"layout": "joint", "scheme": "vanilla", "dtype": "bfloat16"}
    values |= {"trajectory_index": True, "dropout": 0.5, "learning_rate": 0.25}
    values |= {"hidden_task": "walker_speed", "told": True}
    experiment = override(experiment, "hidden_task", OVERRIDES["hidden_task"], "maze_goal")
    for name, places in OVERRIDES.items():
        changed = override(experiment, name, places, values.get(name, 2))
        difference = first_difference(experiment, changed)
        assert difference is not None, name
        assert f".{name} is" in f".{difference}", name


def test_a_field_that_a_method_does_not_use_does_not_exist_for_it():
    with pytest.raises(InputError, match="--scheme means nothing to method bc10"):
        override(preset_of("bc10", "cpu"), "scheme", OVERRIDES["scheme"], "vanilla")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match="at, dt, bc10, td3_offline, td3_bc; got 'ppo'"):
        preset_of("ppo", "cpu")
    with pytest.raises(InputError, match="cpu, paper; got 'tpu'"):
        preset_of("at", "tpu")


@pytest.mark.parametrize("text", ["{", '{"method": "at"}', '{"method": 3, "unknown": 1}'])
def test_a_damaged_file_is_one_line(text, tmp_path):
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(InputError, match=r"experiment.json: cannot be read"):
        read_experiment(tmp_path)


def test_nothing_is_told_that_is_not_hidden():
    with pytest.raises(InputError, match="--told needs a --hidden-task"):
        override(preset_of("at", "cpu"), "told", OVERRIDES["told"], True)
