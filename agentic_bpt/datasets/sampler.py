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
    """B single decisions, and what came of each in the n decisions from it on."""

    observations_BO: np.ndarray
    actions_BA: np.ndarray
    rewards_B: np.ndarray
    """float32, discounted sum of n rewards, the first of them that of the action."""
    next_observations_BO: np.ndarray
    """n decisions later."""


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

    target_excess: float = 0.0
    """A chain's target is drawn above its best return, by up to this share of the largest return;
    0, as published, asks for exactly what was reached. An agent that has seen targets missed is not
    lost when it falls behind its own, or is asked for more than the data has."""

    def __post_init__(self):
        """Refuse unknown choices."""
        if self.trajectories < 1:
            raise InputError(f"trajectories must be at least 1, got {self.trajectories}")
        if not 0 <= self.target_excess < np.inf:
            raise InputError(f"target_excess must not be negative, got {self.target_excess}")
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
        source: gives trajectories by episode number. Several of them are several tasks: each chain
            draws one of them, all as likely, and has all its trajectories from it.
        episodes: the numbers to draw from (the training split).
        returns: total reward of each of these episodes, [E]; in each of several tasks, [K, E].
        longest: timesteps of the longest of these episodes; pads every batch to one shape.
        config: how chains are made.
        batch: chains in a batch, B.
        seed: with the step, all that a batch depends on.

    Raises:
        InputError: fewer episodes than trajectories in a chain.
    """

    def __init__(
        self,
        source: Trajectories | Sequence[Trajectories],
        episodes: npt.ArrayLike,
        *,
        returns: np.ndarray,
        longest: int,
        config: ChainConfig,
        batch: int,
        seed: int,
    ):
        self._sources = source if isinstance(source, Sequence) else [source]
        self._episodes = np.asarray(episodes)
        if len(self._episodes) < config.trajectories:
            raise InputError(
                f"a chain of {config.trajectories} different trajectories needs as many training "
                f"episodes, got {len(self._episodes)}: lower --trajectories or ingest more episodes"
            )
        self._returns_KE = np.atleast_2d(np.asarray(returns, np.float64))
        if config.completion == "reached" and (self._returns_KE < 0).any():
            raise InputError(
                f"a return is {self._returns_KE.min():g}: where rewards are negative a target is "
                "reached before anything is done; use --completion final"
            )
        self._config, self._batch, self._seed = config, batch, seed
        self._length = longest * config.trajectories

    def batch(self, step: int) -> ChainBatch:
        """Draw the batch of a training step: without replacement within a chain."""
        generator = np.random.default_rng([self._seed, step])
        chains = []
        for _ in range(self._batch):
            several = len(self._sources) > 1  # one task takes no draw: its batches stay as they are
            task = int(generator.integers(len(self._sources))) if several else 0
            count = self._config.trajectories
            if self._config.trajectory_count == "uniform":
                count = int(generator.integers(1, self._config.trajectories, endpoint=True))
            chosen = self._choose(generator, count, self._returns_KE[task])
            trajectories = [self._sources[task].trajectory(int(episode)) for episode in chosen]
            target = None
            if self._config.target_excess:
                most = self._config.target_excess * np.abs(self._returns_KE[task]).max()
                target = max(t.total_reward for t in trajectories) + generator.uniform(0, most)
            chains.append(
                chain_of_hindsight(
                    trajectories, completion=self._config.completion, target_return=target
                )
            )
        return pad_chains(chains, length=self._length, loss=self._config.loss)

    def _choose(
        self, generator: np.random.Generator, count: int, returns_E: np.ndarray
    ) -> np.ndarray:
        """Choose different episodes for one chain."""
        if self._config.sampling == "uniform":
            return generator.choice(self._episodes, size=count, replace=False)
        free_E = np.ones(len(self._episodes), bool)
        for wanted in generator.uniform(returns_E.min(), returns_E.max(), count):
            distance_E = np.where(free_E, np.abs(returns_E - wanted), np.inf)
            nearest = np.flatnonzero(distance_E == distance_E.min())
            one = generator.integers(len(nearest)) if len(nearest) > 1 else 0
            free_E[nearest[one]] = False
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
    """Draws single decisions from some episodes, held in memory; batches as in `ChainSampler`.

    Args:
        source: gives trajectories by episode number.
        episodes: the numbers to draw from.
        batch: decisions in a batch, B.
        seed: with the step, all that a batch depends on.
        return_steps: rewards n that are summed from a decision on. A decision with fewer before the
            end of its episode is not drawn. The end is a time limit and not the task's, so what
            follows the last decision is the final observation.
        discount: of the rewards, a decision.

    Raises:
        InputError: no episode has `return_steps` rewards.
    """

    def __init__(
        self,
        source: Trajectories,
        episodes: npt.ArrayLike,
        *,
        batch: int,
        seed: int,
        return_steps: int = 1,
        discount: float = 1.0,
    ):
        trajectories = [source.trajectory(int(episode)) for episode in np.asarray(episodes)]
        trajectories = [t for t in trajectories if len(t.rewards) >= return_steps]
        if not trajectories:
            raise InputError(
                f"a sum of {return_steps} rewards needs an episode of as many decisions, and none "
                "of the training episodes has them: lower return_steps or ingest longer episodes"
            )
        weights = discount ** np.arange(return_steps)
        rows, actions, rewards, first_row = [], [], [], 0
        for t in trajectories:
            count = len(t.rewards) - return_steps + 1
            rows.append(first_row + np.arange(count))
            actions.append(t.actions[:count])
            rewards.append(np.correlate(t.rewards.astype(np.float64), weights, mode="valid"))
            first_row += len(t.rewards) + 1
        self._observations_RO = np.concatenate(
            [part for t in trajectories for part in (t.observations, t.final_observation[None])]
        )
        # One entry a decision that can be drawn; `_rows_D` is where its observation stands.
        self._rows_D = np.concatenate(rows)
        self._actions_DA = np.concatenate(actions)
        self._rewards_D = np.concatenate(rewards).astype(np.float32)
        self._return_steps, self._batch, self._seed = return_steps, batch, seed

    def batch(self, step: int) -> TransitionBatch:
        """Draw the batch of a training step."""
        generator = np.random.default_rng([self._seed, step])
        drawn = generator.integers(len(self._actions_DA), size=self._batch)
        rows = self._rows_D[drawn]
        return TransitionBatch(
            self._observations_RO[rows],
            self._actions_DA[drawn],
            self._rewards_D[drawn],
            self._observations_RO[rows + self._return_steps],
        )


def best_episodes(returns_E: np.ndarray, episodes: npt.ArrayLike, *, fraction: float) -> np.ndarray:
    """Choose the best `fraction` of episodes by return, at least one, best first."""
    episodes = np.asarray(episodes)
    count = max(1, round(fraction * len(episodes)))
    order = np.argsort(-returns_E[episodes], kind="stable")
    return episodes[order[:count]]


def spaced_episodes(returns_E: np.ndarray, episodes: npt.ArrayLike, *, count: int) -> np.ndarray:
    """Choose `count` different episodes of evenly spaced returns up to the best, worst to best.

    As the chains of `ChainConfig.sampling` "spread" have them: by rank, most could be failures,
    which such chains hardly have.
    """
    episodes = np.asarray(episodes)
    returns, chosen = returns_E[episodes], []
    for share in np.arange(1, count + 1) / count:
        wanted = returns.min() + share * (returns.max() - returns.min())
        nearest = np.argsort(np.abs(returns - wanted), kind="stable")
        chosen.append(next(place for place in nearest if place not in chosen))
    return episodes[sorted(chosen, key=lambda place: returns[place])]
