"""Rewards of any task from stored physics states, many at a time.

A reward here is what dm_control's `get_reward` gives after setting the physics state (and the
control, where it counts). `physics_rewards` is the fast path: it runs only the stages of MuJoCo
whose results a reward reads, and evaluates the reward for all rows at once.
`physics_rewards_oracle` sets each state and asks dm_control; it is the judge of the fast path.

Axes: R rows, P physics state, A actions.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_control.utils import rewards as dm_rewards

from agentic_bpt.environments import kinematics
from agentic_bpt.environments.targets import (
    JACO_TARGET_RADIUS,
    JACO_TARGETS,
    MAZE_TARGET_RADIUS,
    MAZE_TARGETS,
)
from agentic_bpt.environments.tasks import ACTION_TOLERANCE, TASKS, Environment, task_spec
from agentic_bpt.errors import InputError

# The constants of dm_control's rewards: suite/walker.py, cheetah.py, quadruped.py, cartpole.py.
WALKER_STAND_HEIGHT = 1.2  # m
WALKER_SPEEDS = {"walker_walk": 1.0, "walker_run": 8.0}  # m/s
CHEETAH_SPEED = 10.0  # m/s
QUADRUPED_SPEEDS = {"quadruped_walk": 0.5, "quadruped_run": 5.0}  # m/s
CARTPOLE_CART_RANGE = (-0.25, 0.25)  # m
CARTPOLE_COSINE_RANGE = (0.995, 1.0)

_INFINITY = float("inf")
_ROWS_AT_ONCE = 4096  # bounds memory to some MB and keeps the work in the cache


def physics_rewards(task: str, physics_RP: np.ndarray, actions_RA: np.ndarray | None) -> np.ndarray:
    """Compute the reward of a task in each physics state.

    Args:
        task: full name of one of `TASKS`.
        physics_RP: float64 [R, P], positions, velocities, activations.
        actions_RA: [R, A], the action in [-1, 1] that led to each state; None leaves the control
            at 0, as ExoRL's relabelling does. It counts in the dense tasks of cartpole and in
            point_mass_maze.

    Returns:
        float64 [R]. Calls from several threads do not disturb each other.

    Raises:
        InputError: unknown task; a state or action of another width, not finite or out of range.
    """
    reward_of = functools.partial(_REWARDS[task_spec(task).domain], task)
    return evaluate_states(task, reward_of, physics_RP, actions_RA)


def evaluate_states(
    task: str,
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    physics_RP: np.ndarray,
    actions_RA: np.ndarray | None,
) -> np.ndarray:
    """Apply a function of states and controls to many rows, some at a time.

    Args:
        task: full name of a task; it says which states and actions there can be.
        function: of physics_RP and control_RA, float64; gives [R, ...].
        physics_RP: as in `physics_rewards`.
        actions_RA: as in `physics_rewards`.

    Raises:
        InputError: as `physics_rewards`.
    """
    physics_RP, actions_RA = _checked(task, physics_RP, actions_RA)
    if actions_RA is None:
        control_RA = np.zeros((len(physics_RP), TASKS[task].action_width))
    else:
        # The actuators of the tasks that look at the control have the range [-1, 1] already; the
        # environment hands them what float32 holds.
        control_RA = np.clip(actions_RA, -1, 1).astype(np.float32).astype(np.float64)
    starts = range(0, max(len(physics_RP), 1), _ROWS_AT_ONCE)
    cuts = [slice(start, start + _ROWS_AT_ONCE) for start in starts]
    return np.concatenate([function(physics_RP[cut], control_RA[cut]) for cut in cuts])


def physics_rewards_oracle(
    task: str, physics_RP: np.ndarray, actions_RA: np.ndarray | None
) -> np.ndarray:
    """Compute what `physics_rewards` computes, by dm_control's own code and row by row.

    Calls from several threads would share one environment: make them from one.
    """
    physics_RP, actions_RA = _checked(task, physics_RP, actions_RA)
    environment = _oracle_environment(task)
    rewards_R = np.empty(len(physics_RP))
    for row, state_P in enumerate(physics_RP):
        action_A = None if actions_RA is None else actions_RA[row]
        rewards_R[row] = environment.reward_of_state(state_P, action_A)
    return rewards_R


@functools.cache
def _oracle_environment(task: str) -> Environment:
    return Environment(task)


def _checked(
    task: str, physics_RP: np.ndarray, actions_RA: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Refuse states and actions that are not of the task, or not numbers."""
    spec = task_spec(task)
    physics_RP = np.asarray(physics_RP, np.float64)
    if physics_RP.ndim != 2 or physics_RP.shape[1] != spec.physics_width:
        raise InputError(
            f"physics states of {task} have shape (rows, {spec.physics_width}), "
            f"got {physics_RP.shape}"
        )
    finite_R = np.isfinite(physics_RP).all(axis=1)
    if not finite_R.all():
        raise InputError(f"physics states must be finite, got row {finite_R.argmin()} that is not")
    if actions_RA is None:
        return physics_RP, None
    actions_RA = np.asarray(actions_RA, np.float64)
    if actions_RA.shape != (len(physics_RP), spec.action_width):
        raise InputError(
            f"actions of {task} have shape {(len(physics_RP), spec.action_width)}, one for each "
            f"physics state, got {actions_RA.shape}"
        )
    good_R = (np.abs(actions_RA) <= 1 + ACTION_TOLERANCE).all(axis=1)  # False for NaN as well
    if not good_R.all():
        row = int(good_R.argmin())
        raise InputError(f"actions lie in [-1, 1], got {actions_RA[row].tolist()} in row {row}")
    return physics_RP, actions_RA


