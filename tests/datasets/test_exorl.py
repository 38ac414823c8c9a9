import json
import os
import warnings

import numpy as np
import pytest

from agentic_bpt.datasets.exorl import (
    episode_files,
    read_episode,
    trajectory_of,
    write_episode,
)
from agentic_bpt.errors import InputError
from tests.builders import arrays_of, make_episode, make_folder, read_only_episode, save_arrays


def test_reference_episodes_are_read_as_numpy_reads_them(reference_episodes):
    said = json.loads((reference_episodes / "reference.json").read_text())
    assert len(said) == 12
    for key, facts in said.items():
        domain = key.split("/")[0]
        folder = reference_episodes / domain / "random"
        file = next(file for file in episode_files(folder) if key.endswith(file.name))
        episode = read_episode(file, domain=domain)
        with np.load(file.path) as stored:
            for name in ("observation", "action", "reward", "discount", "physics"):
                assert list(stored[name].shape) == facts["keys"][name][0]
                values = getattr(episode, name)
                assert values.dtype == (np.float64 if name == "physics" else np.float32)
                expected = stored[name].astype(values.dtype).reshape(values.shape)
                np.testing.assert_array_equal(values, expected)
        total = episode.reward[1:].sum(dtype=np.float64)
        assert abs(total - facts["online_return"]) <= 1e-6 * max(1, facts["online_return"])


@pytest.mark.parametrize("domain", ["cartpole", "quadruped"])
def test_what_is_written_is_read_again(tmp_path, domain):
    episode = make_episode(domain, steps=7)
    path = write_episode(tmp_path, index=12, episode=episode)
    assert path.name == "episode_000012_7.npz"
    again = read_only_episode(tmp_path, domain)
    assert (again.name, again.action_repeat) == (path.name, 1)
    for name in ("observation", "action", "reward", "discount", "physics"):
        np.testing.assert_array_equal(getattr(again, name), getattr(episode, name))
        assert getattr(again, name).flags.writeable


def test_written_files_have_exorls_keys_and_types(tmp_path, reference_episodes):
    reference = next((reference_episodes / "walker/random/buffer").iterdir())
    path = write_episode(tmp_path, index=0, episode=make_episode("walker", steps=1000))
    with np.load(reference) as expected, np.load(path, allow_pickle=False) as written:
        assert set(written.files) == set(expected.files)
        for key in written.files:
            assert written[key].shape == expected[key].shape
            if key != "action":  # float64 in these references, float32 in the published archives
                assert written[key].dtype == expected[key].dtype
        assert written["action"].dtype == np.float32


def test_writing_is_deterministic_and_leaves_nothing_else(tmp_path):
    episode = make_episode(steps=7)
    first = write_episode(tmp_path / "a", index=0, episode=episode)
    second = write_episode(tmp_path / "b", index=0, episode=episode)
    assert first.read_bytes() == second.read_bytes()
    assert os.listdir(tmp_path / "a") == [first.name]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match=r"No space"):
        write_episode(tmp_path, index=0, episode=make_episode())
    assert os.listdir(tmp_path) == []


def test_action_repeat_is_kept_and_left_out_at_1(tmp_path):
    once = write_episode(tmp_path / "once", index=0, episode=make_episode())
    write_episode(tmp_path / "four", index=0, episode=make_episode(action_repeat=4))
    with np.load(once) as stored:
        assert "action_repeat" not in stored.files
    assert read_only_episode(tmp_path / "four").action_repeat == 4


def test_four_maze_rewards_are_kept(tmp_path):
    rewards_R4 = np.arange(24, dtype=np.float32).reshape(6, 4)
    episode = make_episode("point_mass_maze", reward=rewards_R4)
    write_episode(tmp_path, index=0, episode=episode)
    again = read_only_episode(tmp_path, "point_mass_maze")
    np.testing.assert_array_equal(again.reward, rewards_R4)


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", ">f8"])
def test_other_widths_of_floats_are_converted(tmp_path, dtype):
    arrays = {key: values.astype(dtype) for key, values in arrays_of(make_episode()).items()}
    save_arrays(tmp_path, **arrays)
    episode = read_only_episode(tmp_path)
    assert episode.observation.dtype == episode.action.dtype == np.dtype("float32")
    assert episode.physics is not None
    assert episode.physics.dtype == np.dtype("float64")
    expected = arrays["observation"].astype("float32")
    np.testing.assert_array_equal(episode.observation, expected)


