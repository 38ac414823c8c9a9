"""Chain of hindsight: several trajectories of a task, worst to best, all aimed at the best return.

Pure functions on arrays. A chain is packed: its trajectories follow each other without padding,
L = sum of their lengths timesteps (arXiv 2305.16554, section 3).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agentic_bpt.datasets.trajectory import Trajectory

COMPLETIONS = ("reached", "final")
"""What the completion token of a timestep holds, once its reward is known.

- "reached": 1 from the moment the rewards so far add up to the target return;
- "final": 1 only at the last timestep of a trajectory that reached the target return.
"""

TARGET_TOLERANCE = 1e-5
"""Relative; a float32 sum of the very rewards that make the target may fall this far short."""


class Chain(NamedTuple):
    """One packed chain; timestep l holds what was known before, and what followed, one action."""

    observations_LO: np.ndarray
    """float32, the observation before the action."""
    actions_LA: np.ndarray
    """float32 in [-1, 1]."""
    rewards_L: np.ndarray
    """float32, what the action earned."""
    returns_to_go_L: np.ndarray
    """float32, target return less the rewards before this action in this trajectory."""
    completions_L: np.ndarray
    """float32 0 or 1, after the action (`COMPLETIONS`)."""
    timesteps_L: np.ndarray
    """int32, step within the trajectory."""
    trajectories_L: np.ndarray
    """int32, which trajectory of the chain, 0 for the first."""


def is_complete(
    received: npt.ArrayLike, target_return: npt.ArrayLike, last: npt.ArrayLike, *, completion: str
) -> np.ndarray:
    """Say whether a trajectory is complete at rewards that add up to `received`.

    The one definition for training and for acting, and what was complete stays so; arguments
    broadcast. `last` marks the last timestep of a trajectory.
    """
    target_return = np.asarray(target_return)
    slack = TARGET_TOLERANCE * np.maximum(1.0, np.abs(target_return))
    reached = np.asarray(received) >= target_return - slack
    return reached if completion == "reached" else reached & np.asarray(last)


def chain_of_hindsight(
    trajectories: Sequence[Trajectory],
    *,
    completion: str = "reached",
    target_return: float | None = None,
) -> Chain:
    """Pack trajectories in ascending order of return, their target relabelled to the largest.

    Returns-to-go start at the target in every trajectory and fall by the rewards received in it.
    `target_return` replaces the target: of a prompt before an agent that is asked for another, or
    above what was reached (`sampler.ChainConfig.target_excess`).

    Raises:
        ValueError: no trajectory, or an unknown `completion`.
    """
    if not trajectories:
        raise ValueError("a chain needs at least one trajectory, got none")
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.total_reward)
    if target_return is None:
        target_return = ordered[-1].total_reward
    return pack(ordered, target_return=target_return, completion=completion)


def pack(trajectories: Sequence[Trajectory], *, target_return: float, completion: str) -> Chain:
    """Pack trajectories in the order given, all aimed at the target.

    Raises:
        ValueError: an unknown `completion`.
    """
    if completion not in COMPLETIONS:
        raise ValueError(f"completion must be one of {COMPLETIONS}, got {completion!r}")
    returns_to_go, completions = [], []
    for trajectory in trajectories:
        received_T = np.cumsum(trajectory.rewards, dtype=np.float64)
        returns_to_go.append(target_return - np.concatenate([[0.0], received_T[:-1]]))
        last_T = np.arange(len(received_T)) == len(received_T) - 1
        complete_T = is_complete(received_T, target_return, last_T, completion=completion)
        completions.append(np.logical_or.accumulate(complete_T))
    lengths = [len(trajectory.rewards) for trajectory in trajectories]
    return Chain(
        observations_LO=np.concatenate([t.observations for t in trajectories]),
        actions_LA=np.concatenate([t.actions for t in trajectories]),
        rewards_L=np.concatenate([t.rewards for t in trajectories]),
        returns_to_go_L=np.concatenate(returns_to_go).astype(np.float32),
        completions_L=np.concatenate(completions).astype(np.float32),
        timesteps_L=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        trajectories_L=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
    )
