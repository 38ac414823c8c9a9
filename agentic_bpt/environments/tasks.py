"""Every ExoRL task by name: its static sizes, and an environment to step in it."""

from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.environments.loading import import_dm_control, known_warnings_silenced
from agentic_bpt.errors import InputError

ACTION_TOLERANCE = 1e-6  # how far beyond [-1, 1] float32 rounding may put an action
_CAMERAS = {"quadruped": 2}  # the camera near the body, as ExoRL renders it; 0 elsewhere


class TaskSpec(NamedTuple):
    """What is known of a task without loading its physics."""

    name: str
    """Full name, `<domain>_<task>`."""
    domain: str
    """ExoRL's word for the body and its surroundings, such as `walker`."""
    episode_steps: int
    """Physics control steps of an episode at an action repeat of 1."""
    observation_width: int
    """O, numbers in the flat observation."""
    action_width: int
    """A, actuators."""
    physics_width: int
    """P = nq + nv + na, numbers in the physics state."""


def _specs() -> dict[str, TaskSpec]:
    targets = ("reach_top_left", "reach_top_right", "reach_bottom_left", "reach_bottom_right")
    balancing = ("balance", "balance_sparse", "swingup", "swingup_sparse")
    # domain: (episode steps, O, A, P), task names
    domains = {
        "cartpole": ((1000, 5, 1, 4), balancing),
        "cheetah": ((1000, 17, 6, 18), ("run", "run_backward")),
        "jaco": ((250, 42, 9, 18), targets),
        "point_mass_maze": ((1000, 4, 2, 4), targets),
        "quadruped": ((1000, 78, 12, 57), ("walk", "run")),
        "walker": ((1000, 24, 6, 18), ("stand", "walk", "run")),
    }
    return {
        f"{domain}_{task}": TaskSpec(f"{domain}_{task}", domain, *sizes)
        for domain, (sizes, tasks) in domains.items()
        for task in tasks
    }


TASKS: dict[str, TaskSpec] = _specs()
DOMAINS = tuple(dict.fromkeys(spec.domain for spec in TASKS.values()))


class Step(NamedTuple):
    """What follows one decision."""

    observation: np.ndarray
    """float32 [O], after the decision."""
    reward: float
    """Sum over the repeated control steps."""
    last: bool
    """Whether the time limit ends the episode here; no task has a terminal state."""


def task_spec(task: str) -> TaskSpec:
    """Look up a task by its full name.

    Raises:
        InputError: the name is not one of the 19 ExoRL tasks.
    """
    if task not in TASKS:
        raise InputError(f"unknown task: choose one of {', '.join(TASKS)}; got {task!r}")
    return TASKS[task]


def tasks_of_domain(domain: str) -> tuple[str, ...]:
    """Name the tasks of a domain, in ExoRL's order.

    Raises:
        InputError: no task belongs to such a domain.
    """
    names = tuple(name for name, spec in TASKS.items() if spec.domain == domain)
    if not names:
        raise InputError(f"unknown domain: choose one of {', '.join(DOMAINS)}; got {domain!r}")
    return names


def domain_spec(domain: str) -> TaskSpec:
    """Look up what all tasks of a domain share.

    Raises:
        InputError: no task belongs to such a domain.
    """
    return task_spec(tasks_of_domain(domain)[0])


