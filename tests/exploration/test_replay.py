"""Windows of the replay against a loop by hand; the ring; building it again."""

import numpy as np
import pytest

from agentic_bpt.exploration.replay import Experience, Replay

STEPS = 6


def episode(number: int) -> Experience:
    """Make observations that say where they are from: 100 x episode + t."""
    t = np.arange(STEPS + 1)
    return Experience(
        observations=(100 * number + t)[:, None].astype(np.float32),
        actions=(100 * number + t[:-1])[:, None].astype(np.float32),
        rewards=(number + 2.0 ** t[:-1]).astype(np.float32),
    )


def replay(capacity_steps: int) -> Replay:
    return Replay(
        episode_steps=STEPS,
        observation_width=1,
        action_width=1,
        capacity_steps=capacity_steps,
        return_steps=3,
        discount=0.5,
    )


def test_windows_are_those_of_a_loop_and_never_leave_their_episode():
    memory = replay(1000)
    for number in range(1, 4):
        memory.add(episode(number))
    windows = memory.sample(np.random.default_rng(0), (5, 200))
    seen = set()
    for start, action, pay, end in zip(*(part.reshape(-1) for part in windows), strict=True):
        number, t = divmod(int(start), 100)
        rewards = episode(number).rewards
        assert action == start
        assert end == start + 3
        assert pay == rewards[t] + 0.5 * rewards[t + 1] + 0.25 * rewards[t + 2]
        seen.add((number, t))
    assert seen == {(number, t) for number in (1, 2, 3) for t in range(4)}


def test_the_oldest_episodes_make_room():
    memory = replay(capacity_steps=3 * STEPS + 1)
    for number in range(1, 12):
        memory.add(episode(number))
    assert len(memory) == 3
    windows = memory.sample(np.random.default_rng(0), (300,))
    assert set(windows.observations[:, 0] // 100) == {9, 10, 11}


def test_built_again_from_the_newest_episodes_it_gives_the_same_windows():
    memory, again = replay(4 * STEPS), replay(4 * STEPS)
    for number in range(1, 11):
        memory.add(episode(number))
    again.skip(6)
    for number in range(7, 11):
        again.add(episode(number))
    draws = [part.sample(np.random.default_rng(5), (50,)) for part in (memory, again)]
    for one, other in zip(*draws, strict=True):
        np.testing.assert_array_equal(one, other)


def test_returns_longer_than_an_episode_are_refused():
    with pytest.raises(ValueError, match="at most the episode's 2, got 3"):
        Replay(
            episode_steps=2,
            observation_width=1,
            action_width=1,
            capacity_steps=10,
            return_steps=3,
            discount=0.9,
        )
