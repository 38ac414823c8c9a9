"""Random actions: uniform, of the right shape, and a function of seed and episode."""

import numpy as np

from agentic_bpt.exploration.uniform import UniformExplorer


def actions(seed: int, episode: int, environments: int = 1) -> np.ndarray:
    """Give the actions [T, N, A] of the round that starts with an episode."""
    sizes = {"episode_steps": 500, "action_width": 2, "environments": environments}
    explorer = UniformExplorer(seed=seed, **sizes)
    explorer.start_round(episode)
    return np.array([explorer.act(np.zeros((environments, 3))) for _ in range(500)])


def test_actions_are_uniform_and_repeatable():
    first = actions(seed=0, episode=4)
    assert first.dtype == np.float32
    assert abs(first.mean((0, 1))).max() < 0.1
    np.testing.assert_allclose(np.quantile(first, [0.1, 0.9]), [-0.8, 0.8], atol=0.08)
    np.testing.assert_array_equal(first, actions(seed=0, episode=4))
    assert (first != actions(seed=0, episode=5)).all()
    assert (first != actions(seed=1, episode=4)).all()


def test_an_episodes_actions_do_not_depend_on_its_round():
    together = actions(seed=0, episode=4, environments=3)
    for place in range(3):
        np.testing.assert_array_equal(together[:, place], actions(seed=0, episode=4 + place)[:, 0])
