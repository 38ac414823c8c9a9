import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt.datasets import reading
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.errors import InputError
from tests.builders import make_folder

EPISODES = 6
SPOILED = 1

# What kills the process, and when. `count` numbers the calls of the function that it replaces.
KILLS = {
    "between episodes": "progress = lambda done, _: done == 3 and die()",
    "within the rows": """
pwrite = os.pwrite
def half(fd, data, offset):
    if next(count) == 7:
        pwrite(fd, data[:9], offset)
        die()
    return pwrite(fd, data, offset)
os.pwrite = half""",
    "after the rows": """
append = Journal.append
Journal.append = lambda self, entry: die() if next(count) == 3 else append(self, entry)""",
    "within a line of the journal": """
append = Journal.append
def half(self, entry):
    if next(count) == 3:
        self._handle.write(json.dumps(entry).encode()[:5])
        die()
    append(self, entry)
Journal.append = half""",
    "within the description": """
write = h5py.AttributeManager.__setitem__
def last(self, name, value):
    write(self, name, value)
    if name == "data_hash":
        h5py.h5f.flush(self._id)
        die()
h5py.AttributeManager.__setitem__ = last""",
    "before it has its name": """
replace = os.replace
os.replace = lambda a, b: die() if str(b).endswith(".h5") else replace(a, b)""",
}
PROGRAM = """
import itertools, json, os, sys
from pathlib import Path
import h5py
from agentic_bpt.datasets import store
from agentic_bpt.datasets.store_journal import Journal
count, progress = itertools.count(), None
def die():
    os.kill(os.getpid(), 9)
{kill}
store.ingest(Path(sys.argv[1]), task="cartpole_swingup", relabel="stored", out=Path(sys.argv[2]),
             skip_bad=True, progress=progress)
"""


def folder_with(tmp_path: Path, *, spoiled: bool) -> Path:
    folder = make_folder(tmp_path, episodes=EPISODES)
    if spoiled:
        path = folder / "buffer" / f"episode_{SPOILED:06d}_5.npz"
        path.write_bytes(path.read_bytes()[:100])
    return folder


def kill(folder: Path, out: Path, when: str = "between episodes") -> list[str]:
    """Run an ingest until it is killed; give the endings of what it leaves."""
    program = PROGRAM.format(kill=KILLS[when])
    command = [sys.executable, "-c", program, str(folder), str(out)]
    assert subprocess.run(command, check=False).returncode == -9
    return sorted(name.partition(".h5.")[2] for name in os.listdir(out))


def make(folder: Path, out: Path, **options) -> Path:
    settings = {"task": "cartpole_swingup", "relabel": "stored", "skip_bad": True, **options}
    return ingest(folder, out=out, **settings).path


def read_from_now_on(monkeypatch) -> list[int]:
    """Note the numbers of the episodes that this process reads."""
    numbers = []
    read = reading.read_episode

    def noting(file, *, domain):
        numbers.append(file.index)
        return read(file, domain=domain)

    monkeypatch.setattr(reading, "read_episode", noting)
    monkeypatch.setattr("agentic_bpt.datasets.store.require_rewards", lambda *_, **__: None)
    return numbers


def assert_same(path: Path, expected: Path) -> None:
    with Store.open(path) as got, Store.open(expected) as whole:
        got.verify()
        assert got.data_hash == whole.data_hash
        assert (got.names, got.action_repeat) == (whole.names, whole.action_repeat)
        assert [line.split(":")[1:] for line in got.skipped] == [
            line.split(":")[1:] for line in whole.skipped
        ]
        np.testing.assert_array_equal(got.observation_mean, whole.observation_mean)
        np.testing.assert_array_equal(got.observation_std, whole.observation_std)


@pytest.mark.parametrize(
    ("when", "spoiled", "left"),
    [
        ("between episodes", False, [3, 4, 5]),
        ("within the rows", False, [2, 3, 4, 5]),
        ("after the rows", True, [3, 4, 5]),
        ("within a line of the journal", True, [3, 4, 5]),
        ("within the description", False, []),
        ("within the description", True, []),
        ("before it has its name", True, []),
    ],
)
def test_a_killed_ingest_goes_on_and_ends_with_the_same_data(
    tmp_path, monkeypatch, when, spoiled, left
):
    folder = folder_with(tmp_path, spoiled=spoiled)
    whole = make(folder, tmp_path / "whole")
    out = tmp_path / "stores"
    assert {"lock", "part", "part.journal"} <= set(kill(folder, out, when))
    numbers = read_from_now_on(monkeypatch)
    path = make(folder, out)
    assert numbers == left
    assert os.listdir(out) == [path.name]
    assert_same(path, whole)


def test_rows_that_did_not_reach_the_disk_are_written_again(tmp_path, monkeypatch):
    folder = folder_with(tmp_path, spoiled=False)
    whole = make(folder, tmp_path / "whole")
    kill(folder, tmp_path / "stores")
    (part,) = (tmp_path / "stores").glob("*.part")
    content = bytearray(part.read_bytes())
    with Store.open(whole) as store:
        place = content.find(store.trajectory(1).actions.tobytes())
    assert place > 0
    content[place] ^= 1
    part.write_bytes(content)
    numbers = read_from_now_on(monkeypatch)
    path = make(folder, tmp_path / "stores")
    assert numbers == [1, 2, 3, 4, 5]
    assert_same(path, whole)


@pytest.mark.parametrize("harm", ["another header", "no rows", "zeros"])
def test_what_cannot_be_used_is_made_anew(tmp_path, monkeypatch, harm):
    folder = folder_with(tmp_path, spoiled=False)
    kill(folder, tmp_path / "stores")
    (journal,) = (tmp_path / "stores").glob("*.journal")
    first, *rest = journal.read_text().splitlines()
    assert [set(json.loads(line)) for line in rest] == [{"checksum", "action_repeat"}] * 3
    if harm == "another header":
        header = {**json.loads(first), "hdf5": "0.0.0"}
        journal.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    elif harm == "zeros":
        journal.write_text("\n".join([first, "\0" * 20, *rest]) + "\n")
    else:
        journal.with_suffix("").unlink()
    numbers = read_from_now_on(monkeypatch)
    path = make(folder, tmp_path / "stores")
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert_same(path, make(folder, tmp_path / "whole"))


def test_a_bad_episode_that_a_killed_run_left_out_ends_one_that_leaves_none_out(tmp_path):
    folder = folder_with(tmp_path, spoiled=True)
    kill(folder, tmp_path / "stores")
    with pytest.raises(InputError, match=r"episode_000001_5\.npz: is cut short.*--skip-bad"):
        make(folder, tmp_path / "stores", skip_bad=False)
    assert os.listdir(tmp_path / "stores") == []


def test_an_interrupted_ingest_goes_on(tmp_path):
    folder = folder_with(tmp_path, spoiled=False)
    told = []

    def interrupt(done: int, _total: int) -> None:
        told.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(folder, tmp_path / "stores", progress=interrupt)
    path = make(folder, tmp_path / "stores", progress=interrupt)
    assert told == [1, 2, 3, 4, 5, 6]
    assert os.listdir(tmp_path / "stores") == [path.name]
    assert_same(path, make(folder, tmp_path / "whole"))
