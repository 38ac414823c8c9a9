"""The collector that acts at random: uniform actions, nothing learned."""

from collections.abc import Callable

import numpy as np

from agentic_bpt.exploration.replay import Experience
from agentic_bpt.exploration.seeding import Purpose, generator


class UniformExplorer:
    """Draws every action uniformly from [-1, 1]."""

    def __init__(self, *, seed: int, episode_steps: int, action_width: int) -> None:
        self._seed = seed
        self._shape = (episode_steps, action_width)
        self._actions_TA = np.empty((0, action_width), np.float32)
        self._step = 0

    def start_episode(self, index: int) -> None:
        """Draw the actions of an episode."""
        draws = generator(self._seed, index, Purpose.ACTIONS)
        self._actions_TA = draws.uniform(-1.0, 1.0, self._shape).astype(np.float32)
        self._step = 0

    def act(self, observation_O: np.ndarray) -> np.ndarray:
        """Give the next action [A]."""
        self._step += 1
        return self._actions_TA[self._step - 1]

    def end_episode(self, experience: Experience) -> None:
        """Learn nothing from an episode."""

    def state(self) -> dict[str, np.ndarray]:
        """Give what to save: nothing, as the actions follow from the seed."""
        return {}

    def restore(
        self, state: dict[str, np.ndarray], episodes: int, read: Callable[[int], Experience]
    ) -> None:
        """Go on after `episodes` episodes."""
