"""Batches: a function of (seed, step), no replacement, N included, padding that counts nothing."""

import numpy as np
import pytest

from agentic_bpt.datasets.sampler import (
    ChainConfig,
    ChainSampler,
    TransitionSampler,
    best_episodes,
    spaced_episodes,
)
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.errors import InputError

EPISODES = 12


class Source:
    """Episode e has 2 + e % 3 steps, and e in every number."""

    def trajectory(self, episode: int) -> Trajectory:
        steps = 2 + episode % 3
        column = np.full((steps, 1), episode, np.float32)
        return Trajectory(column, column / 100, column[:, 0], column[0])


def sampler(trajectories=4, batch=64, seed=0, **options) -> ChainSampler:
    config = ChainConfig(trajectories=trajectories, **options)
    returns = [Source().trajectory(episode).total_reward for episode in range(EPISODES)]
    return ChainSampler(
        Source(),
        range(EPISODES),
        returns=np.array(returns),
        longest=4,
        config=config,
        batch=batch,
        seed=seed,
    )


def counts(batch) -> np.ndarray:
    return np.where(batch.valid_BL, batch.trajectories_BL, 0).max(axis=1) + 1


def test_a_batch_is_a_function_of_seed_and_step():
    one, two = sampler().batch(7), sampler().batch(7)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one.rewards_BL, sampler().batch(8).rewards_BL)
    assert not np.array_equal(one.rewards_BL, sampler(seed=1).batch(7).rewards_BL)


def test_uniform_counts_reach_the_largest_and_fixed_ones_are_it():
    seen = counts(sampler(batch=200).batch(0))
    assert set(seen) == {1, 2, 3, 4}
    assert set(counts(sampler(trajectory_count="fixed").batch(0))) == {4}


def test_a_chain_has_different_trajectories_in_ascending_order():
    batch = sampler(trajectories=EPISODES, trajectory_count="fixed", batch=8).batch(0)
    for rewards_L, valid_L, trajectories_L in zip(
        batch.rewards_BL, batch.valid_BL, batch.trajectories_BL, strict=True
    ):
        assert batch.rewards_BL.shape[1] == 4 * EPISODES
        totals = [
            rewards_L[valid_L & (trajectories_L == number)].sum() for number in range(EPISODES)
        ]
        assert totals == sorted(totals)
        assert set(rewards_L[valid_L]) == set(range(EPISODES))


def test_spread_sampling_draws_returns_evenly_and_no_episode_twice():
    returns = np.array([0.0] * 50 + [10.0])  # one good episode among many bad ones
    config = ChainConfig(trajectories=2, trajectory_count="fixed", sampling="spread")
    chains = ChainSampler(
        Source(), range(51), returns=returns, longest=4, config=config, batch=400, seed=0
    )
    generator = np.random.default_rng(0)
    chosen = [chains._choose(generator, 2, returns) for _ in range(400)]
    assert all(len(set(episodes)) == 2 for episodes in chosen)
    with_best = np.mean([50 in episodes for episodes in chosen])
    assert 0.65 < with_best < 0.85  # 1 - 1/4; uniform sampling would give 2/51
    assert len(set(np.concatenate(chosen))) == 51  # of equal ones, not always the first


def test_a_target_that_is_reached_before_anything_is_done_is_refused():
    with pytest.raises(InputError, match=r"a return is -3: .* use --completion final"):
        ChainSampler(
            Source(),
            range(4),
            returns=np.array([1.0, -3.0, 0.0, 2.0]),
            longest=4,
            config=ChainConfig(trajectories=2),
            batch=1,
            seed=0,
        )


class Negated(Source):
    """The same episodes in another task: every reward is the opposite."""

    def trajectory(self, episode: int) -> Trajectory:
        trajectory = super().trajectory(episode)
        return trajectory._replace(rewards=-trajectory.rewards)


def test_chains_of_several_tasks_are_spread_over_the_returns_of_their_own():
    returns = np.zeros((2, EPISODES))
    returns[0, 3] = returns[1, 7] = 10.0  # the good episode of each task
    config = ChainConfig(trajectories=2, trajectory_count="fixed", sampling="spread")
    chains = ChainSampler(
        [Source(), Negated()],
        range(EPISODES),
        returns=returns,
        longest=4,
        config=config,
        batch=400,
        seed=0,
    )
    rewards_BL = chains.batch(0).rewards_BL
    negative_B = (rewards_BL < 0).any(axis=1)
    assert not (negative_B & (rewards_BL > 0).any(axis=1)).any()  # one task a chain
    assert 0.4 < negative_B.mean() < 0.6
    for sign, good, chosen_B in ((1, 3, ~negative_B), (-1, 7, negative_B)):
        with_good = (rewards_BL[chosen_B] == sign * good).any(axis=1).mean()
        assert 0.65 < with_good < 0.85  # 1 - 1/4


