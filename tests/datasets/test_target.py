import contextlib
import errno
import fcntl
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_bpt.datasets import reading
from agentic_bpt.datasets import store as ingesting
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.datasets.store_writer import StoreWriter
from agentic_bpt.errors import InputError
from tests.builders import make_episode, make_folder, make_store

TASK = "cartpole_swingup"


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


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

    monkeypatch.setattr(ingesting, "only_writer", late)
    monkeypatch.setattr(reading, "read_episode", lambda *_, **__: pytest.fail("read again"))
    assert ingest(folder, task=TASK, relabel="stored", out=tmp_path / "stores").reused


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
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=400_000))
    monkeypatch.setattr(reading, "read_episode", lambda *_, **__: pytest.fail("read"))
    folder = tmp_path / "walker" / "rnd"
    write_episode(folder / "buffer", index=0, episode=make_episode("walker", steps=4000))
    with pytest.raises(InputError, match=r"stores: .* needs 0\.5 MB; make room.*got 0\.4 MB free"):
        make_store(tmp_path, source=folder, task="walker_run")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "stores").write_bytes(b"")
    with pytest.raises(InputError, match="stores: cannot be written; choose another --out"):
        make_store(tmp_path)


def test_a_read_only_target_is_named(tmp_path):
    target = Path("/sys/stores")  # nobody can make a folder there, root included
    with pytest.raises(InputError, match=r"^/sys/stores: cannot be written; choose another --out"):
        make_store(tmp_path, out=target)


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


def test_a_lock_whose_file_is_gone_keeps_nobody_out(tmp_path, monkeypatch):
    flock = fcntl.flock

    def late(handle, how):
        os.unlink(handle.name)  # the writer before removes it between open and flock
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="another ingest is making this store"):
        make_store(tmp_path)