def _walker(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    motion = kinematics.torso_motion("walker", physics_RP)
    stand_R = walker_stand(motion)
    if task not in WALKER_SPEEDS:
        return stand_R
    speed = WALKER_SPEEDS[task]
    move_R = tolerance(
        motion.speed,
        bounds=(speed, _INFINITY),
        margin=speed / 2,
        value_at_margin=0.5,
        sigmoid="linear",
    )
    return stand_R * (5 * move_R + 1) / 6


def _cheetah(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    speed_R = kinematics.torso_motion("cheetah", physics_RP).speed
    return tolerance(
        -speed_R if task == "cheetah_run_backward" else speed_R,
        bounds=(CHEETAH_SPEED, _INFINITY),
        margin=CHEETAH_SPEED,
        value_at_margin=0,
        sigmoid="linear",
    )


def _quadruped(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    upright_R, speed_R = kinematics.quadruped_motion(physics_RP)
    upright_reward_R = tolerance(
        upright_R, bounds=(1, _INFINITY), margin=2, value_at_margin=0, sigmoid="linear"
    )
    speed = QUADRUPED_SPEEDS[task]
    move_R = tolerance(
        speed_R, bounds=(speed, _INFINITY), margin=speed, value_at_margin=0.5, sigmoid="linear"
    )
    return upright_reward_R * move_R


def _cartpole(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    cart_R, angle_R = physics_RP[:, 0], physics_RP[:, 1]
    if task.endswith("_sparse"):
        cosine_R = np.cos(angle_R)
        return tolerance(cart_R, CARTPOLE_CART_RANGE) * tolerance(cosine_R, CARTPOLE_COSINE_RANGE)
    centered_R = (1 + tolerance(cart_R, margin=2)) / 2
    return cartpole_upright(physics_RP, control_RA) * centered_R


def _point_mass_maze(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    # The mass slides in the plane of the targets, from the origin: its joints are its position.
    target_2 = MAZE_TARGETS[task.removeprefix("point_mass_maze_")][:2]
    near_R = nearness(physics_RP[:, :2], target_2, radius=MAZE_TARGET_RADIUS)
    return near_R * small_control(control_RA)


def _jaco(task: str, physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    target_3 = JACO_TARGETS[task.removeprefix("jaco_")]
    return nearness(
        kinematics.jaco_pinch_positions(physics_RP), target_3, radius=JACO_TARGET_RADIUS
    )


def walker_stand(motion: kinematics.TorsoMotion) -> np.ndarray:
    """Reward a walker for an upright torso at standing height: walker_stand."""
    standing_R = tolerance(
        motion.height, bounds=(WALKER_STAND_HEIGHT, _INFINITY), margin=WALKER_STAND_HEIGHT / 2
    )
    return (3 * standing_R + (1 + motion.upright) / 2) / 4


def cartpole_upright(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    """Reward a cartpole for an upright pole, slow and with little control, wherever it is."""
    _, angle_R, _, angular_velocity_R = physics_RP.T
    upright_R = (np.cos(angle_R) + 1) / 2
    small_velocity_R = (1 + tolerance(angular_velocity_R, margin=5)) / 2
    return upright_R * small_control(control_RA) * small_velocity_R


def nearness(positions_RX: np.ndarray, target_X: npt.ArrayLike, *, radius: float) -> np.ndarray:
    """Be 1 within the radius of a target, and fall to 0.1 one radius beyond."""
    distance_R = np.linalg.norm(positions_RX - np.asarray(target_X), axis=1)
    return tolerance(distance_R, bounds=(0, radius), margin=radius)


def tolerance(
    value_R: np.ndarray,
    bounds: tuple[float, float] = (0.0, 0.0),
    margin: float = 0.0,
    **shape: Any,
) -> np.ndarray:
    """Be 1 within the bounds and fall over the margin outside, by dm_control's own formula."""
    return np.asarray(dm_rewards.tolerance(value_R, bounds=bounds, margin=margin, **shape))


def small_control(control_RA: np.ndarray) -> np.ndarray:
    """Grow from 0.8 at full control to 1 at none: the factor of cartpole and the point mass."""
    small_RA = tolerance(control_RA, margin=1, value_at_margin=0, sigmoid="quadratic")
    return (4 + small_RA.mean(axis=1)) / 5


_REWARDS: dict[str, Callable[[str, np.ndarray, np.ndarray], np.ndarray]] = {
    "cartpole": _cartpole,
    "cheetah": _cheetah,
    "jaco": _jaco,
    "point_mass_maze": _point_mass_maze,
    "quadruped": _quadruped,
    "walker": _walker,
}
