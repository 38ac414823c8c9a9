"""What `agentic-bpt memory` prints and draws, and compiled bytes beside measured ones."""

import importlib.util

import pytest

from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import override
from agentic_bpt.methods import preset_of
from agentic_bpt.planner import prediction, report
from agentic_bpt.planner.prediction import Prediction, ask_child
from agentic_bpt.planner.report import episode_of, fits_word, report_local, report_memory
from agentic_bpt.planner.step import EpisodeShape

PLACES = (("agent", "model", "core"), ("agent", "model"), ("agent", "chain"), ())
EPISODE = EpisodeShape(5, 1, 1000)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def experiment_with(**changes):
    experiment = preset_of("at", "paper")
    for name, value in changes.items():
        experiment = override(experiment, name, PLACES, value)
    return experiment


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(prediction, "missing_compiler", lambda device: "pip install it")


@pytest.mark.usefixtures("no_compiler")
def test_one_device_by_kind(capsys):
    report_memory(experiment_with(batch=1), EPISODE, devices=["a100-80gb"], schemes=["blockwise"])
    printed = capsys.readouterr().out
    for word in ("parameters and optimiser", "batch", "temporaries", "total", "fits: yes"):
        assert word in printed
    assert "source: formula: a formula, not compiled: off by up to" in printed


@pytest.mark.usefixtures("no_compiler")
def test_the_table_marks_what_is_unverified_and_gives_the_largest(capsys):
    report_memory(experiment_with(batch=1), EPISODE, devices=["h200", "l4"], largest=True)
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "blockwise" in line and "(formula)" in line]
    assert len(rows) == 2
    assert "l4 (unverified)" in rows[1]
    most = [int(row.split("(formula)")[0].split()[-1].replace(",", "")) for row in rows]
    assert most[0] > most[1] > 100


@pytest.mark.usefixtures("no_compiler")
def test_the_picture(tmp_path, capsys):
    out = tmp_path / "memory.png"
    report_memory(experiment_with(batch=1), EPISODE, devices=["a100-80gb", "h200"], picture=out)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["memory.png"]


def test_jax_must_be_told_to_take_more_than_its_share():
    device = Device(name="gpu", platform="cuda", usable_bytes=100)
    words = [
        fits_word(Prediction(device=device, source="compiled", temporaries=size))
        for size in (70, 90, 110)
    ]
    assert words[0] == "yes"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in words[1]
    assert words[2] == "no"


def test_episodes_of_a_task():
    assert episode_of("walker_walk", 4) == (24, 6, 250)
    with pytest.raises(InputError, match="at least 1"):
        episode_of("walker_walk", 0)


def test_compiled_bytes_are_those_that_a_run_takes(capsys, monkeypatch):
    experiment = experiment_with(
        batch=32, trajectories=1, layers=1, width=256, layout="joint", dropout=0.0
    )
    asked = []
    real = report.ask_child
    keep = lambda *a, **k: asked.append(real(*a, **k)) or asked[0]  # noqa: E731
    monkeypatch.setattr(report, "ask_child", keep)
    report_local(experiment, EPISODE)
    (answer,) = asked
    planned = answer["bytes"]["temporaries"]
    assert planned > 200e6
    assert abs(answer["measured_growth"] / planned - 1) < 0.15
    assert "source: compiled" in capsys.readouterr().out


def test_what_cannot_fit_is_not_run(monkeypatch, capsys):
    monkeypatch.setattr(prediction, "host_bytes", lambda: 10**6)
    monkeypatch.setattr(report, "ask_child", lambda *_, **__: pytest.fail("it was run"))
    with pytest.raises(InputError, match="not run"):
        report_local(experiment_with(batch=1), EPISODE)


@pytest.mark.parametrize(
    ("name", "package"), [("h100-80gb", "jax_cuda12_plugin"), ("tpu-v5e", "libtpu")]
)
def test_a_device_that_is_not_present(name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"compiling for {name} needs {package}")
    experiment = experiment_with(
        batch=4,
        trajectories=2,
        layers=1,
        layout="joint",
        scheme="vanilla",
        dropout=0.0,
    )
    answer = ask_child(experiment, EPISODE, DEVICES[name], measure=False)
    assert not isinstance(answer, str), answer
    # Scores of one layer, in the backward pass at least once.
    assert answer["bytes"]["temporaries"] >= 4 * 2000**2 * 4
    assert answer["bytes"]["donated"] >= 3 * 4 * 12 * 128**2
