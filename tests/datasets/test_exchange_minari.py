"""Minari datasets are made by Minari itself where it is installed; nothing is downloaded."""

import json
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentic_bpt.datasets.exchange_minari import export_minari, import_minari
from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode, write_episode
from agentic_bpt.errors import InputError
from tests.builders import make_episode, make_folder

ID = "exorl/cartpole-rnd-v0"


@pytest.fixture
def minari(tmp_path, monkeypatch) -> Any:
    """Give Minari with a place of its own for datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return pytest.importorskip("minari", reason="the extra minari is not installed")


def brought_back(tmp_path: Path, domain: str = "cartpole") -> Path:
    options = {"domain": domain, "expl_agent": "back", "out": tmp_path / "back"}
    return import_minari(ID, **options).folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "buffer").iterdir()}


def foreign(minari: Any, spaces: Any, **changes: Any) -> None:
    """Make a dataset that this package did not write: two episodes of cartpole's widths."""
    buffer_type = import_module("minari.data_collector").EpisodeBuffer
    buffers = []
    for seed in range(2):
        episode = make_episode(steps=5, seed=seed)
        arrays = {
            "observations": episode.observation.astype(np.float64),
            "actions": episode.action[1:],
            "rewards": episode.reward[1:].astype(np.float64),
            "terminations": np.arange(5) == 4 if seed else np.zeros(5, bool),
            "truncations": np.zeros(5, bool) if seed else np.arange(5) == 4,
        }
        buffers.append(buffer_type(**(arrays | changes)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # author, address and so on are not given
        minari.create_dataset_from_buffers(
            ID, buffers, observation_space=spaces[0], action_space=spaces[1]
        )


def flat_spaces(low: float = -1, high: float = 1) -> tuple[Any, Any]:
    from gymnasium.spaces import Box

    return Box(-np.inf, np.inf, (5,), np.float64), Box(low, high, (1,), np.float32)


def test_exorl_to_minari_to_exorl_is_bit_equal(tmp_path, minari):
    source = make_folder(tmp_path, episodes=3)
    seen = []
    exported = export_minari(
        source, dataset_id=ID, task="cartpole_swingup", progress=lambda *n: seen.append(n)
    )
    assert exported.folder == tmp_path / "minari" / ID
    assert (exported.episodes, exported.notes, seen[-1]) == (3, [], (3, 3))
    folder = brought_back(tmp_path)
    assert folder == tmp_path / "back/cartpole/back"
    assert bytes_of(folder) == bytes_of(source)


def test_what_exorls_own_code_wrote_comes_back(tmp_path, minari, reference_episodes):
    source = reference_episodes / "quadruped/random"
    export_minari(source, dataset_id=ID, task="quadruped_walk")
    folder = brought_back(tmp_path, "quadruped")
    pairs = zip(episode_files(source), episode_files(folder), strict=True)
    for before, after in pairs:
        with np.load(before.path) as expected, np.load(after.path) as got:
            assert set(got.files) == set(expected.files)
            for key in got.files:
                values = expected[key]
                if key == "action":  # float64 in these references
                    values = values.astype(np.float32)
                assert got[key].dtype == values.dtype
                assert got[key].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"physics": None},
        {"action_repeat": 4},
        {"discount": np.array([1, 1, 1, 1, 1, 0], "f4")},
        {"discount": np.array([1, 1, 0.5, 1, 1, 1], "f4")},
        {"reward": np.array([0.5, 0, 1, 0, 1, -0.0], "f4")},
        {"action": np.array([[-0.0], [1], [-1], [0], [0.5], [-0.0]], "f4")},
    ],
    ids=["no physics", "repeat", "terminal", "discount", "reset reward", "reset action"],
)
def test_unusual_episodes_come_back(tmp_path, minari, fields):
    source = tmp_path / "source"
    write_episode(source / "buffer", index=0, episode=make_episode(**fields))
    export_minari(source, dataset_id=ID, task="cartpole_swingup")
    assert bytes_of(brought_back(tmp_path)) == bytes_of(source)


def test_four_maze_rewards_come_back_and_minari_has_those_of_the_task(tmp_path, minari):
    from agentic_bpt.datasets.relabel import relabel

    rewards_R4 = np.random.default_rng(0).uniform(0, 1, (6, 4)).astype(np.float32)
    episode = make_episode("point_mass_maze", reward=rewards_R4)
    write_episode(tmp_path / "source/buffer", index=0, episode=episode)
    task = "point_mass_maze_reach_top_left"
    export_minari(tmp_path / "source", dataset_id=ID, task=task)
    expected = relabel(episode, task=task, mode="control").astype(np.float32)
    np.testing.assert_array_equal(minari.load_dataset(ID)[0].rewards, expected)
    assert bytes_of(brought_back(tmp_path, "point_mass_maze")) == bytes_of(tmp_path / "source")


def test_minari_reads_the_export_and_makes_its_environment(tmp_path, minari):
    episode = make_episode(action_repeat=4)
    write_episode(tmp_path / "source/buffer", index=0, episode=episode)
    export_minari(tmp_path / "source", dataset_id=ID, task="cartpole_swingup")
    assert set(minari.list_local_datasets()) == {ID}
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (1, 5)
    data = dataset[0]
    np.testing.assert_array_equal(data.observations, episode.observation)
    np.testing.assert_array_equal(data.actions, episode.action[1:])
    np.testing.assert_array_equal(data.rewards, episode.reward[1:])
    np.testing.assert_array_equal(data.infos["exorl"]["physics"], episode.physics)
    assert data.truncations.tolist() == [False] * 4 + [True]
    assert not data.terminations.any()
    environment = dataset.recover_environment()
    observation, _ = environment.reset(seed=0)
    assert observation.shape == dataset.observation_space.shape
    for _ in range(250):  # 1,000 control steps
        *_, truncated, _ = environment.step(environment.action_space.sample())
    assert truncated


