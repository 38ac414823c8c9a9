"""The rewards of a task for a stored episode."""

import functools

import numpy as np

from agentic_bpt.datasets.exorl import Episode
from agentic_bpt.environments.tasks import Environment, task_spec
from agentic_bpt.errors import InputError

RELABEL_MODES = ("control", "exorl", "stored")


def relabel(
    episode: Episode, *, task: str, mode: str, states_TKP: np.ndarray | None = None
) -> np.ndarray:
    """Compute what each action of an episode earns in a task.

    Row 0 of the file is the reset: its reward, which relabelling makes up to 1, is dropped.

    Args:
        episode: of the task's domain.
        task: full name, such as `walker_run`.
        mode: `control` gives the reward that the environment would have paid, with the action of
            each row as the control. `exorl` is ExoRL's own relabelling, with the control at 0: it
            loses the control term of cartpole and point_mass_maze. `stored` takes the reward of
            the file, which belongs to one task of the domain, whatever `task` says.
        states_TKP: what `control_states` gives, where that is known already.

    Where actions were repeated a reward is a sum over control steps. The states between two stored
    ones are simulated anew, each time from the stored one (some 0.1 ms a control step).

    Returns:
        float64 [T].

    Raises:
        InputError: unknown task or mode, no physics to compute from or that the simulator cannot go
            on from, or several stored rewards.
    """
    task_spec(task)
    check_mode(mode)
    if mode == "stored":
        return _stored_rewards(episode)[1:].astype(np.float64)
    if states_TKP is None:
        states_TKP = control_states(episode, task=task)
    # Loads dm_control and mujoco, which stored rewards do not need.
    from agentic_bpt.environments.rewards import physics_rewards

    T, K, P = states_TKP.shape
    actions_RA = np.repeat(episode.action[1:], K, axis=0) if mode == "control" else None
    return physics_rewards(task, states_TKP.reshape(-1, P), actions_RA).reshape(T, K).sum(axis=1)


def control_states(episode: Episode, *, task: str) -> np.ndarray:
    """Give the physics after every control step: those that rewards are made of.

    Args:
        episode: of the domain of the task.
        task: full name; all tasks of a domain move alike.

    Returns:
        float64 [T, K, P], where each action was held for K control steps. If K is not 1, they are
        simulated anew, each time from the stored state; the last of the K is the next stored one.

    Raises:
        InputError: no physics, or physics that the simulator cannot go on from.
    """
    physics_RP = _physics(episode, task)
    if episode.action_repeat == 1:
        return physics_RP[1:, None]
    states_RP = _held_states(episode, physics_RP, task)
    return states_RP.reshape(len(physics_RP) - 1, episode.action_repeat, -1)


def _held_states(episode: Episode, physics_RP: np.ndarray, task: str) -> np.ndarray:
    """Simulate the control steps of every decision, float64 [T x action_repeat, P]."""
    from dm_control.rl.control import PhysicsError

    environment = _environment(task, episode.action_repeat)
    T = len(physics_RP) - 1
    if environment.episode_steps < T:
        raise InputError(
            f"{episode.name}: an episode of {task} has at most {environment.episode_steps} "
            f"decisions of {episode.action_repeat} control steps; leave it out; got {T}"
        )
    try:
        environment.reset_to(physics_RP[0])
        states = [
            environment.held_states(state_P, action_A)
            for state_P, action_A in zip(physics_RP[:-1], episode.action[1:], strict=True)
        ]
    except PhysicsError as error:
        raise InputError(
            f"{episode.name}: key 'physics': the simulator cannot go on from it; leave it out; "
            f"got {error}"
        ) from error
    return np.concatenate(states)


@functools.cache
def _environment(task: str, action_repeat: int) -> Environment:
    return Environment(task, action_repeat=action_repeat)


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
    """Give the physics states [T + 1, P], if they are there."""
    if episode.physics is None:
        raise InputError(
            f"{episode.name}: key 'physics': is needed to compute the rewards of {task}; use "
            f"--relabel stored if the stored reward is that of {task}; got no such key"
        )
    return episode.physics


def check_mode(mode: str) -> None:
    """Refuse a way of relabelling that does not exist.

    Raises:
        InputError: with the known ones.
    """
    if mode not in RELABEL_MODES:
        raise InputError(f"relabel must be one of {', '.join(RELABEL_MODES)}; got {mode!r}")
