"""Hidden tasks: what `--hidden-task` names, as parameters and the rewards under them.

The text is the name of a family (`walker_speed`), ExoRL tasks of one domain
(`walker_stand,walker_walk,walker_run`), or a function in a file of one's own (`tasks.py:reward`).
Axes as in `families`.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from agentic_bpt.environments.families import FAMILIES, Family, Score, See
from agentic_bpt.environments.reward_file import read_reward_file, require_file
from agentic_bpt.environments.rewards import evaluate_states, physics_rewards
from agentic_bpt.environments.tasks import (
    DOMAINS,
    TASKS,
    Environment,
    Step,
    domain_spec,
    task_spec,
    tasks_of_domain,
)
from agentic_bpt.errors import InputError

TRAINING_PARAMETERS = 128
HELD_OUT_PARAMETERS = 16
PARAMETER_SEED = 0
"""Fixed, so that all runs and evaluations of a family share their parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HiddenTasks:
    """Tasks of one domain that differ in a parameter, and the rewards under it."""

    text: str
    """As on the command line."""
    domain: str
    parameter_names: tuple[str, ...]
    """The D numbers of a parameter."""
    training_KD: np.ndarray
    """Parameters that training draws from."""
    held_out_KD: np.ndarray
    """Others, for evaluation; none for a set of named tasks."""
    named: Mapping[str, tuple[float, ...]]
    """Parameters of ExoRL's own tasks, by name. Those of a family are not among the training ones;
    those of a set are."""
    see: See
    score: Score

    def seen(self, physics_RP: np.ndarray, actions_RA: np.ndarray) -> np.ndarray:
        """Give what rewards see of states [R, P] after actions [R, A]: float64 [R, F].

        The costly half of a reward, and the same for every parameter.

        Raises:
            InputError: states or actions that are not of the domain.
        """
        return evaluate_states(domain_spec(self.domain).name, self.see, physics_RP, actions_RA)

    def reward(
        self, physics_RP: np.ndarray, actions_RA: np.ndarray, parameter_D: np.ndarray
    ) -> np.ndarray:
        """Compute the reward in states [R, P] that actions [R, A] in [-1, 1] led to: [R].

        Raises:
            InputError: as `seen`; or a user's function that fails.
        """
        return self.score(self.seen(physics_RP, actions_RA), np.asarray(parameter_D, np.float64))


def hidden_tasks(text: str, *, seed: int = PARAMETER_SEED) -> HiddenTasks:
    """Parse what `--hidden-task` names.

    Args:
        text: a family, tasks of one domain with commas between them, or `path.py:function`.
        seed: decides the parameters that are drawn of a family.

    Raises:
        InputError: it is none of these; the known ones are listed.
    """
    path, function = _file_and_function(text)
    if path is not None:
        return _of_file(text, path, function)
    if text in FAMILIES:
        return _of_family(FAMILIES[text], seed)
    names = text.split(",")
    if all(name in TASKS for name in names):
        return _of_names(text, names)
    raise InputError(
        f"a hidden task is a family ({', '.join(FAMILIES)}), tasks of one domain with commas "
        f"between them ({', '.join(TASKS)}), or path.py:function; got {text!r}"
    )


