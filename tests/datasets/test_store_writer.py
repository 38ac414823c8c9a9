import os
import resource

import numpy as np
import pytest

from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store
from agentic_bpt.datasets.store_writer import StoreWriter
from tests.builders import make_episode, make_folder, make_store


def test_statistics_are_those_of_training_episodes_alone(tmp_path):
    path = make_store(tmp_path, episodes=12, validation_fraction=0.25)
    with Store.open(path) as store:
        assert len(store.validation) == 3
        trajectories = [store.trajectory(episode) for episode in store.training]
        observations_RO = np.concatenate([t.observations for t in trajectories]).astype(np.float64)
        np.testing.assert_allclose(store.observation_mean, observations_RO.mean(0), rtol=1e-6)
        np.testing.assert_allclose(store.observation_std, observations_RO.std(0), rtol=1e-6)
        returns = [trajectory.total_reward for trajectory in trajectories]
        assert store.best_return == store.return_scale == max(returns)


def test_statistics_do_not_cancel_far_from_zero(tmp_path):
    folder = tmp_path / "rnd"
    for index in range(4):
        episode = make_episode(seed=index)
        far = episode._replace(observation=(episode.observation + 10_000).astype(np.float32))
        write_episode(folder / "buffer", index=index, episode=far)
    with Store.open(make_store(tmp_path, source=folder)) as store:
        kept = np.concatenate([store.trajectory(e).observations for e in store.training])
        # The sum of squares minus the square of the sum would lose all but 1e-3 of this.
        np.testing.assert_allclose(store.observation_std, kept.astype("f8").std(0), rtol=1e-6)


def test_an_observation_that_does_not_vary_is_only_centred(tmp_path):
    folder = tmp_path / "rnd"
    for index in range(3):
        episode = make_episode(seed=index)
        episode.observation[:, 2] = 7
        write_episode(folder / "buffer", index=index, episode=episode)
    with Store.open(make_store(tmp_path, source=folder)) as store:
        assert (store.observation_mean[2], store.observation_std[2]) == (7, 1)
        assert (store.observation_std[[0, 1, 3, 4]] != 1).all()


@pytest.mark.parametrize(
    ("rewards", "scale", "best"), [(-2.0, 10.0, -10.0), (0.0, 1.0, 0.0), (0.5, 2.5, 2.5)]
)
def test_the_return_scale_is_never_0(tmp_path, rewards, scale, best):
    episode = make_episode(reward=np.full(6, rewards, np.float32))
    write_episode(tmp_path / "rnd/buffer", index=0, episode=episode)
    with Store.open(make_store(tmp_path, source=tmp_path / "rnd")) as store:
        assert (store.return_scale, store.best_return) == (scale, best)


@pytest.mark.parametrize(
    ("episodes", "fraction", "expected"),
    [(10, 0.1, 1), (10, 0.25, 2), (10, 0.0, 0), (3, 0.01, 1), (1, 0.5, 0), (2, 0.99, 1)],
)
def test_the_split_leaves_something_to_train_on(tmp_path, episodes, fraction, expected):
    path = make_store(tmp_path, episodes=episodes, validation_fraction=fraction)
    with Store.open(path) as store:
        assert len(store.validation) == expected
        both = np.concatenate([store.training, store.validation])
        assert sorted(both) == list(range(episodes))


def test_the_split_is_decided_by_the_seed(tmp_path):
    folder = make_folder(tmp_path, episodes=20)
    splits = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        path = make_store(tmp_path, source=folder, seed=seed, out=tmp_path / name)
        with Store.open(path) as store:
            splits[name] = (store.validation.tolist(), store.data_hash)
    assert splits["a"] == splits["b"]
    assert splits["a"][0] != splits["c"][0]
    assert splits["a"][1] != splits["c"][1]


def test_rows_that_no_file_can_hold_are_refused_before_the_first(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 2**20, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            StoreWriter(
                tmp_path / "a.h5",
                names=["a"] * 30,
                lengths=[1000] * 30,
                observation_width=24,
                action_width=6,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_the_system_writes_in_part_is_written_on(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    with Store.open(make_store(tmp_path)) as store:
        store.verify()
        expected = make_episode(seed=2).observation[:-1]
        np.testing.assert_array_equal(store.trajectory(2).observations, expected)