class Environment:
    """One task: flat float32 observations, actions in [-1, 1] scaled to the actuators.

    Args:
        task: full name of one of `TASKS`.
        action_repeat: control steps for which each decision is held.
        keep_states: have in `states` the physics state after each control step of the decision
            before, K (the action repeat) times float64 [P].
    """

    def __init__(self, task: str, *, action_repeat: int = 1, keep_states: bool = False) -> None:
        self.spec = task_spec(task)
        if not 1 <= action_repeat <= self.spec.episode_steps:
            raise InputError(
                f"action_repeat must lie in 1..{self.spec.episode_steps} for {task}, "
                f"got {action_repeat}"
            )
        self.action_repeat = action_repeat
        self._keep_states = keep_states
        self.states: list[np.ndarray] = []
        self._environment = load_dm_environment(task)
        bounds = self._environment.action_spec()
        # ExoRL rounds bounds and scaled actions to float32. Doing the same makes a stored episode
        # replay bit by bit; without it quadrupeds drift apart within a few hundred steps.
        self._action_low_A = bounds.minimum.astype(np.float32)
        self._action_span_A = bounds.maximum.astype(np.float32) - self._action_low_A
        self._steps_left = 0  # decisions until the time limit; 0 before the first reset

    @property
    def episode_steps(self) -> int:
        """Decisions of an episode: control steps that do not fill one more are left out."""
        return self.spec.episode_steps // self.action_repeat

    def reset(self, seed: int) -> np.ndarray:
        """Start the episode that the seed alone determines.

        Returns:
            float32 [O], the first observation.
        """
        _random_state(self._environment).seed(seed)
        self._steps_left = self.episode_steps
        return self._flat(self._environment.reset().observation)

    def reset_to(self, physics_P: np.ndarray) -> None:
        """Start an episode in a given physics state, float64 [P]."""
        self._environment.reset()
        physics = self._environment.physics
        with physics.reset_context():
            physics.set_state(physics_P)
        self._steps_left = self.episode_steps

    def step(self, action: np.ndarray) -> Step:
        """Hold an action [A] in [-1, 1] for the repeated control steps.

        Raises:
            ValueError: the action has another shape, is not finite or lies outside [-1, 1], or
                the episode is over or was never reset.
        """
        if self._steps_left == 0:
            raise ValueError(f"{self.spec.name}: call reset before step, got a step at the end")
        native_A = self.native_action(action)
        reward = 0.0
        self.states = []
        for _ in range(self.action_repeat):
            timestep = self._environment.step(native_A)
            reward += float(timestep.reward)
            if self._keep_states:
                self.states.append(self.physics_state())
        self._steps_left -= 1
        return Step(self._flat(timestep.observation), reward, self._steps_left == 0)

    def native_action(self, action: np.ndarray) -> np.ndarray:
        """Scale an action [A] in [-1, 1] to the units of the actuators.

        Returns:
            float64 [A], rounded to what float32 holds, as ExoRL does.

        Raises:
            ValueError: the action has another shape, is not finite or lies outside [-1, 1].
        """
        action_A = np.asarray(action, np.float64)
        if action_A.shape != (self.spec.action_width,):
            raise ValueError(
                f"{self.spec.name}: an action has shape ({self.spec.action_width},), "
                f"got {action_A.shape}"
            )
        # Written so that NaN fails as well.
        if not np.abs(action_A).max() <= 1 + ACTION_TOLERANCE:
            raise ValueError(f"{self.spec.name}: actions lie in [-1, 1], got {action_A.tolist()}")
        native_A = self._action_low_A + self._action_span_A / 2 * (np.clip(action_A, -1, 1) + 1)
        return native_A.astype(np.float32).astype(np.float64)

    def physics_state(self) -> np.ndarray:
        """Read the physics state: positions, velocities, activations, float64 [P]."""
        return self._environment.physics.get_state().copy()

    def held_states(self, physics_P: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Set a physics state, hold an action, and see where each repeated control step leads.

        The episode goes on: call `reset_to` once before the first.

        Args:
            physics_P: float64 [P].
            action: [A] in [-1, 1].

        Returns:
            float64 [action_repeat, P].
        """
        physics = self._environment.physics
        with physics.reset_context():
            physics.set_state(physics_P)
        native_A = self.native_action(action)
        states = []
        for _ in range(self.action_repeat):
            self._environment.step(native_A)
            states.append(physics.get_state().copy())
        return np.array(states)

    def reward_of_state(self, physics_P: np.ndarray, action: np.ndarray | None) -> float:
        """Set a physics state and ask dm_control for its reward; ends the running episode.

        Args:
            physics_P: float64 [P].
            action: [A] in [-1, 1], the control that the reward may look at; None for a control
                of 0 in the actuators' units.
        """
        self._steps_left = 0
        physics = self._environment.physics
        with physics.reset_context():  # sets the control to 0
            physics.set_state(physics_P)
            if action is not None:
                physics.set_control(self.native_action(action))
        return float(self._environment.task.get_reward(physics))

    def render(self, *, height: int = 240, width: int = 320) -> np.ndarray:
        """Draw the present state, uint8 [H, W, 3].

        Raises:
            InputError: this machine has no OpenGL renderer that works.
        """
        from mujoco import FatalError  # pyright: ignore[reportAttributeAccessIssue]

        camera = _CAMERAS.get(self.spec.domain, 0)
        try:
            return self._environment.physics.render(height=height, width=width, camera_id=camera)
        except (FatalError, ImportError, RuntimeError) as error:
            raise InputError(
                "no OpenGL renderer works here: set MUJOCO_GL to egl or osmesa and install its "
                f"library, got {type(error).__name__}: {error}"
            ) from error

    def _flat(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        parts = [np.ravel(part) for part in observation.values()]
        return np.concatenate(parts).astype(np.float32)


def load_dm_environment(task: str) -> Any:
    """Build a task's own dm_control environment, with native actions and named observations.

    Raises:
        InputError: the task is unknown, or the installed mujoco does not work with dm_control.
    """
    spec = task_spec(task)
    import_dm_control()
    from dm_control import suite

    from agentic_bpt.environments.exorl_tasks import BUILDERS

    with known_warnings_silenced():
        if task in BUILDERS:
            return BUILDERS[task]()
        return suite.load(spec.domain, task.removeprefix(f"{spec.domain}_"))


def _random_state(environment: Any) -> np.random.RandomState:
    """Find the one generator that a dm_control environment draws from."""
    if hasattr(environment, "random_state"):  # composer (jaco)
        return environment.random_state
    return environment.task.random
