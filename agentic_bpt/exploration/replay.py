"""The newest episodes of a collection, from which windows are drawn to learn from."""

from typing import NamedTuple

import numpy as np

from agentic_bpt.errors import InputError


class Experience(NamedTuple):
    """One episode, as it is learned from."""

    observations: np.ndarray  # float32 [T + 1, O]
    actions: np.ndarray  # float32 [T, A]
    rewards: np.ndarray  # float32 [T]


class Windows(NamedTuple):
    """Stretches of several decisions, reduced to what a critic with n-step returns needs."""

    observations: np.ndarray  # float32 [..., O]
    actions: np.ndarray  # float32 [..., A]
    rewards: np.ndarray  # float32 [...], discounted sum over the window
    next_observations: np.ndarray  # float32 [..., O]


class Replay:
    """Holds whole episodes of one length, the newest `capacity_steps` decisions of them.

    What it holds is a function of the episodes alone, so after a stop it is built again from the
    episode files and no second copy is ever saved.
    """

    def __init__(
        self,
        *,
        episode_steps: int,
        observation_width: int,
        action_width: int,
        capacity_steps: int,
        return_steps: int,
        discount: float,
    ) -> None:
        if return_steps > episode_steps:
            raise InputError(
                f"return_steps must be at most the episode's {episode_steps}, got {return_steps}"
            )
        self.capacity = max(1, capacity_steps // episode_steps)  # episodes
        self.windows = episode_steps - return_steps + 1  # in one episode
        self._return_steps = return_steps
        self._weights = discount ** np.arange(return_steps)
        self._observations = np.empty((0, episode_steps + 1, observation_width), np.float32)
        self._actions = np.empty((0, episode_steps, action_width), np.float32)
        self._rewards = np.empty((0, self.windows), np.float32)
        self._count = 0  # episodes ever added

    def __len__(self) -> int:
        """Give the number of episodes held."""
        return min(self._count, self.capacity)

    def skip(self, episodes: int) -> None:
        """Count episodes that have already been pushed out, when building the replay again."""
        self._count += episodes

    def add(self, experience: Experience) -> None:
        """Take in one episode, in the place of the oldest when the replay is full."""
        slot = self._count % self.capacity
        while slot >= len(self._observations):
            self._grow()
        self._observations[slot] = experience.observations
        self._actions[slot] = experience.actions
        rewards_T = experience.rewards.astype(np.float64)
        self._rewards[slot] = np.correlate(rewards_T, self._weights, mode="valid")
        self._count += 1

    def sample(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Windows:
        """Draw windows uniformly, with replacement."""
        episode = generator.integers(len(self), size=shape)
        start = generator.integers(self.windows, size=shape)
        return Windows(
            self._observations[episode, start],
            self._actions[episode, start],
            self._rewards[episode, start],
            self._observations[episode, start + self._return_steps],
        )

    def _grow(self) -> None:
        """Double the room, up to the capacity: a short collection needs little memory."""
        room = min(self.capacity, max(8, 2 * len(self._observations)))
        for name in ("_observations", "_actions", "_rewards"):
            old = getattr(self, name)
            new = np.empty((room, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
