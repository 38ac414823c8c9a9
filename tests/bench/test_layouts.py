import numpy as np

from agentic_bpt.bench.layouts import (
    CHUNKED,
    chunked_reader,
    memory_map,
    reading_speeds,
    starts_of,
    write_chunked,
)
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store
from tests.builders import make_episode, make_store


def mixed_store(tmp_path):
    for index, steps in enumerate((3, 1500, 1, 700)):
        episode = make_episode(steps=steps, seed=index)
        write_episode(tmp_path / "rnd/buffer", index=index, episode=episode)
    return make_store(tmp_path, source=tmp_path / "rnd", seed=0)


def test_every_layout_gives_the_same_rows(tmp_path):
    path = mixed_store(tmp_path)
    with Store.open(path) as store:
        starts = starts_of(store, 3)
        expected = [store.trajectory(episode) for episode in range(3)]
    openers = [memory_map(path, starts)]
    for number, packing in enumerate(CHUNKED.values()):
        other = tmp_path / f"{number}.h5"
        write_chunked(other, path, starts, packing)
        openers.append(chunked_reader(other, starts))
    for opened in openers:
        with opened as read:
            for episode, trajectory in enumerate(expected):
                observations_RO, actions_TA, rewards_T = read(episode)
                np.testing.assert_array_equal(observations_RO[:-1], trajectory.observations)
                np.testing.assert_array_equal(observations_RO[-1], trajectory.final_observation)
                np.testing.assert_array_equal(actions_TA, trajectory.actions)
                np.testing.assert_array_equal(rewards_T, trajectory.rewards)


def test_every_layout_is_measured_beside_the_memory_map(tmp_path):
    speeds = reading_speeds(mixed_store(tmp_path), tmp_path, episodes=4)
    assert list(speeds) == ["numpy.memmap", "contiguous (Store)", *CHUNKED]
    assert all(speed > 0 for states in speeds.values() for speed in states.values())