@pytest.mark.parametrize("excess", [0.0, 0.5])
def test_targets_lie_evenly_above_what_chains_reach(excess):
    options = {"trajectories": 1, "trajectory_count": "fixed"}
    batch = sampler(batch=400, target_excess=excess, **options).batch(0)
    reached_B = batch.rewards_BL.sum(axis=1)
    largest = max(Source().trajectory(episode).total_reward for episode in range(EPISODES))
    above_B = (batch.returns_to_go_BL[:, 0] - reached_B) / largest
    assert above_B.min() == pytest.approx(0, abs=0.01)
    assert above_B.max() == pytest.approx(excess, abs=0.01)
    assert above_B.mean() == pytest.approx(excess / 2, abs=0.02)
    assert batch.completions_BL.any(axis=1).mean() == (excess == 0)


def test_padding_is_at_the_end_and_carries_no_loss():
    batch = sampler().batch(0)
    assert (np.diff(batch.valid_BL.astype(int), axis=1) <= 0).all()
    assert (batch.loss_BL == batch.valid_BL).all()
    assert not batch.valid_BL.all()


def test_loss_on_the_last_trajectory_only():
    batch = sampler(loss="last").batch(0)
    for loss_L, valid_L, trajectories_L in zip(
        batch.loss_BL, batch.valid_BL, batch.trajectories_BL, strict=True
    ):
        last = trajectories_L[valid_L].max()
        assert (loss_L == (valid_L & (trajectories_L == last))).all()
        assert loss_L.any()


def test_too_few_episodes_for_a_chain():
    with pytest.raises(InputError, match="needs as many training episodes, got 12"):
        sampler(trajectories=13)


def test_best_episodes_are_chosen_by_return_among_those_given():
    returns = np.array([5.0, 9.0, 1.0, 7.0, 8.0])
    assert best_episodes(returns, [0, 2, 3, 4], fraction=0.5).tolist() == [4, 3]
    assert best_episodes(returns, [0, 2], fraction=0.1).tolist() == [0]


def test_transitions_come_from_the_given_episodes_with_their_own_actions():
    batch = TransitionSampler(Source(), [3, 5], batch=50, seed=0).batch(0)
    assert set(batch.observations_BO[:, 0]) == {3, 5}
    assert np.allclose(batch.actions_BA, batch.observations_BO / 100)


class Counted:
    """Episode e has e + 1 decisions; an observation names its episode and decision."""

    def trajectory(self, episode: int) -> Trajectory:
        t = np.arange(episode + 2, dtype=np.float32)
        observations = np.stack([np.full_like(t, episode), t], axis=1)
        return Trajectory(observations[:-1], t[:-1, None] / 100, t[:-1] + episode, observations[-1])


def test_a_sum_of_rewards_never_crosses_the_end_of_its_episode():
    drawn = TransitionSampler(
        Counted(), range(6), batch=500, seed=0, return_steps=3, discount=0.5
    ).batch(0)
    episode_B, t_B = drawn.observations_BO.T
    assert set(episode_B) == {2, 3, 4, 5}  # the others have fewer than 3 rewards
    assert all(set(t_B[episode_B == e]) == set(range(e - 1)) for e in (2, 3, 4, 5))
    assert np.allclose(drawn.actions_BA[:, 0], t_B / 100)
    assert np.array_equal(drawn.next_observations_BO, np.stack([episode_B, t_B + 3], axis=1))
    first_B = episode_B + t_B
    expected_B = first_B + 0.5 * (first_B + 1) + 0.25 * (first_B + 2)
    assert drawn.rewards_B.dtype == np.float32
    assert np.allclose(drawn.rewards_B, expected_B)


def test_the_last_decision_leads_to_the_final_observation():
    drawn = TransitionSampler(Counted(), [1, 4], batch=200, seed=0).batch(3)
    last_B = drawn.observations_BO[:, 1] == drawn.observations_BO[:, 0]
    assert last_B.any()
    assert np.array_equal(
        drawn.next_observations_BO[last_B, 1], drawn.observations_BO[last_B, 0] + 1
    )
    again = TransitionSampler(Counted(), [1, 4], batch=200, seed=0).batch(3)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))


def test_no_episode_as_long_as_the_sum_is_refused():
    with pytest.raises(InputError, match="a sum of 4 rewards needs an episode of as many"):
        TransitionSampler(Counted(), range(3), batch=5, seed=0, return_steps=4)


def test_spaced_episodes_have_even_returns_and_the_best_and_are_different():
    returns = np.array([0.0] * 8 + [4.0, 90.0, 51.0, 100.0])
    episodes = [11, 10, 9, 8, 0, 1]  # returns 100, 51, 90, 4, 0, 0
    assert list(spaced_episodes(returns, episodes, count=1)) == [11]
    assert list(spaced_episodes(returns, episodes, count=2)) == [10, 11]
    every = spaced_episodes(returns, episodes, count=6)
    assert set(every) == set(episodes)
    assert list(returns[every]) == sorted(returns[every])  # worst to best
