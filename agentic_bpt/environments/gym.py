"""The Gymnasium face of every task; importing this module registers them all."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentic_bpt.environments.tasks import TASKS, Environment

_SEEDS = 2**32  # how many seeds NumPy's RandomState tells apart


class DmControlGym(gymnasium.Env[np.ndarray, np.ndarray]):
    """One task as a Gymnasium environment: the time limit truncates, nothing terminates.

    `reset(seed=s)` starts the same episode as `Environment.reset(s)`; later resets without a seed
    draw theirs from the environment's own generator.

    Args:
        task: full name of one of `TASKS`.
        action_repeat: control steps for which each action is held.
        render_mode: `"rgb_array"` for `render` to give uint8 [240, 320, 3], or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (Gymnasium's form)

    def __init__(
        self, task: str, *, action_repeat: int = 1, render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self._environment = Environment(task, action_repeat=action_repeat)
        spec = self._environment.spec
        self.observation_space = spaces.Box(-np.inf, np.inf, (spec.observation_width,), np.float32)
        self.action_space = spaces.Box(-1, 1, (spec.action_width,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode: the one that the seed determines, or the next one.

        Returns:
            float32 [O], the first observation, and an empty dict.
        """
        super().reset(seed=seed, options=options)
        if seed is None:
            seed = int(self.np_random.integers(_SEEDS))
        return self._environment.reset(seed), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one action [A] in [-1, 1].

        Returns:
            float32 [O], the reward, terminated (never), truncated (at the time limit), an empty
            dict.
        """
        step = self._environment.step(action)
        return step.observation, step.reward, False, step.last, {}

    def render(self) -> np.ndarray | None:
        """Draw the present state, uint8 [240, 320, 3], or nothing without a render mode."""
        return self._environment.render() if self.render_mode == "rgb_array" else None


def register_environments() -> None:
    """Make every task known to `gymnasium.make` as `agentic_bpt/<task>-v0`."""
    for task in TASKS:
        name = f"agentic_bpt/{task}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{__name__}:DmControlGym", kwargs={"task": task})


register_environments()
