"""Bytes of a training step that is spread over devices that need not be present."""

import pytest

from agentic_bpt.blockwise.devices import Device, device_named
from agentic_bpt.blockwise.memory import tpu_topology
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.planner import prediction
from agentic_bpt.planner.prediction import compiled_prediction
from agentic_bpt.planner.report import report_memory
from agentic_bpt.planner.step import EpisodeShape

EPISODE = EpisodeShape(observation_width=5, action_width=1, steps=512)
CPU = Device(name="cpu", platform="cpu", usable_bytes=2**34)


def test_bytes_of_each_device_fall_with_their_number(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    experiment = replace_in(preset_of("at", "cpu"), ("batch",), 2)
    alone = compiled_prediction(experiment, EPISODE, CPU)
    spread = compiled_prediction(experiment, EPISODE, CPU.over("data=2,sequence=2", 4))
    assert spread.source == "compiled", spread.note
    assert spread.device.name == "4 x cpu"
    assert 0.2 < spread.temporaries / alone.temporaries < 0.35
    assert spread.batch < 0.5 * alone.batch  # what is seen stands beside what it is made of
    assert spread.parameters_and_optimizer == pytest.approx(alone.parameters_and_optimizer, rel=0.1)


def test_without_a_compiler_a_mesh_is_unknown_and_not_guessed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prediction, "missing_compiler", lambda device: "pip install it")
    spread = device_named("h100-80gb").over("sequence=8", 8)
    found = compiled_prediction(preset_of("at", "paper"), EPISODE, spread)
    assert (found.source, found.fits) == ("unknown", None)
    assert "pip install it" in found.note


def test_a_mesh_that_cannot_work_is_said_before_compiling():
    with pytest.raises(InputError, match=r"--mesh .*model=2 does not divide 1 heads"):
        report_memory(preset_of("at", "paper"), EPISODE, devices=["h200"], mesh="model=2")


def test_topologies_of_tpus_are_as_even_as_can_be():
    assert [tpu_topology("v4:2x2x1", n) for n in (1, 4, 8, 64)] == [
        "v4:2x2x1",
        "v4:2x2x1",
        "v4:2x2x2",
        "v4:4x4x4",
    ]
    assert tpu_topology("v5e:2x2", 8) == "v5e:2x4"
    with pytest.raises(ValueError, match="powers of 2 above 4, got a mesh of 6"):
        tpu_topology("v4:2x2x1", 6)
