"""The rewards of a task for a stored episode."""

import numpy as np

from agentic_bpt.datasets.exorl import Episode
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError

RELABEL_MODES = ("control", "exorl", "stored")


def relabel(episode: Episode, *, task: str, mode: str) -> np.ndarray:
    """Compute what each action of an episode earns in a task.

    Row 0 of the file is the reset: its reward, which relabelling makes up to 1, is dropped.

    Args:
        episode: of the task's domain.
        task: full name, such as `walker_run`.
        mode: `control` gives the reward that the environment would have paid, with the action of
            each row as the control. `exorl` is ExoRL's own relabelling, with the control at 0: it
            loses the control term of cartpole and point_mass_maze. `stored` takes the reward of
            the file, which belongs to one task of the domain, whatever `task` says.

    Returns:
        float64 [T].

    Raises:
        InputError: unknown task or mode, no physics to compute from, actions that were repeated,
            or several stored rewards.
    """
    task_spec(task)
    check_mode(mode)
    if mode == "stored":
        return _stored_rewards(episode)[1:].astype(np.float64)
    physics_RP = _physics(episode, task)
    # Loads dm_control and mujoco, which stored rewards do not need.
    from agentic_bpt.environments.rewards import physics_rewards

    actions_TA = episode.action[1:] if mode == "control" else None
    return physics_rewards(task, physics_RP[1:], actions_TA)


def check_relabel(episode: Episode, *, task: str, mode: str) -> None:
    """Refuse an episode that `relabel` cannot work on, without computing anything.

    Raises:
        InputError: as `relabel`.
    """
    if mode == "stored":
        _stored_rewards(episode)
    else:
        _physics(episode, task)


def _stored_rewards(episode: Episode) -> np.ndarray:
    """Give the rewards [T + 1] of the file, if they are of one task."""
    if episode.reward.ndim != 1:
        raise InputError(
            f"{episode.name}: key 'reward': has {episode.reward.shape[1]} columns, one for "
            "each maze target in an order that is not documented; use --relabel control, got "
            "--relabel stored"
        )
    return episode.reward


def _physics(episode: Episode, task: str) -> np.ndarray:
    """Give the physics states [T + 1, P], if there is one for each step that earned a reward."""
    if episode.physics is None:
        raise InputError(
            f"{episode.name}: key 'physics': is needed to compute the rewards of {task}; use "
            f"--relabel stored if the stored reward is that of {task}; got no such key"
        )
    if episode.action_repeat != 1:
        raise InputError(
            f"{episode.name}: the physics between repeated actions is not in the file, so rewards "
            f"cannot be computed; use --relabel stored; got action_repeat {episode.action_repeat}"
        )
    return episode.physics


def check_mode(mode: str) -> None:
    """Refuse a way of relabelling that does not exist.

    Raises:
        InputError: with the known ones.
    """
    if mode not in RELABEL_MODES:
        raise InputError(f"relabel must be one of {', '.join(RELABEL_MODES)}; got {mode!r}")
