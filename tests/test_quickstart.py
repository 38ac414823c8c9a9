"""The embedded episodes are what their command says, and the quickstart does nothing twice."""

import dataclasses

import numpy as np
import pytest

from agentic_bpt import quickstart
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.evaluating import Evaluation
from agentic_bpt.experiment import replace_in
from agentic_bpt.methods import preset_of

MEGABYTE = 2**20


def test_embedded_episodes_are_small_whole_and_of_the_named_protocol(tmp_path):
    sources = quickstart.embedded_sources()
    assert sum(source.stat().st_size for source in sources) < 4 * MEGABYTE
    path = ingest(*sources, task=quickstart.TASK, relabel="stored", out=tmp_path).path
    with Store.open(path) as store:
        assert len(store) == sum(quickstart.EPISODES.values())
        assert store.action_repeat == quickstart.ACTION_REPEAT
        assert (store.lengths == 250).all()
        assert store.returns.max() > 3 * np.median(store.returns)  # a wide range of returns


def tiny(method: str, preset: str):
    experiment = replace_in(preset_of(method, preset), ("loop", "steps"), 2)
    experiment = dataclasses.replace(experiment, batch=2)
    if method == "bc10":
        return experiment
    return replace_in(experiment, ("agent", "model", "core", "width"), 8)


@pytest.fixture
def small_quickstart(monkeypatch, tmp_path):
    """The quickstart in seconds: two updates a method, one chain of one trajectory."""
    monkeypatch.setattr(quickstart, "preset_of", tiny)
    monkeypatch.setattr(quickstart, "EVALUATION", Evaluation(trajectories=1, chains=1))
    return tmp_path / "work"


def test_it_makes_a_table_and_a_picture_and_goes_on_where_it_stopped(
    small_quickstart, capsys, monkeypatch
):
    quickstart.run_quickstart(small_quickstart, collect_anew=False, seed=0)
    assert "Picture:" in capsys.readouterr().out
    report = small_quickstart / "report"
    page = (report / "report.md").read_text()
    for row in ("at", "dt", "bc10", "random policy", "dataset: best"):
        assert f"| {row}" in page
    assert ", hash `" in page
    assert (report / "report.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(quickstart, "evaluate_run", None)  # calling it again would fail
    before = {path: path.stat().st_mtime_ns for path in small_quickstart.rglob("*.jsonl")}
    quickstart.run_quickstart(small_quickstart, collect_anew=False, seed=0)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(before) == 3


def test_episodes_can_be_collected_anew(small_quickstart, monkeypatch):
    monkeypatch.setattr(quickstart, "EPISODES", {"random": 6})
    monkeypatch.setattr(quickstart, "METHODS", ("bc10",))
    (result,) = quickstart.run_quickstart(small_quickstart, collect_anew=True, seed=0)
    buffer = small_quickstart / "exorl" / "cartpole" / "random" / "buffer"
    assert len(list(buffer.glob("episode_*_250.npz"))) == 6
    assert '"episodes": 6' in result.read_text()
