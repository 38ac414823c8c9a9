"""Rollouts in dm_control: n trajectories in a row in each of C chains, nothing averaged."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.environments.tasks import Environment, Step
from agentic_bpt.evaluation.policy import Policy


class Rollouts(NamedTuple):
    """What came out, and what it cost."""

    returns_CN: np.ndarray
    """float64, return of each trajectory of each chain."""
    model_seconds: float
    physics_seconds: float


def episode_seed(seed: int, chain: int, trajectory: int) -> int:
    """Give the seed of one episode: the same for every method, whatever else is evaluated."""
    return int(np.random.SeedSequence([seed, chain, trajectory]).generate_state(1)[0])


def step_each(environments: Sequence[Environment], actions_CA: np.ndarray) -> list[Step]:
    """Step environments one after another."""
    return [
        environment.step(action_A)
        for environment, action_A in zip(environments, actions_CA, strict=True)
    ]


def rollout(
    policy: Policy,
    task: str,
    *,
    chains_C: np.ndarray,
    trajectories: int,
    seed: int,
    action_repeat: int = 1,
    environments: Sequence[Environment] | None = None,
    step_all: Callable[[Any, np.ndarray], list[Step]] = step_each,
    advance: Callable[[int], None] = lambda steps: None,
    watch: Callable[[Sequence[Environment], int, np.ndarray], None] = lambda *seen: None,
) -> Rollouts:
    """Act `trajectories` episodes in a row in every chain; the policy has been started.

    Args:
        policy: acts in all chains at once.
        task: full name of the task.
        chains_C: number of each chain, which with `seed` fixes its episodes.
        trajectories: episodes in a chain, n.
        seed: of the evaluation.
        action_repeat: control steps an action is held.
        environments: where each chain acts, with that action repeat; None: in the task itself.
        step_all: steps the environments with actions [C, A].
        advance: told after every step how many environment steps were made.
        watch: shown after every step the environments, the number of the trajectory and the
            rewards of the step, float64 [C].
    """
    C = len(chains_C)
    if environments is None:
        environments = [Environment(task, action_repeat=action_repeat) for _ in range(C)]
    returns_CN = np.zeros((C, trajectories))
    model_seconds = physics_seconds = 0.0
    for trajectory in range(trajectories):
        policy.begin_trajectory()
        observations_CO = np.stack(
            [
                environment.reset(episode_seed(seed, int(chain), trajectory))
                for environment, chain in zip(environments, chains_C, strict=True)
            ]
        )
        last = False
        while not last:
            start = time.perf_counter()
            actions_CA = policy.act(observations_CO)
            model_seconds += time.perf_counter() - start
            start = time.perf_counter()
            steps = step_all(environments, actions_CA)
            physics_seconds += time.perf_counter() - start
            rewards_C = np.array([step.reward for step in steps])
            observations_CO = np.stack([step.observation for step in steps])
            returns_CN[:, trajectory] += rewards_C
            last = steps[0].last
            policy.observe(rewards_C, last=last)
            watch(environments, trajectory, rewards_C)
            advance(C * action_repeat)
    return Rollouts(returns_CN, model_seconds, physics_seconds)