def test_a_terminal_state_is_terminated_in_minari(tmp_path, minari):
    discount = np.array([1, 1, 1, 1, 1, 0], "f4")
    write_episode(tmp_path / "source/buffer", index=0, episode=make_episode(discount=discount))
    export_minari(tmp_path / "source", dataset_id=ID, task="cartpole_swingup")
    data = minari.load_dataset(ID)[0]
    assert data.terminations.tolist() == [False] * 4 + [True]
    assert not data.truncations.any()


def test_datasets_of_others_come_in(tmp_path, minari):
    foreign(minari, flat_spaces(), infos={"exorl": np.zeros(6), "qpos": np.zeros((6, 2))})
    read = [read_episode(file, domain="cartpole") for file in episode_files(brought_back(tmp_path))]
    assert [episode.discount[-1] for episode in read] == [1, 0]
    for seed, episode in enumerate(read):
        original: Episode = make_episode(steps=5, seed=seed)
        for name in ("observation", "action", "reward"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(original, name))
        assert episode.physics is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.full((5, 1), 1.5, "f4")}, r"episode 0: actions: .* got 1.5 in row 0 \(5"),
        ({"rewards": np.array([0, 0, 0, np.nan, 0])}, "episode 0: rewards: .* got nan in row 3"),
        ({"observations": np.zeros((5, 5))}, r"observations: .*shape \[6, 5\].* float64 \[5, 5\]"),
        ({"infos": {"exorl": {"physics": np.zeros((6, 3))}}}, r"infos/exorl/physics: .*\[6, 4\]"),
        ({"infos": {"exorl": {"reward": np.zeros((6, 4))}}}, r"infos/exorl/reward: .*\[6\]"),
        ({"infos": {"exorl": {"physics": ["a"] * 6}}}, "infos/exorl/physics: must be numbers"),
    ],
)
def test_bad_episodes_are_named_and_leave_nothing(tmp_path, minari, changes, message):
    foreign(minari, flat_spaces(), **changes)
    with pytest.raises(InputError, match=message):
        brought_back(tmp_path)
    assert os.listdir(tmp_path / "back/cartpole") == []


def test_datasets_that_exorls_format_cannot_hold_are_refused(tmp_path, minari):
    foreign(minari, flat_spaces())
    with pytest.raises(InputError, match="give --domain cartpole if they are of it; got 5 and 1"):
        brought_back(tmp_path, "walker")


def test_actions_in_other_units_are_refused(tmp_path, minari):
    foreign(minari, flat_spaces(-0.5, 0.5))
    with pytest.raises(InputError, match=r"scale them .* got \[-0.5\] to \[0.5\]"):
        brought_back(tmp_path)


def test_observations_in_parts_are_refused(tmp_path, minari):
    from gymnasium.spaces import Dict

    observations, actions = flat_spaces()
    parts = {"goal": np.zeros((6, 5))}
    foreign(minari, (Dict({"goal": observations}), actions), observations=parts)
    with pytest.raises(InputError, match=r"must be flat arrays .* got Dict"):
        brought_back(tmp_path)


def test_no_code_named_in_a_dataset_runs(tmp_path, minari):
    foreign(minari, flat_spaces())
    path = tmp_path / "minari" / ID / "data/metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"]
    metadata["env_spec"] = json.dumps({"id": "evil-v0", "entry_point": "evil:run"})
    path.write_text(json.dumps(metadata))
    with pytest.raises(InputError, match="without observation_space"):
        brought_back(tmp_path)


def test_names_that_are_taken_wrong_or_missing(tmp_path, minari):
    source = make_folder(tmp_path)
    options = {"domain": "cartpole", "expl_agent": "rnd", "out": tmp_path / "back"}
    with pytest.raises(InputError, match=f"download it with minari download {ID}"):
        import_minari(ID, **options)
    for wrong in ("cartpole", "../cartpole-v0", "a b-v0"):
        with pytest.raises(InputError, match=f"name-v<version>.* got '{wrong}'"):
            export_minari(source, dataset_id=wrong, task="cartpole_swingup")
    export_minari(source, dataset_id=ID, task="cartpole_swingup")
    with pytest.raises(InputError, match="is there already"):
        export_minari(source, dataset_id=ID, task="cartpole_swingup")


def test_a_failed_export_leaves_no_dataset(tmp_path, minari):
    source = make_folder(tmp_path)
    write_episode(source / "buffer", index=9, episode=make_episode(action_repeat=2))
    with pytest.raises(InputError, match=r"episode_000009.*must be 1 .* got 2"):
        export_minari(source, dataset_id=ID, task="cartpole_swingup")
    assert minari.list_local_datasets() == {}
    assert os.listdir(tmp_path / "minari/exorl") == []


def test_without_minari_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setitem(sys.modules, "minari", None)
    source = make_folder(tmp_path)
    with pytest.raises(InputError, match=r"pip install 'agentic-bpt\[minari\]'"):
        export_minari(source, dataset_id=ID, task="cartpole_swingup")
    with pytest.raises(InputError, match=r"pip install 'agentic-bpt\[minari\]'"):
        import_minari(ID, domain="cartpole", expl_agent="rnd", out=tmp_path)
