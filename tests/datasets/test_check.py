"""A data set is examined as a whole: each bad file is named once, whatever else is wrong."""

import json

import numpy as np
import pytest

from agentic_bpt.datasets import check
from agentic_bpt.datasets.check import HISTOGRAM_BINS, STORED, check_data, histogram
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.datasets.store import ingest
from agentic_bpt.doctor import examine_data
from agentic_bpt.errors import InputError
from tests.builders import make_episode, make_folder, make_store, make_zip, save_arrays


@pytest.mark.parametrize("zipped", [False, True])
def test_a_good_data_set_has_returns_of_every_task(tmp_path, zipped):
    source = make_folder(tmp_path, episodes=4)
    if zipped:
        source = make_zip(source, tmp_path / "rnd.zip")
    report = check_data(source)
    assert (report.domain, report.episodes, report.steps) == ("cartpole", 4, 20)
    assert not report.bad
    assert not report.duplicates
    expected = [make_episode(seed=seed).reward[1:].sum(dtype=np.float64) for seed in range(4)]
    np.testing.assert_allclose(report.returns[STORED], expected, rtol=1e-6)
    assert len(report.returns["cartpole_swingup"]) == 4
    assert len(report.returns) == 5


def test_every_bad_file_is_named_once_in_order(tmp_path, capsys):
    source = make_folder(tmp_path, episodes=3)
    buffer = source / "buffer"
    (buffer / "episode_000001_5.npz").write_bytes(b"<html>")
    observation = make_episode().observation.copy()
    observation[3, 1] = np.nan
    save_arrays(buffer, "episode_000003_5.npz", observation=observation)
    shifted = make_episode().action.copy()
    shifted[0] = 0.5
    save_arrays(buffer, "episode_000004_5.npz", action=shifted)
    bad = check_data(source).bad
    assert [line.count("episode_00000") for line in bad] == [1, 1, 1]
    assert ["000001" in bad[0], "row 3" in bad[1], "row 0 is the reset" in bad[2]] == [True] * 3
    assert not examine_data(source)
    printed = capsys.readouterr().out
    assert printed.count("bad: ") == 3
    assert "2 of 5 episodes good" in printed


def test_what_is_there_twice_is_named(tmp_path):
    source = make_folder(tmp_path, episodes=2)
    write_episode(source / "buffer", index=7, episode=make_episode(seed=1))
    assert check_data(source).duplicates == ["episode_000007_5.npz equals episode_000001_5.npz"]


def test_a_stray_file_of_another_domain_is_the_bad_one(tmp_path):
    source = make_folder(tmp_path, episodes=4)
    (source / "buffer" / "episode_000000_5.npz").unlink()
    write_episode(source / "buffer", index=0, episode=make_episode("walker"))
    report = check_data(source)
    assert (report.domain, len(report.bad)) == ("cartpole", 1)
    assert "episode_000000_5.npz" in report.bad[0]
    assert "it looks like walker" in report.bad[0]


def test_the_domain_is_that_of_the_one_file_that_can_be_read(tmp_path):
    source = make_folder(tmp_path, domain="walker", episodes=13)
    for index in range(12):
        (source / "buffer" / f"episode_{index:06d}_5.npz").write_bytes(b"")
    source = source.rename(tmp_path / "unnamed")
    report = check_data(source)
    assert (report.domain, len(report.bad), report.steps) == ("walker", 12, 5)


def test_what_a_store_has_twice_is_named_even_with_the_same_name(tmp_path):
    sources = [make_folder(tmp_path / part, episodes=1) for part in ("one", "other")]
    store = ingest(*sources, task="cartpole_swingup", relabel="stored", out=tmp_path / "stores")
    assert check_data(store.path).duplicates == [
        "episode 1 (rnd/episode_000000_5.npz) equals episode 0 (rnd/episode_000000_5.npz)"
    ]


def test_tasks_are_relabelled_on_a_sample_spread_over_many_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "RELABELLED_EPISODES", 2)
    source = make_folder(tmp_path, episodes=4)
    returns = check_data(source).returns
    assert len(returns[STORED]) == 4
    expected = [
        relabel(make_episode(seed=seed), task="cartpole_balance", mode="control").sum()
        for seed in (1, 3)
    ]
    assert returns["cartpole_balance"].tolist() == expected


def test_whole_runs_of_urlbs_own_agent_are_good(rnd_episodes):
    said = json.loads((rnd_episodes / "returns.json").read_text())["cartpole"]
    report = check_data(rnd_episodes / "cartpole" / "rnd")
    assert (report.domain, report.episodes, report.steps) == ("cartpole", 120, 120_000)
    assert (report.bad, report.duplicates) == ([], [])
    stored = report.returns[STORED]
    np.testing.assert_allclose(stored, said["returns"], rtol=0, atol=6e-4)  # said to 0.001
    np.testing.assert_allclose(report.returns["cartpole_swingup"], stored, rtol=1e-6)


def test_a_store_is_read_whole(tmp_path):
    path = make_store(tmp_path)
    report = check_data(path)
    assert report.episodes == len(next(iter(report.returns.values())))
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[-1000] ^= 0xFF
        file.seek(0)
        file.write(data)
    with pytest.raises(InputError, match=str(path)):
        check_data(path)


def test_the_histogram_shows_every_bin_that_holds_anything():
    drawn = histogram(np.array([0.0] * 1000 + [1.0]))
    assert (drawn[0], drawn[-1]) == ("█", "▁")
    assert set(drawn[1:-1]) == {" "}


@pytest.mark.parametrize("other", [850.0, np.nextafter(850.0, 900.0)])
def test_returns_that_differ_by_rounding_stand_in_one_bin(other):
    drawn = histogram(np.array([850.0, other]))
    assert (drawn.strip(), len(drawn)) == ("█", HISTOGRAM_BINS)
