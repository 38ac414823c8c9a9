"""The state file: both ways, whole or not at all, and what it refuses."""

import numpy as np
import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.exploration import state_file
from agentic_bpt.exploration.state_file import CollectionState, load_state, save_state

STATE = CollectionState(
    request={"task": "walker_run", "settings": {"noise": 0.1}},
    episodes=7,
    learned={
        ".actor.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n": np.array(5, np.int32),
    },
)


def test_state_comes_back_as_it_was(tmp_path):
    save_state(tmp_path / "state.npz", STATE)
    request, episodes, learned = load_state(tmp_path / "state.npz")
    assert (request, episodes) == (STATE.request, 7)
    assert learned.keys() == STATE.learned.keys()
    np.testing.assert_array_equal(learned[".actor.weight"], STATE.learned[".actor.weight"])
    assert learned["n"].dtype == np.int32
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_a_save_that_fails_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    save_state(path, STATE)

    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(state_file.np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save_state(path, STATE._replace(episodes=8))
    assert load_state(path).episodes == 7


@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_state_is_refused(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"state\.npz: cannot be read as the state"):
        load_state(path)


def test_pickled_arrays_and_other_formats_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    np.savez(path, header=np.array([{"format": 2}], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):
        load_state(path)
    monkeypatch.setattr(state_file, "FORMAT", 99)
    save_state(path, STATE)
    monkeypatch.undo()
    with pytest.raises(InputError, match="expected format 2, got 99"):
        load_state(path)
