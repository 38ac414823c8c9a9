"""Replays stored episodes action by action, and says where the physics leaves the stored path."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode
from agentic_bpt.datasets.listing import select_episodes
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
    reward_error: float
    """Largest |replayed - relabelled| reward of a step; float32 rounding of actions is 3e-8."""
    stored_error: float
    """Largest |replayed - stored| reward of a step: large if the file holds another task's."""


def audit(
    source: Path,
    *,
    task: str,
    episodes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Replay]:
    """Replay episodes, all or so many spread over the collection, in the task's environment.

    Raises:
        InputError: a bad episode, or one without physics.
    """
    spec = task_spec(task)
    files = episode_files(Path(source))
    if episodes is not None:
        files = select_episodes(files, episodes=episodes, rule="stratified")
    replays: list[Replay] = []
    for number, file in enumerate(files, start=1):
        episode = read_episode(file, domain=spec.domain)
        if episode.physics is None:
            raise InputError(f"{file}: key 'physics': is needed to replay; got no such key")
        replays.append(_replay(episode, episode.physics, task))
        if progress is not None:
            progress(number, len(files))
    return replays


def _replay(episode: Episode, physics_RP: np.ndarray, task: str) -> Replay:
    environment = Environment(task, action_repeat=episode.action_repeat)
    environment.reset_to(physics_RP[0])
    states, rewards = [], []
    for action_A in episode.action[1:]:
        rewards.append(environment.step(action_A).reward)
        states.append(environment.physics_state())
    expected_TP = physics_RP[1:]
    error_TP = np.abs(np.array(states) - expected_TP) / np.maximum(1, np.abs(expected_TP))
    error_T = error_TP.max(axis=1)
    drifting = np.flatnonzero(~(error_T <= DRIFT))
    reward_error = np.nan
    if episode.action_repeat == 1:
        relabelled_T = relabel(episode, task=task, mode="control")
        reward_error = float(np.abs(np.array(rewards) - relabelled_T).max())
    stored_RX = episode.reward.reshape(len(episode.reward), -1)
    return Replay(
        episode.name,
        len(rewards),
        int(drifting[0]) if len(drifting) else None,
        float(error_T.max()),
        reward_error,
        float(np.abs(np.array(rewards)[:, None] - stored_RX[1:]).min(axis=1).max()),
    )
