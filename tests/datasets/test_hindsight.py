"""Chain of hindsight on a chain worked out by hand."""

import numpy as np
import pytest

from agentic_bpt.datasets.hindsight import chain_of_hindsight, is_complete, pack
from agentic_bpt.datasets.trajectory import Trajectory


def trajectory(*rewards: float) -> Trajectory:
    """One-dimensional; each observation and action is told from others by its first reward."""
    steps = len(rewards)
    marks = (rewards[0] + np.arange(steps)[:, None]).astype(np.float32)
    return Trajectory(marks, marks / 10, np.array(rewards, np.float32), np.zeros(1, np.float32))


def test_worked_by_hand():
    worse, best = trajectory(1, 0, 1), trajectory(3, 2, 0)  # returns 2 and 5
    chain = chain_of_hindsight([best, worse])
    assert chain.rewards_L.tolist() == [1, 0, 1, 3, 2, 0]  # ascending
    assert chain.observations_LO[:, 0].tolist() == [1, 2, 3, 3, 4, 5]
    assert chain.returns_to_go_L.tolist() == [5, 4, 4, 5, 2, 0]  # both aim at 5
    assert chain.completions_L.tolist() == [0, 0, 0, 0, 1, 1]  # 3 + 2 reaches 5
    assert chain.timesteps_L.tolist() == [0, 1, 2, 0, 1, 2]
    assert chain.trajectories_L.tolist() == [0, 0, 0, 1, 1, 1]


def test_final_completion_marks_the_last_step_of_what_reached_the_target():
    chain = chain_of_hindsight([trajectory(3, 2, 0), trajectory(1, 0)], completion="final")
    assert chain.completions_L.tolist() == [0, 0, 0, 0, 1]


def test_a_target_once_reached_stays_reached():
    chain = chain_of_hindsight([trajectory(5, 3, -4, 1)], target_return=8.0)
    assert chain.completions_L.tolist() == [0, 1, 1, 1]
    final = chain_of_hindsight([trajectory(5, 4, -4)], target_return=8.0, completion="final")
    assert final.completions_L.tolist() == [0, 0, 0]


def test_packing_keeps_the_order():
    chain = pack([trajectory(3, 2), trajectory(1)], target_return=9.0, completion="reached")
    assert chain.rewards_L.tolist() == [3, 2, 1]
    assert chain.returns_to_go_L.tolist() == [9, 6, 9]
    assert chain.trajectories_L.tolist() == [0, 0, 1]


def test_a_prompt_can_be_aimed_at_another_target():
    chain = chain_of_hindsight([trajectory(1, 1)], target_return=10.0)
    assert chain.returns_to_go_L.tolist() == [10, 9]
    assert chain.completions_L.tolist() == [0, 0]


def test_float32_rewards_reach_the_target_that_they_add_up_to():
    rewards = np.full(1000, 0.1, np.float32)
    target = Trajectory(np.zeros((1000, 1)), np.zeros((1000, 1)), rewards, np.zeros(1)).total_reward
    received = np.float64(0)
    for reward in rewards:  # as an agent adds them up, one by one
        received += float(reward)
    assert is_complete(received, np.float64(target), np.True_, completion="reached")
    short = np.float64(target - 0.1)
    assert not is_complete(short, np.float64(target), np.True_, completion="reached")


def test_refusals():
    with pytest.raises(ValueError, match="at least one trajectory"):
        chain_of_hindsight([])
    with pytest.raises(ValueError, match="completion must be one of"):
        chain_of_hindsight([trajectory(1)], completion="never")
