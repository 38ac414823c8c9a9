"""D4RL-style files are made up here as D4RL writes them: one row a step, flags in the last row."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from agentic_bpt.datasets import exchange_d4rl
from agentic_bpt.datasets.exchange_d4rl import import_d4rl
from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode
from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.errors import InputError
from tests.builders import make_episode

NEXT = "next_observations"


def d4rl_arrays(*lengths: int) -> dict[str, Any]:
    """Lay made-up cartpole episodes one after the other, each ended by a time limit."""
    episodes = [make_episode(steps=steps, seed=seed) for seed, steps in enumerate(lengths)]
    arrays: dict[str, Any] = {
        "observations": np.concatenate([episode.observation[:-1] for episode in episodes]),
        NEXT: np.concatenate([episode.observation[1:] for episode in episodes]),
        "actions": np.concatenate([episode.action[1:] for episode in episodes]),
        "rewards": np.concatenate([episode.reward[1:] for episode in episodes]),
        "terminals": np.zeros(sum(lengths), bool),
        "timeouts": np.zeros(sum(lengths), bool),
    }
    arrays["timeouts"][np.cumsum(lengths) - 1] = True
    physics = np.concatenate([physics_of(episode)[:-1] for episode in episodes])
    return {**arrays, "infos/qpos": physics[:, :2], "infos/qvel": physics[:, 2:]}


def physics_of(episode: Episode) -> np.ndarray:
    assert episode.physics is not None
    return episode.physics


def save(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            if values is not None:
                file[key] = values
    return path


def take_in(tmp_path: Path, arrays: dict[str, Any], **options: Any):
    path = save(tmp_path / "data.hdf5", arrays)
    chosen = {"domain": "cartpole", "expl_agent": "d4rl", "out": tmp_path / "out", **options}
    return import_d4rl(path, **chosen)


def episodes_of(folder: Path, domain: str = "cartpole") -> list[Episode]:
    return [read_episode(file, domain=domain) for file in episode_files(folder)]


def test_every_number_of_every_episode_comes_in(tmp_path):
    result = take_in(tmp_path, d4rl_arrays(4, 7, 1))
    assert result.folder == tmp_path / "out/cartpole/d4rl"
    assert result.episodes == 3
    read = episodes_of(result.folder)
    assert [episode.name for episode in read] == [
        "episode_000000_4.npz",
        "episode_000001_7.npz",
        "episode_000002_1.npz",
    ]
    for seed, (steps, episode) in enumerate(zip((4, 7, 1), read, strict=True)):
        original = make_episode(steps=steps, seed=seed)
        for name in ("observation", "action", "reward", "discount"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(original, name))
        # The state after the last action is not in such a file.
        physics_RP = physics_of(original)
        np.testing.assert_array_equal(physics_of(episode), [*physics_RP[:-1], physics_RP[-2]])
    (note,) = result.notes
    assert "infos/qvel hold no state after the last action" in note


def test_a_store_of_them_has_the_sums_of_the_stored_rewards_as_returns(tmp_path):
    arrays = d4rl_arrays(4, 7, 1)
    arrays["rewards"] = arrays["rewards"].astype(np.float64)[:, None]
    result = take_in(tmp_path, arrays)
    made = ingest(result.folder, task="cartpole_swingup", relabel="stored", out=tmp_path)
    with Store.open(made.path) as store:
        sums = [part.sum() for part in np.split(arrays["rewards"], [4, 11])]
        np.testing.assert_allclose(store.returns, sums, rtol=1e-6)


def test_terminals_and_timeouts_both_end_an_episode_and_only_terminals_the_discount(tmp_path):
    arrays = d4rl_arrays(2, 3, 4)
    arrays["terminals"][4] = True  # beside the timeout in the same row
    arrays["timeouts"][1], arrays["terminals"][1] = False, True
    read = episodes_of(take_in(tmp_path, arrays).folder)
    assert [len(episode.action) - 1 for episode in read] == [2, 3, 4]
    assert [episode.discount[-1] for episode in read] == [0, 0, 1]
    assert all((episode.discount[:-1] == 1).all() for episode in read)


def test_rows_after_the_last_end_are_left_out_and_said(tmp_path):
    arrays = d4rl_arrays(4, 7, 3)
    arrays["timeouts"][-1] = False
    seen = []
    result = take_in(tmp_path, arrays, progress=lambda *counts: seen.append(counts))
    assert result.episodes == len(episodes_of(result.folder)) == 2
    assert any("left out rows 11 to 13" in note for note in result.notes)
    assert seen == [(4, 14), (11, 14), (14, 14)]


def test_episodes_across_blocks_of_flags_stay_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange_d4rl, "_BLOCK_ROWS", 3)
    read = episodes_of(take_in(tmp_path, d4rl_arrays(4, 7, 3, 2)).folder)
    assert [len(episode.action) - 1 for episode in read] == [4, 7, 3, 2]


def test_without_next_observations_no_reward_is_lost(tmp_path):
    arrays = d4rl_arrays(4, 7) | {NEXT: None, "infos/qpos": None}
    result = take_in(tmp_path, arrays)
    for seed, episode in enumerate(episodes_of(result.folder)):
        original = make_episode(steps=len(episode.reward) - 1, seed=seed)
        np.testing.assert_array_equal(episode.reward, original.reward)
        np.testing.assert_array_equal(episode.observation[:-1], original.observation[:-1])
        np.testing.assert_array_equal(episode.observation[-1], original.observation[-2])
        assert episode.physics is None
    assert any("no next_observations" in note for note in result.notes)


def test_physics_of_another_width_is_left_out_and_said(tmp_path):
    arrays = d4rl_arrays(4)
    arrays["infos/qvel"] = arrays["infos/qvel"][:, :1]
    result = take_in(tmp_path, arrays)
    assert episodes_of(result.folder)[0].physics is None
    assert any("has 4 numbers, they have 3" in note for note in result.notes)


def test_rewards_that_no_task_pays_are_said(tmp_path):
    arrays = d4rl_arrays(4, 7)
    arrays["rewards"][5] = 3.5
    notes = take_in(tmp_path, arrays).notes
    assert any("1 of 2 episodes have rewards outside [0, 1]" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": (8, 1.5)}, "'actions': must lie in .* got 1.5 in row 8$"),
        ({"actions": (8, np.nan)}, "'actions': every number must be finite.* got nan in row 8$"),
        ({"observations": (5, np.inf)}, "'observations': .*finite.* got inf in row 5$"),
        ({"rewards": (10, -np.inf)}, "'rewards': .*finite.* got -inf in row 10$"),
        ({"infos/qpos": (9, np.nan)}, "'infos/qpos': .*finite.* got nan in row 9$"),
    ],
)
def test_a_bad_number_is_named_with_its_row_and_leaves_nothing(tmp_path, change, message):
    arrays = d4rl_arrays(4, 7)
    ((key, (row, value)),) = change.items()
    arrays[key][row] = value
    with pytest.raises(InputError, match=rf"data\.hdf5: key {message}"):
        take_in(tmp_path, arrays)
    assert os.listdir(tmp_path / "out/cartpole") == []


def test_an_end_that_no_flag_marks_is_refused(tmp_path):
    arrays = d4rl_arrays(4, 7, 3)
    arrays["timeouts"][3] = False
    with pytest.raises(InputError, match=r"another episode begins there.* in row 3$"):
        take_in(tmp_path, arrays)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("timeouts", None, "timeouts true in the last row .* got none named timeouts"),
        ("rewards", np.zeros(10, "f4"), r"'rewards': must have the shape \[11\] .* got \[10\]"),
        (NEXT, np.zeros((11, 4), "f4"), r"'next_.*must have the shape \[11, 5\] .* got \[11, 4\]"),
        ("rewards", np.zeros((11, 2), "f4"), r"'rewards': .*shape \[steps\].* got \[11, 2\]"),
        ("rewards", np.float32(1), r"'rewards': .*shape \[steps\].* got \[\]"),
        ("observations", np.zeros((11, 5, 1)), r"shape \[steps, numbers\].* got \[11, 5, 1\]"),
        ("actions", np.zeros((11, 1), "c8"), "'actions': must hold numbers.* got dtype complex64"),
        ("actions", np.zeros((11, 3), "f4"), "widths 5 and 1 in domain cartpole.* got 5 and 3"),
        ("terminals", np.full(11, 2), "'terminals': must be true or false; got 2 in row 0"),
        ("timeouts", np.zeros(11, bool), "mark no end of an episode.* got 11 rows"),
    ],
)
def test_files_that_are_not_d4rls_are_refused(tmp_path, key, values, message):
    with pytest.raises(InputError, match=message):
        take_in(tmp_path, d4rl_arrays(4, 7) | {key: values})


@pytest.mark.parametrize("kind", ["link", "raw", "virtual"])
def test_arrays_in_other_files_are_refused_unread(tmp_path, kind):
    rewards = d4rl_arrays(4)["rewards"]
    other = save(tmp_path / "other.hdf5", {"rewards": rewards})
    path = save(tmp_path / "points.hdf5", d4rl_arrays(4) | {"rewards": None})
    with h5py.File(path, "a") as file:
        if kind == "link":
            file["rewards"] = h5py.ExternalLink(other.name, "rewards")
        elif kind == "raw":
            file.create_dataset("rewards", (4,), "f4", external=[(other.name, 0, 16)])
        else:
            layout = h5py.VirtualLayout((4,), "f4")
            layout[:] = h5py.VirtualSource(other.name, "rewards", (4,))
            file.create_virtual_dataset("rewards", layout)
    with pytest.raises(InputError, match="'rewards': points to another file"):
        import_d4rl(path, domain="cartpole", expl_agent="d4rl", out=tmp_path)


def test_objects_are_refused_unread(tmp_path):
    path = save(tmp_path / "objects.hdf5", d4rl_arrays(4) | {"observations": None})
    with h5py.File(path, "a") as file:
        objects = file.create_dataset("observations", (4, 5), h5py.vlen_dtype(np.uint8))
        objects[0, 0] = np.frombuffer(b"cos\nsystem\n", np.uint8)
    with pytest.raises(InputError, match="'observations': must hold numbers; objects are never"):
        import_d4rl(path, domain="cartpole", expl_agent="d4rl", out=tmp_path)


def test_episodes_of_other_bodies_are_refused(tmp_path):
    arrays = d4rl_arrays(4)
    with pytest.raises(InputError, match="give --domain cartpole if they are of it; got 5 and 1"):
        take_in(tmp_path, arrays, domain="walker")
    arrays["observations"] = arrays[NEXT] = np.zeros((4, 11), "f4")
    with pytest.raises(InputError, match=r"no ExoRL domain has these.* got 11 and 1"):
        take_in(tmp_path, arrays)
    with pytest.raises(InputError, match="unknown domain"):
        take_in(tmp_path, arrays, domain="hopper")


def test_an_episode_longer_than_any_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange_d4rl, "MAX_STEPS", 6)
    with pytest.raises(InputError, match=r"no end in 6 rows.* got none from row 4 on"):
        take_in(tmp_path, d4rl_arrays(4, 7))


def test_a_folder_that_holds_something_is_not_touched(tmp_path):
    first = take_in(tmp_path, d4rl_arrays(4))
    before = {path: path.read_bytes() for path in first.folder.rglob("*.npz")}
    with pytest.raises(InputError, match="is there already; choose another name"):
        take_in(tmp_path, d4rl_arrays(3, 3))
    assert {path: path.read_bytes() for path in first.folder.rglob("*.npz")} == before
    with pytest.raises(InputError, match="expl_agent names a folder"):
        take_in(tmp_path, d4rl_arrays(3), expl_agent="../d4rl")


def test_damaged_files_are_named(tmp_path):
    options = {"domain": "cartpole", "expl_agent": "d4rl", "out": tmp_path}
    with pytest.raises(InputError, match=r"none\.hdf5: is not a file"):
        import_d4rl(tmp_path / "none.hdf5", **options)
    page = tmp_path / "page.hdf5"
    page.write_text("<html>")
    with pytest.raises(InputError, match=r"page\.hdf5: is not a whole HDF5 file"):
        import_d4rl(page, **options)
    path = save(tmp_path / "packed.hdf5", d4rl_arrays(40) | {"actions": None})
    with h5py.File(path, "a") as file:
        actions = file.create_dataset("actions", (40, 1), "f4", compression="gzip")
        actions[:] = 0.5
        place = actions.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(InputError, match="'actions': rows 0 to 39 are damaged"):
        import_d4rl(path, **options)
