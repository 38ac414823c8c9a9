"""The four protocols, the interval against slow obvious oracles, and the scores."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from agentic_bpt.evaluation.protocol import (
    PROTOCOLS,
    along_the_chain,
    bootstrap_interval,
    interquartile_mean,
    normalized_score,
    reduce_chains,
    summarize,
)

# Two trainings, two chains, three trajectories: all four protocols give different numbers.
RETURNS_SCN = np.array([[[1.0, 9.0, 5.0], [3.0, 2.0, 4.0]], [[10.0, 30.0, 20.0], [0.0, 6.0, 6.0]]])


def exhaustive_means(values_SC: np.ndarray) -> np.ndarray:
    """List the mean of every equally likely draw: of seeds, and of chains for all of them."""
    S, C = values_SC.shape
    means = []
    for seeds in itertools.product(range(S), repeat=S):
        for chains in itertools.product(range(C), repeat=C):
            means.append(np.mean([values_SC[s, c] for s in seeds for c in chains]))
    return np.array(means)


def test_each_protocol_is_its_own_number_averaged_over_seeds_and_chains():
    summary = summarize(RETURNS_SCN)
    assert tuple(summary) == PROTOCOLS
    assert summary["first"].value == (1 + 3 + 10 + 0) / 4
    assert summary["last"].value == (5 + 4 + 20 + 6) / 4
    assert summary["mean"].value == (5 + 3 + 20 + 4) / 4
    assert summary["max"].value == (9 + 4 + 30 + 6) / 4


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (1, 4), (4, 1)])
def test_interval_is_that_of_all_possible_draws(shape: tuple[int, int]):
    values_SC = np.random.default_rng(3).normal(100, 20, shape) + 60 * np.arange(shape[0])[:, None]
    every_mean = exhaustive_means(values_SC)
    low, high = np.quantile(every_mean, [0.1, 0.9])
    interval = bootstrap_interval(values_SC, resamples=40_000, confidence=0.8)
    # What is left is the chance of 40,000 draws: about 1 % of the spread.
    tolerance = 0.03 * every_mean.std()
    assert interval.value == pytest.approx(values_SC.mean())
    assert interval.low == pytest.approx(low, abs=tolerance)
    assert interval.high == pytest.approx(high, abs=tolerance)


def test_interval_of_interquartile_mean_is_that_of_a_plain_loop():
    values_SC = np.random.default_rng(5).gamma(2.0, 50.0, (4, 6))
    generator = np.random.default_rng(11)
    statistics = []
    for _ in range(4000):
        chains = generator.choice(6, size=6)
        drawn = np.concatenate([values_SC[s, chains] for s in generator.choice(4, size=4)])
        statistics.append(stats.trim_mean(drawn, 0.25))
    interval = bootstrap_interval(values_SC, interquartile_mean, resamples=8000)
    tolerance = 0.12 * float(np.std(statistics))
    assert interval.value == pytest.approx(stats.trim_mean(values_SC.ravel(), 0.25))
    assert interval.low == pytest.approx(np.quantile(statistics, 0.025), abs=tolerance)
    assert interval.high == pytest.approx(np.quantile(statistics, 0.975), abs=tolerance)


def test_interval_over_seeds_is_wider_than_over_chains_of_one_pool():
    apart_SC = np.array([[0.0, 1.0, 2.0, 1.0]] * 2 + [[100.0, 101.0, 99.0, 100.0]] * 2)
    over_seeds = bootstrap_interval(apart_SC)
    as_one_seed = bootstrap_interval(apart_SC.reshape(1, -1))
    assert over_seeds.low is not None
    assert as_one_seed.low is not None
    assert over_seeds.low < as_one_seed.low - 5


def test_chains_are_drawn_within_their_groups():
    values_SC = np.array([[0.0, 100.0, 2.0, 102.0]])
    grouped = bootstrap_interval(values_SC, groups_C=["a", "b", "a", "b"])
    assert (grouped.value, grouped.low, grouped.high) == (51, 50, 52)
    alone = bootstrap_interval(values_SC, groups_C="abcd")
    assert (alone.low, alone.high) == (51, 51)


def test_chains_that_begin_alike_in_every_seed_are_not_counted_as_many():
    hard_or_easy_C = np.random.default_rng(1).normal(0, 10, 16)
    one, three = (bootstrap_interval(np.tile(hard_or_easy_C, (S, 1))) for S in (1, 3))
    assert one.high is not None
    assert three.high - three.low == pytest.approx(one.high - one.low, rel=0.1)


def test_one_number_has_no_interval():
    assert summarize(np.array([[[7.0, 8.0]]]))["last"] == (8.0, None, None)


def test_same_seed_same_interval_other_seed_other_interval():
    values_SC = np.random.default_rng(0).normal(size=(3, 5))
    assert bootstrap_interval(values_SC) == bootstrap_interval(values_SC)
    assert bootstrap_interval(values_SC) != bootstrap_interval(values_SC, seed=1)


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 30])
def test_interquartile_mean_is_scipys(count: int):
    values = np.random.default_rng(count).normal(size=count)
    assert float(interquartile_mean(values)) == pytest.approx(stats.trim_mean(values, 0.25))
    rows = np.random.default_rng(count).normal(size=(3, count))
    np.testing.assert_allclose(
        interquartile_mean(rows, axis=-1), stats.trim_mean(rows, 0.25, axis=-1)
    )


def test_along_the_chain_is_one_interval_a_trajectory():
    intervals = along_the_chain(RETURNS_SCN)
    assert [interval.value for interval in intervals] == [14 / 4, 47 / 4, 35 / 4]
    assert intervals[-1] == summarize(RETURNS_SCN)["last"]


def test_normalized_score_is_0_at_random_and_100_at_the_reference():
    assert normalized_score("walker_run", 22.6) == pytest.approx(0.0)
    assert normalized_score("walker_run", 877.0) == pytest.approx(100.0)
    assert normalized_score("jaco_reach_top_left", 130.0) == pytest.approx(100 * 119 / 239)
    assert normalized_score("quadruped_walk", 500.0) is None


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (np.zeros((2, 3)), r"\[seeds, chains, trajectories\].*got \(2, 3\)"),
        (np.zeros((1, 0, 3)), r"none empty, got \(1, 0, 3\)"),
        (np.array([[[1.0, np.nan]]]), "finite, got 1"),
    ],
)
def test_returns_that_cannot_be_summed_up_are_refused(returns: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        summarize(returns)


def test_unknown_protocol_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="first, last, mean, max, got 'median'"):
        reduce_chains(RETURNS_SCN, "median")


def test_protocol_does_not_load_jax():
    code = "import sys, agentic_bpt.evaluation.protocol; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("seeds", "covered"), [(2, 0.65), (3, 0.75)])
def test_intervals_over_few_seeds_cover_as_seldom_as_reports_say(seeds, covered):
    draws = np.random.default_rng(0)
    held = []
    for _ in range(500):  # seeds differ by 1, the chains of one by half as much; the truth is 0
        values_SC = draws.normal(size=(seeds, 1)) + draws.normal(scale=0.5, size=(seeds, 8))
        _, low, high = bootstrap_interval(values_SC, resamples=300)
        held.append(low is not None and high is not None and low <= 0 <= high)
    assert np.mean(held) == pytest.approx(covered, abs=0.05)
