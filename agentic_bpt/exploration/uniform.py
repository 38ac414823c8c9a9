"""The collector that acts at random: uniform actions, nothing learned."""

from collections.abc import Callable, Sequence

import numpy as np

from agentic_bpt.exploration.replay import Experience
from agentic_bpt.exploration.seeding import Purpose, generator


class UniformExplorer:
    """Draws every action uniformly from [-1, 1]; an episode's are the same in any round."""

    def __init__(
        self, *, seed: int, episode_steps: int, action_width: int, environments: int
    ) -> None:
        self._seed = seed
        self._environments = environments
        self._shape = (episode_steps, action_width)
        self._actions_NTA = np.empty((environments, 0, action_width), np.float32)
        self._step = 0

    def start_round(self, first: int) -> None:
        """Draw the actions of the episodes of a round."""
        self._actions_NTA = np.empty((self._environments, *self._shape), np.float32)
        for place, actions_TA in enumerate(self._actions_NTA):
            draws = generator(self._seed, first + place, Purpose.ACTIONS)
            actions_TA[:] = draws.uniform(-1.0, 1.0, self._shape)
        self._step = 0

    def act(self, observations_NO: np.ndarray) -> np.ndarray:
        """Give the next actions [N, A]."""
        self._step += 1
        return self._actions_NTA[:, self._step - 1]

    def end_round(self, experiences: Sequence[Experience]) -> None:
        """Learn nothing from the episodes."""

    def state(self) -> dict[str, np.ndarray]:
        """Give what to save: nothing, as the actions follow from the seed."""
        return {}

    def restore(
        self, state: dict[str, np.ndarray], episodes: int, read: Callable[[int], Experience]
    ) -> None:
        """Go on after `episodes` episodes."""
