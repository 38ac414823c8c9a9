"""Random actions: uniform, of the right shape, and a function of seed and episode."""

import numpy as np

from agentic_bpt.exploration.uniform import UniformExplorer


def actions(seed: int, episode: int) -> np.ndarray:
    explorer = UniformExplorer(seed=seed, episode_steps=500, action_width=2)
    explorer.start_episode(episode)
    return np.array([explorer.act(np.zeros(3)) for _ in range(500)])


def test_actions_are_uniform_and_repeatable():
    first = actions(seed=0, episode=4)
    assert first.dtype == np.float32
    assert abs(first.mean(0)).max() < 0.1
    np.testing.assert_allclose(np.quantile(first, [0.1, 0.9]), [-0.8, 0.8], atol=0.08)
    np.testing.assert_array_equal(first, actions(seed=0, episode=4))
    assert (first != actions(seed=0, episode=5)).all()
    assert (first != actions(seed=1, episode=4)).all()
