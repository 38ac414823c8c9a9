import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentic_bpt.datasets import reading
from agentic_bpt.datasets.exorl import episode_files, write_episode
from agentic_bpt.datasets.reading import worker_count
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.errors import InputError
from tests.builders import make_episode, make_folder

PROGRAM = """
import multiprocessing, os, signal, sys
from pathlib import Path
from agentic_bpt.datasets.store import ingest
def progress(done, total):
    if done == 1:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        {act}
try:
    ingest(Path(sys.argv[1]), task="cartpole_swingup", relabel="stored", out=Path(sys.argv[2]),
           workers=2, progress=progress)
except KeyboardInterrupt:
    print("stopped", file=sys.stderr)
"""


def make(folder: Path, out: Path, **options):
    return ingest(folder, task="cartpole_swingup", relabel="stored", out=out, **options)


def hash_of(path: Path) -> str:
    with Store.open(path) as store:
        store.verify()
        return store.data_hash


def run(folder: Path, out: Path, act: str) -> tuple[list[int], subprocess.CompletedProcess]:
    """Start an ingest that does something to itself; give the ids of its workers."""
    command = [sys.executable, "-c", PROGRAM.format(act=act), str(folder), str(out)]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, start_new_session=True
    )
    return [int(word) for word in ended.stdout.split()], ended


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # ended, and nobody has asked for its exit code


def wait_for_the_end(processes: list[int]) -> list[int]:
    deadline = time.monotonic() + 20
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [process for process in processes if is_running(process)]


def test_several_processes_make_the_same_store(tmp_path):
    folder = make_folder(tmp_path, episodes=3)
    for index, steps in enumerate((1, 400, 7, 250, 1000, 2), start=3):
        write_episode(folder / "buffer", index=index, episode=make_episode(steps=steps, seed=index))
    for index in (1, 6):
        (bad,) = (folder / "buffer").glob(f"episode_{index:06d}_*.npz")
        bad.write_bytes(b"<html>")
    alone = make(folder, tmp_path / "alone", skip_bad=True, workers=1)
    told = []
    together = make(
        folder,
        tmp_path / "together",
        skip_bad=True,
        workers=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert hash_of(together.path) == hash_of(alone.path)
    assert together.skipped == alone.skipped
    assert "episode_000001_5.npz: is a web page" in together.skipped[0]
    assert told == [(done, 9) for done in range(1, 10)]


def test_a_bad_episode_found_by_another_process_is_named(tmp_path):
    folder = make_folder(tmp_path, episodes=4)
    (folder / "buffer/episode_000002_5.npz").write_bytes(b"<html>")
    with pytest.raises(InputError, match=r"episode_000002_5\.npz: is a web page.*--skip-bad"):
        make(folder, tmp_path / "stores", workers=2)
    assert os.listdir(tmp_path / "stores") == []


def test_a_killed_worker_is_one_line_and_the_next_run_goes_on(tmp_path):
    folder = make_folder(tmp_path, episodes=60)
    told = []

    def kill_one(done: int, _total: int) -> None:
        told.append(done)
        if done == 1:
            child = multiprocessing.active_children()[0].pid
            assert child is not None
            os.kill(child, signal.SIGKILL)

    message = r"^[^\n]*was killed, perhaps for want of memory; the same command goes on[^\n]*$"
    with pytest.raises(InputError, match=message):
        make(folder, tmp_path / "stores", workers=2, progress=kill_one)
    reached = told[-1]
    assert reached < 60
    path = make(
        folder, tmp_path / "stores", workers=1, progress=lambda done, _: told.append(done)
    ).path
    assert told[reached] == reached + 1
    assert hash_of(path) == hash_of(make(folder, tmp_path / "whole").path)


def test_workers_end_with_the_process_that_started_them(tmp_path):
    folder = make_folder(tmp_path, episodes=30)
    workers, ended = run(folder, tmp_path / "stores", "os.kill(os.getpid(), 9)")
    assert ended.returncode == -9
    assert len(workers) == 2
    assert wait_for_the_end(workers) == []


def test_an_interrupt_ends_all_processes_without_a_word_of_theirs(tmp_path):
    folder = make_folder(tmp_path, episodes=30)
    act = "os.killpg(0, signal.SIGINT)"  # as a terminal does at Ctrl-C
    workers, ended = run(folder, tmp_path / "stores", act)
    assert (ended.returncode, ended.stderr) == (0, "stopped\n")
    assert len(workers) == 2
    assert wait_for_the_end(workers) == []


def test_a_few_steps_are_read_by_this_process_and_many_by_all_cores(tmp_path, monkeypatch):
    files = episode_files(make_folder(tmp_path, episodes=3, steps=5))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4})
    assert worker_count(files, None) == 1
    monkeypatch.setattr(reading, "PARALLEL_STEPS", 15)
    assert worker_count(files, None) == 3
    assert worker_count(files, 2) == 2
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        worker_count(files, 0)
