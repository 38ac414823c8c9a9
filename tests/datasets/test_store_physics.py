"""Physics in a store: aligned with the rewards, hashed, resumed; and nothing changed without it."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from agentic_bpt.datasets import reading
from agentic_bpt.datasets.exorl import episode_files, read_episode, write_episode
from agentic_bpt.datasets.store import Store
from agentic_bpt.environments.rewards import physics_rewards
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from tests.builders import hdf5_array, make_episode, make_folder, make_store
from tests.physics_builders import physics_store

OLD_DATA_HASH = "4104d3c75e0a99770457fe9fcc7e8317505aaba1417d9fdc6572a2ea4c372047"
KILLED = """
import os, sys
from pathlib import Path
from agentic_bpt.datasets.store import ingest
ingest(Path(sys.argv[1]), task="cartpole_swingup", relabel="stored", out=Path(sys.argv[2]),
       keep_physics=True, progress=lambda done, _: done == 3 and os.kill(os.getpid(), 9))
"""


def test_physics_are_those_after_each_action(tmp_path):
    folder = make_folder(tmp_path)
    path = make_store(tmp_path, source=folder, keep_physics=True)
    assert path.name.startswith("cartpole_swingup-rnd-stored-physics-")
    with Store.open(path) as store:
        store.verify()
        assert store.attributes["keep_physics"] is True
        for number, file in enumerate(episode_files(folder)):
            physics_THP = store.physics(number)
            assert physics_THP.shape == (5, 1, 4)
            assert physics_THP.dtype == np.float32
            expected = read_episode(file, domain="cartpole").physics
            assert expected is not None
            np.testing.assert_array_equal(physics_THP[:, 0], expected[1:].astype(np.float32))
        with pytest.raises(IndexError, match="0 to 2, got 3"):
            store.physics(3)


def test_physics_of_repeated_actions_are_those_of_every_control_step(tmp_path):
    path = physics_store(tmp_path, environment=Environment("walker_walk", action_repeat=4))
    with Store.open(path) as store:
        for number in range(len(store)):
            trajectory, physics_THP = store.trajectory(number), store.physics(number)
            assert physics_THP.shape == (20, 4, 18)
            actions_RA = np.repeat(trajectory.actions, 4, axis=0)
            rewards_R = physics_rewards("walker_walk", physics_THP.reshape(80, 18), actions_RA)
            sums_T = rewards_R.reshape(20, 4).sum(axis=1)
            np.testing.assert_allclose(sums_T, trajectory.rewards, rtol=0, atol=2e-6)
            last_T = physics_rewards("walker_walk", physics_THP[:, -1], trajectory.actions)
            assert np.abs(4 * last_T - trajectory.rewards).max() > 1e-3  # not just the last one


def test_a_store_without_physics_is_what_it_was(tmp_path):
    folder = make_folder(tmp_path)
    plain = make_store(tmp_path, source=folder)
    kept = make_store(tmp_path, source=folder, keep_physics=True)
    assert plain != kept
    with h5py.File(plain) as file:
        assert "physics" not in file
        assert "keep_physics" not in file.attrs
    with Store.open(plain) as store, Store.open(kept) as other:
        # Made by the version before stores could keep physics.
        assert store.data_hash == OLD_DATA_HASH
        assert store.data_hash != other.data_hash
        for a, b in zip(store.trajectory(1), other.trajectory(1), strict=True):
            np.testing.assert_array_equal(a, b)
        with pytest.raises(InputError, match=r"h5: holds no physics.*--keep-physics"):
            store.physics(0)


def test_a_changed_state_is_found(tmp_path):
    path = make_store(tmp_path, keep_physics=True)
    with h5py.File(path, "r+") as file:
        hdf5_array(file, "physics")[7, 0, 1] += 1
    with Store.open(path) as store, pytest.raises(InputError, match="content has changed"):
        store.verify()


def test_a_killed_ingest_goes_on_with_the_physics(tmp_path, monkeypatch):
    folder = make_folder(tmp_path, episodes=6)
    out = tmp_path / "stores"
    command = [sys.executable, "-c", KILLED, str(folder), str(out)]
    assert subprocess.run(command, check=False).returncode == -9
    numbers = []
    read = reading.read_episode

    def noting(file, *, domain):
        numbers.append(file.index)
        return read(file, domain=domain)

    monkeypatch.setattr(reading, "read_episode", noting)
    monkeypatch.setattr("agentic_bpt.datasets.store.require_rewards", lambda *_, **__: None)
    resumed = make_store(tmp_path, source=folder, keep_physics=True)
    assert numbers == [3, 4, 5]
    assert os.listdir(out) == [resumed.name]
    whole = make_store(tmp_path, source=folder, keep_physics=True, out=tmp_path / "whole")
    with Store.open(resumed) as got, Store.open(whole) as expected:
        got.verify()
        assert got.data_hash == expected.data_hash
        np.testing.assert_array_equal(got.physics(1), expected.physics(1))


def test_episodes_left_out_leave_no_gap(tmp_path):
    folder = make_folder(tmp_path)
    write_episode(folder / "buffer", index=1, episode=make_episode(physics=None))
    with pytest.raises(InputError, match=r"000001_5\.npz: key 'physics': is needed to keep"):
        make_store(tmp_path, source=folder, keep_physics=True)
    path = make_store(tmp_path, source=folder, keep_physics=True, skip_bad=True)
    with Store.open(path) as store, h5py.File(path) as file:
        store.verify()
        assert len(hdf5_array(file, "physics")) == 10
        expected = make_episode(seed=2).physics
        assert expected is not None
        np.testing.assert_array_equal(store.physics(1)[:, 0], expected[1:].astype(np.float32))


def test_missing_physics_are_said_before_the_work(tmp_path):
    write_episode(tmp_path / "rnd/buffer", index=0, episode=make_episode(physics=None))
    with pytest.raises(InputError, match="ingest without --keep-physics"):
        make_store(tmp_path, source=tmp_path / "rnd", keep_physics=True, skip_bad=True)