def test_columns_first_and_keys_of_skill_collectors_are_read(tmp_path):
    arrays = arrays_of(make_episode())
    in_columns = np.asfortranarray(arrays["observation"])
    save_arrays(tmp_path, observation=in_columns, skill=np.array([{"a": 1}], object))
    np.testing.assert_array_equal(read_only_episode(tmp_path).observation, arrays["observation"])


def test_physics_may_be_missing(tmp_path):
    write_episode(tmp_path, index=0, episode=make_episode(physics=None))
    assert read_only_episode(tmp_path).physics is None


def test_an_action_stands_in_the_row_of_the_observation_it_was_taken_in():
    episode = make_episode(steps=3)
    trajectory = trajectory_of(episode, np.array([0.25, 0.5, 1]))
    for t in range(3):
        assert (trajectory.observations[t] == episode.observation[t]).all()
        assert (trajectory.actions[t] == episode.action[t + 1]).all()
    assert trajectory.rewards.tolist() == [0.25, 0.5, 1]
    assert (trajectory.final_observation == episode.observation[3]).all()


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("action", None, "got none named action"),
        (
            "observation",
            np.zeros((5, 5), "f4"),
            r"5 steps, so 6 rows.*rename it; got shape \[5, 5\]",
        ),
        ("action", np.zeros((7, 1), "f4"), r"5 steps, so 6 rows.*got shape \[7, 1\]"),
        ("reward", np.zeros((), "f4"), r"5 steps, so 6 rows.*got shape \[\]"),
        ("observation", np.zeros((6, 9), "f4"), "must have width 5 in domain cartpole; no domain"),
        ("reward", np.zeros((6, 4), "f4"), "must have width 1 in domain cartpole"),
        ("physics", np.zeros((6, 57)), "width 4 .* quadruped.* got width 57"),
        ("observation", np.full((6, 5), "x"), "must hold numbers.*got dtype <U1"),
        ("action_repeat", np.array(0), "whole number of at least 1, got int64 0"),
        ("action_repeat", np.array([2, 2]), "one whole number"),
        ("action_repeat", np.array(2.5), "whole number of at least 1, got float64 2.5"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, key, values, message):
    save_arrays(tmp_path, **{key: values})
    with pytest.raises(InputError, match=rf"episode_000000_5\.npz: .*{key}.*{message}"):
        read_only_episode(tmp_path)


def test_an_episode_of_another_domain_names_that_domain(tmp_path):
    folder = make_folder(tmp_path, domain="walker")
    file = episode_files(folder)[0]
    message = "'observation': must have width 17 in domain cheetah; it looks like walker: choose a"
    with pytest.raises(InputError, match=message):
        read_episode(file, domain="cheetah")


@pytest.mark.parametrize("key", ["observation", "action", "reward", "discount", "physics"])
def test_the_row_of_a_number_that_is_not_finite_is_named(tmp_path, key):
    values = arrays_of(make_episode())[key]
    values[4, 0] = np.nan
    save_arrays(tmp_path, **{key: values})
    with pytest.raises(InputError, match=rf"5\.npz: key '{key}': .*leave.* got nan in row 4"):
        read_only_episode(tmp_path)


def test_a_float64_too_large_for_float32_is_not_finite(tmp_path):
    observation_RO = arrays_of(make_episode())["observation"].astype(np.float64)
    observation_RO[3, 2] = 1e300
    save_arrays(tmp_path, observation=observation_RO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"'observation': .*got inf in row 3"):
            read_only_episode(tmp_path)


def test_actions_outside_their_range_are_refused_and_rounding_is_not(tmp_path):
    action_RA = arrays_of(make_episode())["action"].astype(np.float64)
    action_RA[2, 0] = 1 + 1e-6
    save_arrays(tmp_path, action=action_RA)
    read_only_episode(tmp_path)
    action_RA[3, 0] = -1.1
    save_arrays(tmp_path, action=action_RA)
    with pytest.raises(
        InputError, match=r"'action': must lie in \[-1, 1\].* got -1\.1\d* in row 3"
    ):
        read_only_episode(tmp_path)


def test_a_file_that_vanished_is_named(tmp_path):
    path = write_episode(tmp_path, index=0, episode=make_episode())
    (file,) = episode_files(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"episode_000000_5.npz: cannot be opened: No such file"):
        read_episode(file, domain="cartpole")
