"""Errors, bounds and units against numbers worked out by hand; the baselines against an oracle."""

import numpy as np
import pytest

from agentic_bpt.datasets.hindsight import chain_of_hindsight
from agentic_bpt.datasets.sampler import pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.imitation import RIDGE, Baselines, fit_baselines, measure_chains
from agentic_bpt.models.tokens import Scales

SCALES = Scales(np.array([1.0, 0.0]), np.array([2.0, 1.0]), np.float32(1), np.float32(1))


def trajectory(observations, actions, rewards) -> Trajectory:
    rows = [np.array(values, np.float32) for values in (observations, actions, rewards)]
    return Trajectory(*rows, rows[0][-1])


WORSE = trajectory([[1, 7], [11.1, 7]], [[1.0], [0.5]], [0, 1])
BETTER = trajectory([[3, 7], [-1, 7], [1, 7]], [[-1.0], [0.0], [0.5]], [1, 2, 0])


def chain_at(number: int):
    return pad_chains([chain_of_hindsight([BETTER, WORSE])], length=8, loss="last")


def measure(predict):
    baselines = Baselines(np.array([0.5]), np.array([[0.5], [0.0], [0.0]]))
    return measure_chains(
        predict, chain_at, chains=3, trajectories=2, baselines=baselines, scales=SCALES
    )


def test_errors_by_position_and_shares_are_those_worked_out_by_hand():
    found = measure(lambda batch: np.full((8, 1), 0.9999))
    gap = np.square(0.9999 - np.array([1.0, 0.5, -1.0, 0.0, 0.5]))
    assert found.agent_N == pytest.approx([gap[:2].mean(), gap[2:].mean()])
    assert found.mean_N == pytest.approx([0.25 / 2, (1.5**2 + 0.25 + 0) / 3])
    # Observation 0 in standard deviations: 0, 5.05 | 1, -1, 0; half of it, kept in [-1, 1].
    linear = [(1 + 0.25) / 2, (1.5**2 + 0.25 + 0.25) / 3]
    assert found.linear_N == pytest.approx(linear)
    assert found.at_bounds == 1.0
    assert found.data_at_bounds == pytest.approx(2 / 5)
    assert found.far_O == pytest.approx([1 / 5, 1.0])  # number 1 is always 7 deviations away
    assert found.constant == [1]


def test_completion_is_counted_by_timestep_and_by_trajectory():
    found = measure(lambda batch: np.zeros((8, 1)))
    assert found.completed_timesteps_N == pytest.approx([0, 2 / 3])
    assert found.completed_trajectories_N == [0, 1]


def test_baselines_are_ridge_regression_on_what_carries_the_loss():
    generator = np.random.default_rng(0)
    better = trajectory(generator.normal(size=(6, 2)), generator.uniform(-1, 1, (6, 1)), [1] * 6)
    batch = pad_chains([chain_of_hindsight([WORSE, better])], length=9, loss="last")
    found = fit_baselines(lambda number: batch, range(4), SCALES)
    # The oracle: least squares with rows that pull the weights, but not the constant, to zero.
    features = np.column_stack([(better.observations - [1, 0]) / [2, 1], np.ones(6)])
    pull = np.sqrt(RIDGE * 6) * np.eye(3)[:2]
    rows = np.concatenate([features, pull]), np.concatenate([better.actions, np.zeros((2, 1))])
    assert found.weights_PA == pytest.approx(np.linalg.lstsq(*rows)[0])
    assert found.mean_A == pytest.approx(better.actions.mean(axis=0))
