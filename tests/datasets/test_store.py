import os
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from agentic_bpt.datasets import reading
from agentic_bpt.datasets import store as ingesting
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.errors import InputError
from tests.builders import (
    hdf5_array,
    make_episode,
    make_folder,
    make_store,
    make_zip,
)

TASK = "cartpole_swingup"


def spoil(folder: Path, index: int) -> Path:
    path = folder / "buffer" / f"episode_{index:06d}_5.npz"
    path.write_bytes(path.read_bytes()[:100])
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_a_store_says_where_it_is_from(tmp_path):
    folder = make_folder(tmp_path)
    with Store.open(make_store(tmp_path, source=folder, seed=3)) as store:
        assert (store.task, store.relabel, store.action_repeat) == (TASK, "stored", 1)
        facts = store.attributes
        assert (facts["domain"], facts["expl_agent"], facts["seed"]) == ("cartpole", "rnd", 3)
        assert facts["source"] == str(folder / "buffer")
        assert set(facts["versions"]) == {"dm_control", "mujoco"}
        assert (facts["format_version"], facts["validation_fraction"]) == (1, 0.1)
        assert len(facts["source_hash"]) == len(store.data_hash) == 64
        assert {"command", "created"} <= set(facts)


def test_a_zip_and_its_folder_give_the_same_data(tmp_path):
    folder = make_folder(tmp_path)
    zipped = make_zip(folder, tmp_path / "rnd.zip")
    paths = [make_store(tmp_path, source=source) for source in (folder, zipped)]
    hashes = []
    for path in paths:
        assert path.name.startswith("cartpole_swingup-rnd-stored-")
        with Store.open(path) as store:
            hashes.append(store.data_hash)
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "cartpole_balance"},
        {"relabel": "exorl"},
        {"seed": 1},
        {"validation_fraction": 0.5},
        {"episodes": 4},
    ],
)
def test_other_settings_or_episodes_make_another_store(tmp_path, changes):
    first = make_store(tmp_path)
    assert make_store(tmp_path, **changes) != first


@pytest.mark.parametrize(
    ("options", "selection", "numbers"),
    [
        ({}, "all", [0, 1, 2, 3, 4, 5]),
        ({"episodes": 6}, "all", [0, 1, 2, 3, 4, 5]),
        ({"episodes": 3}, "stratified", [1, 3, 5]),
        ({"episodes": 3, "select": "first"}, "first", [0, 1, 2]),
    ],
)
def test_a_choice_of_episodes_stands_in_the_store(tmp_path, options, selection, numbers):
    folder = make_folder(tmp_path, episodes=6)
    result = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores", **options)
    with Store.open(result.path) as store:
        assert store.names == [f"rnd/episode_00000{number}_5.npz" for number in numbers]
        assert store.attributes["selection"] == selection
        assert store.attributes["collected_episodes"] == 6


def test_a_choice_over_all_sources_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    folders = [make_folder(tmp_path, expl_agent=name, episodes=4) for name in ("rnd", "aps")]
    settings = {"task": TASK, "relabel": "stored", "episodes": 4}
    first = ingest(*folders, out=tmp_path / "a", **settings).path
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
    second = ingest(*folders, out=tmp_path / "b", **settings).path
    assert first.name == second.name
    with Store.open(first) as one, Store.open(second) as other:
        assert one.data_hash == other.data_hash
        assert one.names == [
            f"{name}/episode_00000{number}_5.npz" for name in ("rnd", "aps") for number in (1, 3)
        ]


def test_each_choice_makes_a_store_of_its_own(tmp_path):
    folder = make_folder(tmp_path, episodes=2)
    settings = {"task": TASK, "relabel": "stored", "out": tmp_path / "stores"}
    paths = {ingest(folder, **settings).path}
    assert {ingest(folder, episodes=2, **settings).path} == paths  # all of them
    paths.add(ingest(folder, episodes=1, **settings).path)
    paths.add(ingest(folder, episodes=1, select="first", **settings).path)
    chosen = make_folder(tmp_path / "more", episodes=3)
    paths.add(ingest(chosen, episodes=1, select="first", **settings).path)  # the same, of more
    assert len(paths) == 4


def test_other_versions_of_the_physics_make_another_store(tmp_path, monkeypatch):
    first = make_store(tmp_path)
    monkeypatch.setattr(ingesting, "version", lambda name: "9.9")
    assert make_store(tmp_path) != first


def test_nothing_is_read_twice(tmp_path, monkeypatch):
    folder = make_folder(tmp_path)
    first = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores")
    content = first.path.read_bytes()
    monkeypatch.setattr(reading, "read_episode", lambda *_, **__: pytest.fail("read again"))
    again = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores")
    assert again == (first.path, 3, [], True)
    assert first.path.read_bytes() == content


