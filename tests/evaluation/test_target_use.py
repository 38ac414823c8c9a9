"""Targets are drawn as training draws them; slopes and shares are those that were planted."""

import numpy as np
import pytest

from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.target_use import chain_targets, describe_evaluation, place_target

RETURNS = np.random.default_rng(0).uniform(0, 100, 12).round(3)


class Episodes:
    """An episode of each return, in three steps."""

    def trajectory(self, episode: int) -> Trajectory:
        rewards = np.full(3, RETURNS[episode] / 3, np.float32)
        return Trajectory(np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32), rewards, 0)


@pytest.mark.parametrize("sampling", ["uniform", "spread"])
def test_targets_are_those_of_the_chains_that_training_draws(sampling):
    config = ChainConfig(trajectories=4, sampling=sampling)
    options = {"returns": RETURNS, "longest": 3, "config": config, "batch": 40, "seed": 5}
    real = ChainSampler(Episodes(), np.arange(12), **options).batch(0).returns_to_go_BL[:, 0]
    targets = chain_targets(RETURNS, config=config, chains=40, seed=5)
    assert targets == pytest.approx(real, rel=1e-5)
    assert len(set(targets.round(2))) > 3


def test_a_target_is_placed_among_those_of_training():
    placed = place_target(100.0, np.array([10.0, 94.0, 95.0, 100.0, 105.0, 106.0, 200.0, 300.0]))
    assert placed.quantile == 4 / 8
    assert placed.near == 3 / 8


def describe(targets, returns_KCN, best_return):
    return describe_evaluation(
        file="evaluation-x.json",
        steps=3,
        targets_K=targets,
        returns_KCN=np.asarray(returns_KCN, float),
        random_CN=np.array([[1.0, 3.0]]),
        best_return=best_return,
        completion="reached",
    )


def test_the_slope_is_the_planted_one_and_targets_above_the_data_do_not_count():
    targets = [100.0, 50.0, 75.0, 125.0]
    scatter_C = np.array([-5.0, 0.0, 5.0])
    # 0.3 for each 1 asked for on the mean, 0.2 to 0.4 by chain; and nothing more above the data.
    slopes_C = 0.3 + scatter_C / 50
    returns_KC = 10 + np.minimum(targets, 100)[:, None] * slopes_C
    use = describe(targets, np.repeat(returns_KC[:, :, None], 2, axis=2), best_return=100.0)
    assert use.target == 100.0
    assert use.target_K == sorted(targets)
    assert use.return_K == pytest.approx([25, 32.5, 40, 40])
    assert use.slope == pytest.approx(0.3)
    assert use.slope_low is not None
    assert use.slope_high is not None
    assert 0.2 <= use.slope_low < 0.3 < use.slope_high <= 0.4 + 1e-9
    above_all = describe(targets, np.repeat(returns_KC[:, :, None], 2, axis=2), best_return=60.0)
    # With one target that the data knows all count: 656.25 over 3,125, by hand.
    assert above_all.slope == pytest.approx(0.21)


def test_the_condition_of_the_table_is_the_first():
    use = describe([100.0, 50.0], [[[90, 100], [99, 120]], [[0, 0], [0, 0]]], best_return=100.0)
    assert use.return_N == [94.5, 110.0]
    assert use.reached_N == [0.0, 1.0]
    assert use.random == 2.0


def test_an_agent_without_a_target_has_returns_only():
    use = describe(None, [[[1, 2], [3, 4]]], best_return=100.0)
    assert use.return_N == [2.0, 3.0]
    assert use.target is use.slope is use.reached_N is None
