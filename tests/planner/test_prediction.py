"""Predictions: where they come from, what they are kept under, and when training is refused."""

import dataclasses
import os
import subprocess
import sys

import pytest

from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.blockwise.memory import Bytes
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import override, replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.planner import prediction as module
from agentic_bpt.planner.cache import cache_folder, read_bytes, write_bytes
from agentic_bpt.planner.prediction import (
    Prediction,
    answer_of,
    ask_child,
    compiled_prediction,
    find_device,
    formula_prediction,
    predict,
    require_fit,
)
from agentic_bpt.planner.step import EpisodeShape

EPISODE = EpisodeShape(5, 1, 10)
A100 = DEVICES["a100-80gb"]
FOUND = Bytes(arguments=120, outputs=105, donated=100, temporaries=700)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def experiment():
    return replace_in(preset_of("at", "paper"), ("batch",), 1)


def answering(monkeypatch, answer):
    """Stand in for the process that compiles; gives the list of its calls."""
    calls = []

    def ask(*arguments, measure):
        calls.append(arguments)
        return answer

    monkeypatch.setattr(module, "ask_child", ask)
    monkeypatch.setattr(module, "missing_compiler", lambda device: None)
    return calls


def test_compiled_once_then_kept(experiment, monkeypatch):
    calls = answering(monkeypatch, {"bytes": FOUND._asdict()})
    found = compiled_prediction(experiment, EPISODE, A100)
    assert (found.parameters_and_optimizer, found.batch, found.temporaries) == (100, 20, 705)
    assert found.total == FOUND.total
    assert found.source == "compiled"
    assert compiled_prediction(experiment, EPISODE, A100) == found
    assert predict(experiment, *EPISODE, device="a100-80gb").total == found.total
    assert len(calls) == 1


def test_kept_by_what_decides_the_bytes(experiment):
    write_bytes(experiment, EPISODE, A100, FOUND)
    same = dataclasses.replace(experiment, seed=7, store="elsewhere", data_hash="other")
    assert read_bytes(same, EPISODE, A100) == FOUND
    for other in (
        (replace_in(experiment, ("batch",), 2), EPISODE, A100),
        (experiment, EPISODE._replace(steps=11), A100),
        (experiment, EPISODE, DEVICES["h200"]),
    ):
        assert read_bytes(*other) is None


def test_other_versions_are_other_results(experiment, monkeypatch):
    write_bytes(experiment, EPISODE, A100, FOUND)
    monkeypatch.setattr("agentic_bpt.planner.cache.compiler_versions", lambda: {"jax": "0.0"})
    assert read_bytes(experiment, EPISODE, A100) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bytes": {"arguments": 1}}', '{"bytes": 5}'])
def test_a_damaged_entry_is_compiled_anew(text, experiment, monkeypatch):
    write_bytes(experiment, EPISODE, A100, FOUND)
    (entry,) = cache_folder().iterdir()
    entry.write_text(text)
    calls = answering(monkeypatch, {"bytes": FOUND._asdict()})
    assert compiled_prediction(experiment, EPISODE, A100).total == FOUND.total
    assert len(calls) == 1
    assert read_bytes(experiment, EPISODE, A100) == FOUND


