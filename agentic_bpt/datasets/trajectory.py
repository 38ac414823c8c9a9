"""What a trajectory is, and the refusal of one that is not."""

from typing import NamedTuple

import numpy as np

from agentic_bpt.errors import InputError

ACTION_TOLERANCE = 1e-6  # beyond [-1, 1] by no more than float32 rounding of a scaled action


class Trajectory(NamedTuple):
    """T steps of one episode: step t holds s_t, a_t and r_t, the reward of that action."""

    observations: np.ndarray
    """float32 [T, O], the observation before each action."""
    actions: np.ndarray
    """float32 [T, A], in [-1, 1], before scaling to the actuators."""
    rewards: np.ndarray
    """float32 [T], what each action earned."""
    final_observation: np.ndarray
    """float32 [O], the observation after the last action."""

    @property
    def total_reward(self) -> float:
        """The return of the episode, summed in float64."""
        return float(self.rewards.sum(dtype=np.float64))


def require_finite(values: np.ndarray, *, where: str) -> None:
    """Refuse NaN and infinity in an array [R, ...] and name the first such row.

    Raises:
        InputError: a value is not finite.
    """
    # The sum of finite float32 or float64 data is finite or overflows: then look closely.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    wrong = ~np.isfinite(values)
    rows = np.flatnonzero(wrong.reshape(len(values), -1).any(axis=1))
    if len(rows):
        raise InputError(
            f"{where}: every number must be finite; leave this episode out; got "
            f"{_first(wrong, values)} in row {rows[0]} ({len(rows)} such rows)"
        )


def require_action_range(actions_RA: np.ndarray, *, where: str) -> None:
    """Refuse finite actions outside [-1, 1] and name the first such row.

    Raises:
        InputError: an action lies outside by more than `ACTION_TOLERANCE`.
    """
    wrong_RA = np.abs(actions_RA) > 1 + ACTION_TOLERANCE
    rows = np.flatnonzero(wrong_RA.any(axis=1))
    if len(rows):
        raise InputError(
            f"{where}: must lie in [-1, 1], before scaling to the actuators; scale the actions "
            f"back or leave this episode out; got {_first(wrong_RA, actions_RA)} in row {rows[0]} "
            f"({len(rows)} such rows)"
        )


def check_trajectory(
    trajectory: Trajectory, *, where: str, observation_width: int, action_width: int
) -> Trajectory:
    """Return the trajectory if its shapes, types, numbers and action range are right.

    Args:
        trajectory: what to check.
        where: file or episode that a message should name.
        observation_width: O of the task.
        action_width: A of the task.

    Raises:
        InputError: naming `where`, the field, the row and what it should be.
    """
    steps = len(trajectory.actions)
    shapes = {
        "observations": (steps, observation_width),
        "actions": (steps, action_width),
        "rewards": (steps,),
        "final_observation": (observation_width,),
    }
    if steps == 0:
        raise InputError(f"{where}: a trajectory has at least one step, got none: leave it out")
    for name, shape in shapes.items():
        values = getattr(trajectory, name)
        if values.shape != shape or values.dtype != np.float32:
            raise InputError(
                f"{where}: {name} must be float32 {list(shape)}, got {values.dtype} "
                f"{list(values.shape)}"
            )
        require_finite(values, where=f"{where}: {name}")
    require_action_range(trajectory.actions, where=f"{where}: actions")
    return trajectory


def _first(wrong: np.ndarray, values: np.ndarray) -> float:
    """Pick the first wrong value, row by row."""
    return float(values.ravel()[int(wrong.ravel().argmax())])