def test_progress_is_told_after_each_episode(tmp_path):
    told = []
    make_store(tmp_path, progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_only_the_store_is_left(tmp_path):
    path = make_store(tmp_path)
    assert left_in(path.parent) == [path.name]


def test_the_first_bad_episode_ends_it_and_leaves_nothing(tmp_path):
    folder = make_folder(tmp_path, episodes=4)
    spoil(folder, 1)
    spoil(folder, 2)
    with pytest.raises(InputError, match=r"episode_000001_5\.npz: is cut short.*--skip-bad"):
        make_store(tmp_path, source=folder)
    assert left_in(tmp_path / "stores") == []


def test_bad_episodes_are_left_out_and_listed(tmp_path):
    folder = make_folder(tmp_path, episodes=5)
    spoil(folder, 0)
    spoil(folder, 3)
    result = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores", skip_bad=True)
    assert (result.episodes, len(result.skipped)) == (3, 2)
    assert "episode_000000_5.npz: is cut short" in result.skipped[0]
    assert left_in(tmp_path / "stores") == [result.path.name]
    with Store.open(result.path) as store:
        store.verify()
        assert store.skipped == result.skipped
        assert store.names == [f"rnd/episode_00000{index}_5.npz" for index in (1, 2, 4)]
        for number, seed in enumerate((1, 2, 4)):
            expected = make_episode(seed=seed).observation[:-1]
            np.testing.assert_array_equal(store.trajectory(number).observations, expected)
    with h5py.File(result.path) as file:  # no empty rows for what did not come
        assert [len(hdf5_array(file, name)) for name in ("observations", "actions", "rewards")] == [
            18,
            15,
            15,
        ]


def test_a_store_without_some_episodes_is_not_reused_for_all(tmp_path):
    folder = make_folder(tmp_path)
    spoil(folder, 1)
    first = make_store(tmp_path, source=folder, skip_bad=True)
    assert make_store(tmp_path, source=folder, skip_bad=True) == first
    with pytest.raises(InputError, match=r"without 1 bad episodes; --skip-bad.*episode_000001"):
        make_store(tmp_path, source=folder)


def test_no_good_episode_at_all_is_refused(tmp_path):
    folder = make_folder(tmp_path, episodes=2)
    spoil(folder, 0)
    spoil(folder, 1)
    with pytest.raises(InputError, match=r"none of its 2 episodes .*episode_000000_5\.npz: is cut"):
        make_store(tmp_path, source=folder, skip_bad=True)
    assert left_in(tmp_path / "stores") == []


def test_unlike_action_repeats_are_refused(tmp_path):
    folder = make_folder(tmp_path)
    write_episode(folder / "buffer", index=1, episode=make_episode(action_repeat=2))
    with pytest.raises(InputError, match=r"000001_5\.npz: key 'action_repeat': must be 1 .*got 2"):
        make_store(tmp_path, source=folder)


def test_missing_physics_name_the_file_and_the_way_out(tmp_path):
    write_episode(tmp_path / "rnd/buffer", index=0, episode=make_episode(physics=None))
    with pytest.raises(InputError, match=r"episode_000000_5\.npz: key 'physics'.*--relabel stored"):
        make_store(tmp_path, source=tmp_path / "rnd", relabel="control")


def test_missing_physics_are_said_before_the_work(tmp_path, monkeypatch):
    folder = tmp_path / "rnd"
    for index in range(5):
        episode = make_episode(physics=None, seed=index)
        write_episode(folder / "buffer", index=index, episode=episode)
    read = []
    read_episode = reading.read_episode

    def noting(file, *, domain):
        read.append(file.index)
        return read_episode(file, domain=domain)

    monkeypatch.setattr(reading, "read_episode", noting)
    with pytest.raises(InputError, match=r"episode_000000_5\.npz: key 'physics'"):
        make_store(tmp_path, source=folder, relabel="control", skip_bad=True)
    assert read == [0, 4]
    assert left_in(tmp_path / "stores") == []


def test_missing_physics_of_one_episode_leave_that_one_out(tmp_path):
    folder = make_folder(tmp_path)
    write_episode(folder / "buffer", index=0, episode=make_episode(physics=None))
    with pytest.raises(InputError, match=r"episode_000000_5\.npz: key 'physics'"):
        make_store(tmp_path, source=folder, relabel="control")
    path = make_store(tmp_path, source=folder, relabel="control", skip_bad=True)
    with Store.open(path) as store:
        assert len(store) == 2
        assert "episode_000000_5.npz: key 'physics'" in store.skipped[0]


def test_four_maze_rewards_are_relabelled(tmp_path):
    episode = make_episode("point_mass_maze", reward=np.zeros((6, 4), np.float32))
    write_episode(tmp_path / "rnd/buffer", index=0, episode=episode)
    task = "point_mass_maze_reach_top_left"
    path = make_store(tmp_path, source=tmp_path / "rnd", task=task, relabel="control")
    with Store.open(path) as store:
        assert store.trajectory(0).rewards.shape == (5,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "cartpole_fly"}, r"cartpole_swingup.*got 'cartpole_fly'"),
        ({"relabel": "online"}, r"control, exorl, stored; got 'online'"),
        ({"validation_fraction": 1.0}, r"\[0, 1\), got 1\.0"),
        ({"validation_fraction": -0.1}, r"\[0, 1\), got -0\.1"),
        ({"select": "last"}, "stratified, first; got 'last'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"task": "walker_run"}, r"000000_5\.npz: .*looks like cartpole"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        make_store(tmp_path, **options)
    assert left_in(tmp_path / "stores") == []


def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path):
    peaks = []
    for episodes in (10, 40):
        folder = make_folder(tmp_path / str(episodes), episodes=episodes, steps=2000)
        tracemalloc.start()
        try:
            make_store(tmp_path / str(episodes), source=folder)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    held_bytes = 30 * 2001 * 4 * (5 + 1 + 1)  # what the other 30 would take
    assert peaks[1] - peaks[0] < held_bytes / 10
