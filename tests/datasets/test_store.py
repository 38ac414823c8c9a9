import contextlib
import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from agentic_bpt.datasets import store as ingesting
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.datasets.store_writer import StoreWriter
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


def test_other_versions_of_the_physics_make_another_store(tmp_path, monkeypatch):
    first = make_store(tmp_path)
    monkeypatch.setattr(ingesting, "version", lambda name: "9.9")
    assert make_store(tmp_path) != first


def test_nothing_is_read_twice(tmp_path, monkeypatch):
    folder = make_folder(tmp_path)
    first = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores")
    content = first.path.read_bytes()
    monkeypatch.setattr(ingesting, "read_episode", lambda *_, **__: pytest.fail("read again"))
    again = ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores")
    assert again == (first.path, 3, [], True)
    assert first.path.read_bytes() == content


def test_a_store_is_reused_while_its_lock_is_held(tmp_path):
    path = make_store(tmp_path)
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert make_store(tmp_path) == path


def test_a_store_finished_by_another_process_meanwhile_is_used(tmp_path, monkeypatch):
    folder = make_folder(tmp_path)
    theirs = make_store(tmp_path, source=folder, out=tmp_path / "theirs")

    @contextlib.contextmanager
    def late(path: Path):
        path.parent.mkdir()
        shutil.copy(theirs, path)
        yield

    monkeypatch.setattr(ingesting, "_only_writer", late)
    monkeypatch.setattr(ingesting, "read_episode", lambda *_, **__: pytest.fail("read again"))
    assert ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores").reused


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "cartpole_fly"}, r"cartpole_swingup.*got 'cartpole_fly'"),
        ({"relabel": "online"}, r"control, exorl, stored; got 'online'"),
        ({"validation_fraction": 1.0}, r"\[0, 1\), got 1\.0"),
        ({"validation_fraction": -0.1}, r"\[0, 1\), got -0\.1"),
        ({"task": "walker_run"}, r"000000_5\.npz: .*looks like cartpole"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        make_store(tmp_path, **options)
    assert left_in(tmp_path / "stores") == []


@pytest.mark.parametrize("when", ["at the start", "between episodes", "at the end"])
def test_a_disk_that_fills_leaves_one_line_and_no_file(tmp_path, when):
    folder = make_folder(tmp_path, domain="walker")
    out = tmp_path / "stores"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk() -> None:
        # The system refuses to grow a file or to write late in it, as on a full disk (there with
        # ENOSPC, here with EFBIG).
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))

    def progress(done: int, total: int) -> None:
        if done == {"between episodes": 1, "at the end": total}.get(when):
            fill_disk()

    try:
        if when == "at the start":
            fill_disk()
        with pytest.raises(InputError, match=rf"^{out}: the disk is full; make room.*$"):
            ingest(folder, task="walker_run", relabel="stored", out=out, progress=progress)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left_in(out) == []


def test_no_space_is_said_in_one_line_too(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StoreWriter, "append", full)
    with pytest.raises(InputError, match="the disk is full"):
        make_store(tmp_path)
    assert left_in(tmp_path / "stores") == []


def test_other_faults_are_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(StoreWriter, "append", broken)
    with pytest.raises(OSError, match="Input/output error"):
        make_store(tmp_path)
    assert left_in(tmp_path / "stores") == []


def test_a_store_that_cannot_fit_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ingesting.shutil, "disk_usage", lambda _: SimpleNamespace(free=400_000))
    monkeypatch.setattr(ingesting, "read_episode", lambda *_, **__: pytest.fail("read"))
    folder = tmp_path / "walker" / "rnd"
    write_episode(folder / "buffer", index=0, episode=make_episode("walker", steps=4000))
    with pytest.raises(InputError, match=r"stores: .* needs 0\.5 MB; make room.*got 0\.4 MB free"):
        make_store(tmp_path, source=folder, task="walker_run")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "stores").write_bytes(b"")
    with pytest.raises(InputError, match="stores: cannot be written; choose another --out"):
        make_store(tmp_path)


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupt(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_store(tmp_path, progress=interrupt)
    assert left_in(tmp_path / "stores") == []


def test_two_ingests_of_one_store_do_not_meet(tmp_path):
    folder = make_folder(tmp_path)
    messages = []

    def second(done: int, _total: int) -> None:
        if done == 1:
            # flock is held by the open file, so a second open in this process meets it as well.
            with pytest.raises(InputError) as caught:
                make_store(tmp_path, source=folder)
            messages.append(str(caught.value))

    path = make_store(tmp_path, source=folder, progress=second)
    assert messages == [
        f"{path}: another ingest is making this store; wait until it is done, then run this again "
        "to use it"
    ]
    with Store.open(path) as store:
        store.verify()


def test_a_killed_ingest_is_in_nobodys_way(tmp_path):
    folder = make_folder(tmp_path)
    program = (
        "import os, sys; from pathlib import Path; from agentic_bpt.datasets.store import ingest\n"
        "ingest(Path(sys.argv[1]), task='cartpole_swingup', relabel='stored',\n"
        "       out=Path(sys.argv[2]), progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    out = tmp_path / "stores"
    ended = subprocess.run([sys.executable, "-c", program, str(folder), str(out)], check=False)
    assert ended.returncode == -9
    assert [name.rsplit(".", 1)[1] for name in left_in(out)] == ["lock", "part"]
    path = make_store(tmp_path, source=folder)
    assert left_in(out) == [path.name]
    with Store.open(path) as store:
        store.verify()


def test_a_lock_whose_file_is_gone_keeps_nobody_out(tmp_path, monkeypatch):
    flock = fcntl.flock

    def late(handle, how):
        os.unlink(handle.name)  # the writer before removes it between open and flock
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="another ingest is making this store"):
        make_store(tmp_path)
