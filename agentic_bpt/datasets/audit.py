"""Replays stored episodes action by action, and says where the physics leaves the stored path."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import Episode, EpisodeFile, episode_files, read_episode
from agentic_bpt.datasets.listing import spread_episodes
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.environments.tasks import Environment, task_spec
from agentic_bpt.errors import InputError

DRIFT = 1e-6
"""A state drifts when one of its numbers is off by more than this times max(1, its size)."""


class Replay(NamedTuple):
    """One episode beside its replay from the first stored state."""

    name: str
    steps: int
    drift_step: int | None
    """First step whose state drifts, counted from 0; None if none does."""
    state_error: float
    """Largest error of a state, as a multiple of max(1, size)."""
    observation_error: float
    """Largest error of an observation, in the same measure; float32 rounding is 6e-8."""
    reward_error: float
    """Largest |replayed - relabelled| reward of a step; float32 rounding of actions is 3e-8."""
    stored_error: float
    """Largest |replayed - stored| reward of a step: large if the file holds another task's. Of
    several columns, that of the nearest one."""


def audit(
    source: Path,
    *,
    task: str,
    episodes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Replay]:
    """Replay episodes in a task: all, or at most so many, spread over the collection.

    Raises:
        InputError: a bad episode, one without physics, one longer than the task allows, or one that
            the simulator cannot go through.
    """
    spec = task_spec(task)
    files = episode_files(Path(source))
    if episodes is not None:
        files = spread_episodes(files, at_most=episodes)
    replays: list[Replay] = []
    for number, file in enumerate(files, start=1):
        episode = read_episode(file, domain=spec.domain)
        if episode.physics is None:
            raise InputError(f"{file}: key 'physics': is needed to replay; got no such key")
        replays.append(_replay(file, episode, episode.physics, task))
        if progress is not None:
            progress(number, len(files))
    return replays


def _replay(file: EpisodeFile, episode: Episode, physics_RP: np.ndarray, task: str) -> Replay:
    steps_TX, rewards_T = _stepped(file, episode, physics_RP[0], task)
    width = physics_RP.shape[1]
    error_T = _errors(steps_TX[:, :width], physics_RP[1:])
    drifting = np.flatnonzero(error_T > DRIFT)
    relabelled_T = relabel(episode, task=task, mode="control")
    stored_RX = episode.reward.reshape(len(episode.reward), -1)
    return Replay(
        episode.name,
        len(rewards_T),
        int(drifting[0]) if len(drifting) else None,
        float(error_T.max()),
        float(_errors(steps_TX[:, width:], episode.observation[1:]).max()),
        float(np.abs(rewards_T - relabelled_T).max()),
        float(np.abs(rewards_T[:, None] - stored_RX[1:]).max(axis=0).min()),
    )


def _stepped(
    file: EpisodeFile, episode: Episode, start_P: np.ndarray, task: str
) -> tuple[np.ndarray, np.ndarray]:
    """Take the stored actions; give state and observation, [T, P + O], and reward, [T]."""
    # Loads mujoco, which a look at this module does not need.
    from dm_control.rl.control import PhysicsError

    environment = Environment(task, action_repeat=episode.action_repeat)
    if file.length > environment.episode_steps:
        raise InputError(
            f"{file}: an episode of {task} has at most {environment.episode_steps} steps; leave it "
            f"out; got {file.length}"
        )
    steps, rewards = [], []
    try:
        environment.reset_to(start_P)
        for action_A in episode.action[1:]:
            step = environment.step(action_A)
            steps.append(np.concatenate([environment.physics_state(), step.observation]))
            rewards.append(step.reward)
    except PhysicsError as error:
        raise InputError(
            f"{file}: key 'physics': the simulator cannot go on after step {len(rewards)} of the "
            f"replay; leave it out; got {error}"
        ) from error
    return np.array(steps), np.array(rewards)


def _errors(got_TX: np.ndarray, expected_TX: np.ndarray) -> np.ndarray:
    """Give the largest error of each row, as a multiple of max(1, size)."""
    return (np.abs(got_TX - expected_TX) / np.maximum(1, np.abs(expected_TX))).max(axis=1)