def reward_file_hash(text: str) -> str:
    """Hash the file of `path.py:function`, so that a run is not gone on with under other rewards.

    Empty for what names no file.

    Raises:
        InputError: the file is not there.
    """
    path, _ = _file_and_function(text)
    if path is None:
        return ""
    require_file(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _file_and_function(text: str) -> tuple[Path | None, str]:
    """Part `path.py:function`; None where the text names no file."""
    path, colon, function = text.rpartition(":")
    return (Path(path) if colon and path.endswith(".py") else None), function


def _of_family(family: Family, seed: int) -> HiddenTasks:
    draw = partial(family.parameters, seed=seed)
    return HiddenTasks(
        text=family.name,
        domain=family.domain,
        parameter_names=family.parameter_names,
        training_KD=draw(held_out=False, count=TRAINING_PARAMETERS),
        held_out_KD=draw(held_out=True, count=HELD_OUT_PARAMETERS),
        named=family.named,
        see=family.see,
        score=family.score,
    )


def _of_names(text: str, names: list[str]) -> HiddenTasks:
    """Make a set of tasks; its parameters are one-hot."""
    domains = dict.fromkeys(TASKS[name].domain for name in names)
    if len(names) < 2 or len(set(names)) < len(names) or len(domains) > 1:
        known = "; ".join(",".join(tasks_of_domain(domain)) for domain in DOMAINS)
        raise InputError(
            f"a set of hidden tasks has two or more different tasks of one domain, such as any of "
            f"{known}; got {text!r}"
        )

    def see(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
        return np.stack([physics_rewards(name, physics_RP, control_RA) for name in names], axis=1)

    one_hot_KD = np.eye(len(names))
    return HiddenTasks(
        text=text,
        domain=next(iter(domains)),
        parameter_names=tuple(names),
        training_KD=one_hot_KD,
        held_out_KD=one_hot_KD[:0],
        named={name: tuple(row) for name, row in zip(names, one_hot_KD.tolist(), strict=True)},
        see=see,
        score=np.matmul,
    )


def _of_file(text: str, path: Path, function: str) -> HiddenTasks:
    file = read_reward_file(path, function)
    width = file.training_KD.shape[1]
    return HiddenTasks(
        text=text,
        domain=file.domain,
        parameter_names=tuple(f"parameter {number}" for number in range(width)),
        training_KD=file.training_KD,
        held_out_KD=file.held_out_KD,
        named={},
        see=lambda physics_RP, control_RA: physics_RP,
        score=file.reward,
    )


class HiddenEnvironment(Environment):
    """The body, the start and the time limit of one task, and the reward of a hidden one.

    Args:
        task: full name of a task of the domain: where episodes start.
        tasks: the hidden tasks.
        parameter_D: which of them is paid.
        action_repeat: control steps for which each decision is held.
        told: append the parameter to the observations.

    Raises:
        InputError: the task is of another domain.
    """

    def __init__(
        self,
        task: str,
        tasks: HiddenTasks,
        parameter_D: np.ndarray,
        *,
        action_repeat: int = 1,
        told: bool = False,
    ) -> None:
        if task_spec(task).domain != tasks.domain:
            raise InputError(
                f"{tasks.text}: is of domain {tasks.domain}: act in one of its tasks, got {task}"
            )
        super().__init__(task, action_repeat=action_repeat, keep_states=True)
        self.tasks, self.parameter_D = tasks, np.asarray(parameter_D, np.float64)
        self._told_D = np.asarray(parameter_D if told else (), np.float32)

    def step(self, action: np.ndarray) -> Step:
        """Hold an action for the repeated control steps; what follows has the hidden reward.

        Raises:
            ValueError: as `Environment.step`.
        """
        return step_together([self], np.asarray(action)[None])[0]

    def _flat(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([super()._flat(observation), self._told_D])


def step_together(environments: Sequence[HiddenEnvironment], actions_CA: np.ndarray) -> list[Step]:
    """Step environments of the same tasks, each in its own, and pay all of them at once.

    One reward alone takes longer than the physics of its step; sixteen take hardly more than one.

    Raises:
        ValueError: as `Environment.step`.
    """
    moved = [
        Environment.step(environment, action_A)
        for environment, action_A in zip(environments, actions_CA, strict=True)
    ]
    tasks = environments[0].tasks
    states_CKP = np.array([environment.states for environment in environments])
    C, K, P = states_CKP.shape
    actions_RA = np.repeat(actions_CA, K, axis=0)
    seen_CKF = tasks.seen(states_CKP.reshape(C * K, P), actions_RA).reshape(C, K, -1)
    return [
        step._replace(reward=float(tasks.score(seen_KF, environment.parameter_D).sum()))
        for step, seen_KF, environment in zip(moved, seen_CKF, environments, strict=True)
    ]