def test_a_disk_that_takes_nothing_stops_nothing(experiment, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_bytes(experiment, EPISODE, A100, FOUND)
    assert read_bytes(experiment, EPISODE, A100) is None


def test_without_a_compiler_a_formula_that_says_so(experiment, monkeypatch):
    monkeypatch.setattr(module, "missing_compiler", lambda device: "pip install 'x[y]'")
    found = compiled_prediction(experiment, EPISODE, A100)
    assert found.source == "formula"
    assert 0 < found.error < 1
    assert f"{found.error:.0%}" in found.note
    assert "pip install 'x[y]'" in found.note


@pytest.mark.parametrize("scheme", ["vanilla", "memory_efficient", "blockwise"])
@pytest.mark.parametrize("device", ["a100-80gb", "tpu-v5p"])
def test_the_formula_knows_every_scheme_and_platform(scheme, device, experiment):
    one = override(experiment, "scheme", [("agent", "model", "core")], scheme)
    less = formula_prediction(one, EpisodeShape(24, 6, 1000), DEVICES[device])
    twice = replace_in(one, ("batch",), 2)
    more = formula_prediction(twice, EpisodeShape(24, 6, 1000), DEVICES[device])
    assert 1.5 * less.temporaries < more.temporaries <= 2 * less.temporaries
    parts = replace_in(twice, ("accumulate",), 2)
    accumulated = formula_prediction(parts, EpisodeShape(24, 6, 1000), DEVICES[device])
    assert accumulated.temporaries == less.temporaries


@pytest.mark.parametrize(
    ("total", "error", "fits"),
    [(100, 0.0, True), (101, 0.0, False), (90, 0.2, None), (119, 0.2, None), (121, 0.2, False)],
)
def test_fits_only_beyond_the_error(total, error, fits):
    device = dataclasses.replace(A100, usable_bytes=100)
    found = Prediction(device=device, source="formula", temporaries=total, error=error)
    assert found.fits is fits
    assert dataclasses.replace(found, source="unknown").fits is None


def test_out_of_time_and_out_of_memory_are_unknown(experiment, monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(module, "missing_compiler", lambda device: None)
    monkeypatch.setattr(subprocess, "run", run)
    found = compiled_prediction(experiment, EPISODE, A100)
    assert (found.source, found.fits) == ("unknown", None)
    assert "more than 900 seconds" in found.note
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    found = compiled_prediction(experiment, EPISODE, A100)
    assert (found.source, found.fits) == ("unknown", None)
    assert "signal 9" in found.note
    assert read_bytes(experiment, EPISODE, A100) is None  # nothing is kept of it


def test_a_compiler_that_fails_gives_its_last_line(experiment, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no such kernel\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    answer = ask_child(experiment, EPISODE, A100, measure=False)
    assert answer == "unknown: RuntimeError: no such kernel"


def test_a_traceback_is_not_filtered_for_its_last_line_is_the_reason():
    code = "import os, sys; sys.exit(os.environ['JAX_TRACEBACK_FILTERING'])"
    answer = answer_of([sys.executable, "-c", code], dict(os.environ), timeout=60)
    assert answer == "unknown: off"


@pytest.mark.parametrize("printed", ["", "not JSON"])
def test_a_compiler_without_an_answer_is_said_to_have_none(experiment, monkeypatch, printed):
    silent = subprocess.CompletedProcess([], 0, printed, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: silent)
    answer = ask_child(experiment, EPISODE, A100, measure=False)
    assert answer == "unknown: the compiler ended without an answer"


def test_training_is_refused_where_it_cannot_fit(experiment, monkeypatch):
    monkeypatch.setattr(module, "host_bytes", lambda: 10**12)
    assert require_fit(experiment, 24, 6, 1000) is None
    needed = predict(experiment, 24, 6, 1000)
    monkeypatch.setattr(module, "host_bytes", lambda: needed.total)
    line = require_fit(experiment, 24, 6, 1000)
    assert line is not None
    assert "may not fit" in line
    monkeypatch.setattr(module, "host_bytes", lambda: 10**8)
    with pytest.raises(InputError, match=r"GB of 0\.1 GB on cpu .*--trajectories"):
        require_fit(experiment, 24, 6, 1000)


def test_what_was_compiled_is_believed_over_the_formula(experiment, monkeypatch):
    monkeypatch.setattr(module, "host_bytes", lambda: 10**8)
    write_bytes(experiment, EpisodeShape(24, 6, 1000), module.device_at_hand(), FOUND)
    assert require_fit(experiment, 24, 6, 1000) is None


def test_an_unknown_device_lists_the_known():
    with pytest.raises(InputError, match=r"device must be one of a100-80gb, .* got 'h300'"):
        find_device("h300")
