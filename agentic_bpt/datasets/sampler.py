"""Training batches as a function of (seed, step) only: chains for transformers, steps for MLPs."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from agentic_bpt.datasets.hindsight import COMPLETIONS, Chain, chain_of_hindsight
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.errors import InputError

TRAJECTORY_COUNTS = ("uniform", "fixed")
SAMPLINGS = ("uniform", "spread")
LOSSES = ("all", "last")


class Trajectories(Protocol):
    """Whatever gives whole trajectories by episode number, such as an open store."""

    def trajectory(self, episode: int) -> Trajectory:
        """Read one episode."""
        ...


class ChainBatch(NamedTuple):
    """B packed chains, padded at the end to the same L timesteps; fields as in `Chain`."""

    observations_BLO: np.ndarray
    actions_BLA: np.ndarray
    rewards_BL: np.ndarray
    returns_to_go_BL: np.ndarray
    completions_BL: np.ndarray
    timesteps_BL: np.ndarray
    trajectories_BL: np.ndarray
    valid_BL: np.ndarray
    """bool, False where a chain is padded."""
    loss_BL: np.ndarray
    """bool, the timesteps whose action carries the loss; a subset of the valid ones."""


class TransitionBatch(NamedTuple):
    """B single steps."""

    observations_BO: np.ndarray
    actions_BA: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """How chains are drawn from a data set."""

    trajectories: int = 4
    """Largest number N of trajectories in a chain."""
    trajectory_count: str = "uniform"
    """How many a chain has: "uniform" draws from 1..N, N included, so that the agent also learns to
    act early in a chain; "fixed" always takes N."""
    sampling: str = "uniform"
    """Which episodes a chain has: "uniform" takes all as likely; "spread" draws returns evenly
    between the worst and the best and takes the nearest episodes, so that chains are wide and good
    episodes are not drowned where they are rare."""
    completion: str = "reached"
    """What the completion token holds: "reached" is 1 from the moment the rewards add up to the
    target return; "final" is 1 only at the last step of a trajectory that reached it. The authors'
    choice is not known. Training and acting use the same."""
    loss: str = "all"
    """Whose actions are imitated: those of "all" trajectories of a chain, or of the "last" (best)
    only. The authors' choice is not known; "all" learns from every token."""

    def __post_init__(self):
        """Refuse unknown choices."""
        if self.trajectories < 1:
            raise InputError(f"trajectories must be at least 1, got {self.trajectories}")
        for name, known in (
            ("trajectory_count", TRAJECTORY_COUNTS),
            ("sampling", SAMPLINGS),
            ("completion", COMPLETIONS),
            ("loss", LOSSES),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {known}, got {getattr(self, name)!r}")


class ChainSampler:
    """Draws batches of chains; two samplers of equal arguments give equal batches.

    Args:
        source: gives trajectories by episode number.
        episodes: the numbers to draw from (the training split).
        returns: total reward of each of these episodes.
        longest: timesteps of the longest of these episodes; pads every batch to one shape.
        config: how chains are made.
        batch: chains in a batch, B.
        seed: with the step, all that a batch depends on.

    Raises:
        InputError: fewer episodes than trajectories in a chain.
    """

    def __init__(
        self,
        source: Trajectories,
        episodes: npt.ArrayLike,
        *,
        returns: np.ndarray,
        longest: int,
        config: ChainConfig,
        batch: int,
        seed: int,
    ):
        self._source, self._episodes = source, np.asarray(episodes)
        if len(self._episodes) < config.trajectories:
            raise InputError(
                f"a chain of {config.trajectories} different trajectories needs as many training "
                f"episodes, got {len(self._episodes)}: lower --trajectories or ingest more episodes"
            )
        self._returns_E = np.asarray(returns, np.float64)
        self._config, self._batch, self._seed = config, batch, seed
        self._length = longest * config.trajectories

    def batch(self, step: int) -> ChainBatch:
        """Draw the batch of a training step: without replacement within a chain."""
        generator = np.random.default_rng([self._seed, step])
        chains = []
        for _ in range(self._batch):
            count = self._config.trajectories
            if self._config.trajectory_count == "uniform":
                count = int(generator.integers(1, self._config.trajectories, endpoint=True))
            chosen = self._choose(generator, count)
            trajectories = [self._source.trajectory(int(episode)) for episode in chosen]
            chains.append(chain_of_hindsight(trajectories, completion=self._config.completion))
        return pad_chains(chains, length=self._length, loss=self._config.loss)

    def _choose(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Choose different episodes for one chain."""
        if self._config.sampling == "uniform":
            return generator.choice(self._episodes, size=count, replace=False)
        free_E = np.ones(len(self._episodes), bool)
        for wanted in generator.uniform(self._returns_E.min(), self._returns_E.max(), count):
            distance_E = np.where(free_E, np.abs(self._returns_E - wanted), np.inf)
            free_E[np.argmin(distance_E)] = False
        return self._episodes[~free_E]


def pad_chains(chains: Sequence[Chain], *, length: int, loss: str = "all") -> ChainBatch:
    """Pad packed chains at the end to `length` timesteps and stack them."""
    fields = {name: [] for name in ChainBatch._fields}
    for chain in chains:
        steps = len(chain.rewards_L)
        padding = length - steps
        for name, values in zip(ChainBatch._fields, chain, strict=False):
            more = ((0, padding),) + ((0, 0),) * (values.ndim - 1)
            fields[name].append(np.pad(values, more))
        valid = np.arange(length) < steps
        fields["valid_BL"].append(valid)
        in_last = fields["trajectories_BL"][-1] == chain.trajectories_L[-1]
        fields["loss_BL"].append(valid & in_last if loss == "last" else valid)
    return ChainBatch(**{name: np.stack(values) for name, values in fields.items()})


class TransitionSampler:
    """Draws single steps from some episodes, held in memory; batches as in `ChainSampler`."""

    def __init__(self, source: Trajectories, episodes: npt.ArrayLike, *, batch: int, seed: int):
        trajectories = [source.trajectory(int(episode)) for episode in np.asarray(episodes)]
        self._observations_RO = np.concatenate([t.observations for t in trajectories])
        self._actions_RA = np.concatenate([t.actions for t in trajectories])
        self._batch, self._seed = batch, seed

    def batch(self, step: int) -> TransitionBatch:
        """Draw the batch of a training step."""
        generator = np.random.default_rng([self._seed, step])
        rows = generator.integers(len(self._actions_RA), size=self._batch)
        return TransitionBatch(self._observations_RO[rows], self._actions_RA[rows])


def best_episodes(returns_E: np.ndarray, episodes: npt.ArrayLike, *, fraction: float) -> np.ndarray:
    """Choose the best `fraction` of episodes by return, at least one, best first."""
    episodes = np.asarray(episodes)
    count = max(1, round(fraction * len(episodes)))
    order = np.argsort(-returns_E[episodes], kind="stable")
    return episodes[order[:count]]
