"""The episodes of a store under hidden tasks: one set of physics, the rewards of any parameter.

Axes: E episodes, T steps, K parameters, D numbers of a parameter, H control steps an action is
held, F what a reward sees of a state.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agentic_bpt.datasets.store_reader import Store
from agentic_bpt.datasets.store_writer import LEAST_STD
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.environments.hidden_tasks import HiddenTasks
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError

HELD_BYTES = 2**28
"""What rewards see of states is kept in memory up to here, and computed anew beyond."""


class Units(NamedTuple):
    """Scales of observations, returns and rewards over the training episodes and parameters."""

    observation_mean: np.ndarray
    """float32 [O], or [O + D] where the parameter is told."""
    observation_std: np.ndarray
    """float32, likewise; 1 where nothing varies."""
    return_scale: float
    """Largest |return| of an episode under a parameter; 1 if all are 0."""
    reward_scale: float
    """Reward of a step that, kept up for an episode, makes `return_scale`."""


class HiddenEpisodes:
    """Episodes of a store, with the rewards of a hidden task in place of the stored ones.

    A reward is summed over the control steps for which its action was held, exactly: a store of
    repeated actions keeps the physics of every control step. Rewards come from float32 physics and
    differ from those of the environment by rounding.

    Args:
        store: made with `keep_physics`; stays open while this is used.
        tasks: of its domain.
        told: append the parameter to the observations: an agent that need not find it out.
        held_bytes: bound of the memory for what rewards see.

    Raises:
        InputError: the store is of another domain or holds no physics.
    """

    def __init__(
        self,
        store: Store,
        tasks: HiddenTasks,
        *,
        told: bool = False,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        domain = task_spec(store.task).domain
        if tasks.domain != domain:
            raise InputError(
                f"{store.path}: holds episodes of {domain}; hidden tasks {tasks.text} need "
                f"{tasks.domain}: give another store"
            )
        store.physics(0)  # refuses a store without any
        self.store, self.tasks, self.told = store, tasks, told
        self._held: dict[int, np.ndarray] = {}
        self._bytes_left = held_bytes

    def under(self, parameter_D: np.ndarray) -> "HiddenTask":
        """Give the episodes as trajectories of one task."""
        return HiddenTask(self, np.asarray(parameter_D, np.float64))

    def training_tasks(self) -> "list[HiddenTask]":
        """Give the episodes as trajectories of each training parameter, for a `ChainSampler`."""
        return [self.under(parameter_D) for parameter_D in self.tasks.training_KD]

    def rewards(self, episode: int, parameter_D: np.ndarray) -> np.ndarray:
        """Compute what each action of an episode earns under a parameter, float32 [T]."""
        return self._scored(self._seen(episode), parameter_D)

    def returns(self, episodes: npt.ArrayLike, parameters_KD: np.ndarray) -> np.ndarray:
        """Compute the total reward of episodes under parameters, float64 [K, E].

        Equal to `total_reward` of the trajectories. Reads every episode once.
        """
        numbers = [int(episode) for episode in np.asarray(episodes)]
        returns_KE = np.empty((len(parameters_KD), len(numbers)))
        for column, episode in enumerate(numbers):
            seen_THF = self._seen(episode)
            for row, parameter_D in enumerate(parameters_KD):
                rewards_T = self._scored(seen_THF, parameter_D)
                returns_KE[row, column] = rewards_T.sum(dtype=np.float64)
        return returns_KE

    def units(self, returns_KE: np.ndarray, *, longest: int) -> Units:
        """Give the scales of a table of returns, and of observations as in the store.

        Args:
            returns_KE: of the training episodes under the training parameters.
            longest: steps of the longest training episode.
        """
        mean, std = self.store.observation_mean, self.store.observation_std
        if self.told:
            told_KD = self.tasks.training_KD.astype(np.float32)
            told_std_D = told_KD.std(axis=0)
            mean = np.concatenate([mean, told_KD.mean(axis=0)])
            std = np.concatenate([std, np.where(told_std_D < LEAST_STD, 1, told_std_D)])
        return_scale = float(np.abs(returns_KE).max()) or 1.0
        return Units(
            mean.astype(np.float32), std.astype(np.float32), return_scale, return_scale / longest
        )

    def _scored(self, seen_THF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
        T, H, F = seen_THF.shape
        rewards_R = self.tasks.score(seen_THF.reshape(T * H, F), parameter_D)
        return rewards_R.reshape(T, H).sum(axis=1).astype(np.float32)

    def _seen(self, episode: int) -> np.ndarray:
        """Give what rewards see after each control step, float64 [T, H, F]."""
        held = self._held.get(episode)
        if held is not None:
            return held
        physics_THP = self.store.physics(episode)
        T, H, P = physics_THP.shape
        actions_RA = np.repeat(self.store.trajectory(episode).actions, H, axis=0)
        seen_RF = self.tasks.seen(physics_THP.reshape(T * H, P).astype(np.float64), actions_RA)
        seen_THF = seen_RF.reshape(T, H, -1)
        if seen_THF.nbytes <= self._bytes_left:
            self._bytes_left -= seen_THF.nbytes
            self._held[episode] = seen_THF
        return seen_THF


class HiddenTask:
    """The episodes as trajectories of one of the hidden tasks: a source for `ChainSampler`."""

    def __init__(self, episodes: HiddenEpisodes, parameter_D: np.ndarray) -> None:
        self._episodes, self._parameter_D = episodes, parameter_D

    def trajectory(self, episode: int) -> Trajectory:
        """Read one episode, relabelled; with the parameter in its observations where it is told."""
        stored = self._episodes.store.trajectory(episode)
        relabelled = stored._replace(rewards=self._episodes.rewards(episode, self._parameter_D))
        if not self._episodes.told:
            return relabelled
        told_D = self._parameter_D.astype(np.float32)
        told_TD = np.tile(told_D, (len(stored.rewards), 1))
        return relabelled._replace(
            observations=np.concatenate([stored.observations, told_TD], axis=1),
            final_observation=np.concatenate([stored.final_observation, told_D]),
        )
