"""How an agent's actions compare with those in chains of its data: errors, bounds and units."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from agentic_bpt.datasets.hindsight import Chain
from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.evaluation.policy import Policy
from agentic_bpt.models.tokens import Scales
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformer, timesteps_of

ChainAt = Callable[[int], ChainBatch]
"""Draws the chain of a number: a batch of one."""

Predict = Callable[[ChainBatch], np.ndarray]
"""Predicts the actions [L, A] of a batch of one chain; those of padding are not looked at."""

BOUND_MARGIN = 1e-3
"""An action so near to +-1 counts as at its bound: tanh never gives 1 itself."""

FAR_DEVIATIONS = 5.0
"""Standard deviations; beyond them lie 6 in ten million numbers of a normal distribution."""

RIDGE = 1e-3
"""Penalty of the linear baseline a row: observations that repeat each other have no blow-up, and a
weight that the data fixes shrinks by a thousandth."""


class Baselines(NamedTuple):
    """Two ways to act that need no network."""

    mean_A: np.ndarray
    """float64, the mean action."""
    weights_PA: np.ndarray
    """float64 [O + 1, A], of an observation in standard deviations and a constant."""

    def linear(self, standard_LO: np.ndarray) -> np.ndarray:
        """Predict actions [L, A], kept in [-1, 1] as an agent's are."""
        return np.clip(_with_constant(standard_LO) @ self.weights_PA, -1.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainMeasures:
    """What was measured on chains of one split; N positions of a trajectory in its chain."""

    agent_N: list[float]
    """Mean squared error of the agent's actions, mean over action dimensions."""
    mean_N: list[float]
    """The same of the mean action of the training split."""
    linear_N: list[float]
    """The same of the linear baseline."""
    at_bounds: float
    """Share of the numbers in the agent's actions that lie at a bound (`BOUND_MARGIN`)."""
    data_at_bounds: float
    """The same of the data's actions."""
    far_O: list[float]
    """Share of each observation that lies beyond `FAR_DEVIATIONS`."""
    constant: list[int]
    """Numbers of the observations that never change in these chains."""
    completed_timesteps_N: list[float]
    """Share of the timesteps whose completion token is 1."""
    completed_trajectories_N: list[float]
    """Share of the trajectories with such a timestep."""


def chain_predictor(model: TrajectoryTransformer, params: Any, scales: Scales) -> Predict:
    """Predict by a trajectory transformer that sees the whole chain."""
    apply = jax.jit(
        lambda params, batch: model.apply(params, timesteps_of(batch), batch.valid_BL, scales)
    )
    return lambda batch: np.asarray(apply(params, batch))[0]


def reactive_predictor(policy: Policy) -> Predict:
    """Predict by a policy that looks at one observation at a time."""
    return lambda batch: np.asarray(policy.act(batch.observations_BLO[0]))


def unpadded(batch: ChainBatch) -> Chain:
    """Give the one chain of a batch, without its padding."""
    kept_L = batch.valid_BL[0]
    return Chain(*(field[0, kept_L] for field in batch[: len(Chain._fields)]))


def fit_baselines(chain_at: ChainAt, numbers: Iterable[int], scales: Scales) -> Baselines:
    """Fit on the timesteps of training chains that carry the loss: what the agent learns from.

    The linear baseline is behaviour cloning by ridge regression of the action on the observation:
    the simplest that can fail, and no training of its own decides how good it is.
    """
    gram_PP, moments_PA = np.zeros(()), np.zeros(())
    for number in numbers:
        batch = chain_at(number)
        counted_L = batch.loss_BL[0]
        standard_TO = _standardized(batch.observations_BLO[0, counted_L], scales)
        features_TP = _with_constant(standard_TO)
        gram_PP = gram_PP + features_TP.T @ features_TP
        moments_PA = moments_PA + features_TP.T @ batch.actions_BLA[0, counted_L]
    rows = gram_PP[-1, -1]
    penalty_P = np.full(len(gram_PP), RIDGE * rows)
    penalty_P[-1] = 0.0  # the constant is free: with no weights it is the mean action
    weights_PA = np.linalg.solve(gram_PP + np.diag(penalty_P), moments_PA)
    return Baselines(moments_PA[-1] / rows, weights_PA)


def measure_chains(
    predict: Predict,
    chain_at: ChainAt,
    *,
    chains: int,
    trajectories: int,
    baselines: Baselines,
    scales: Scales,
) -> ChainMeasures:
    """Measure chains 0, 1, ... of a split, each of so many trajectories, one at a time."""
    sums: dict[str, Any] = defaultdict(float)
    first_O = chain_at(0).observations_BLO[0, 0]
    for number in range(chains):
        batch = chain_at(number)
        chain = unpadded(batch)
        predicted_LA = predict(batch)[batch.valid_BL[0]]
        standard_LO = _standardized(chain.observations_LO, scales)
        by_position = partial(np.bincount, chain.trajectories_L, minlength=trajectories)
        for name, guess in (
            ("agent", predicted_LA),
            ("mean", baselines.mean_A),
            ("linear", baselines.linear(standard_LO)),
        ):
            sums[name] += by_position(np.square(guess - chain.actions_LA).mean(axis=1))
        completed_N = by_position(chain.completions_L)
        sums["timesteps"] += by_position()
        sums["completed timesteps"] += completed_N
        sums["completed trajectories"] += completed_N > 0
        sums["at bounds"] += _at_bounds(predicted_LA)
        sums["data at bounds"] += _at_bounds(chain.actions_LA)
        sums["far"] += (np.abs(standard_LO) > FAR_DEVIATIONS).sum(axis=0)
        sums["changed"] += (chain.observations_LO != first_O).sum(axis=0)
    timesteps_N = sums["timesteps"]
    timesteps = timesteps_N.sum()
    return ChainMeasures(
        agent_N=(sums["agent"] / timesteps_N).tolist(),
        mean_N=(sums["mean"] / timesteps_N).tolist(),
        linear_N=(sums["linear"] / timesteps_N).tolist(),
        at_bounds=float(sums["at bounds"] / timesteps),
        data_at_bounds=float(sums["data at bounds"] / timesteps),
        far_O=(sums["far"] / timesteps).tolist(),
        constant=np.flatnonzero(sums["changed"] == 0).tolist(),
        completed_timesteps_N=(sums["completed timesteps"] / timesteps_N).tolist(),
        completed_trajectories_N=(sums["completed trajectories"] / chains).tolist(),
    )


def _standardized(observations_LO: np.ndarray, scales: Scales) -> np.ndarray:
    """Give observations in standard deviations of the training split, float64."""
    mean_O = np.asarray(scales.observation_mean_O, np.float64)
    return (observations_LO - mean_O) / np.asarray(scales.observation_std_O, np.float64)


def _with_constant(standard_LO: np.ndarray) -> np.ndarray:
    return np.concatenate([standard_LO, np.ones((len(standard_LO), 1))], axis=1)


def _at_bounds(actions_LA: np.ndarray) -> float:
    """Sum over timesteps the share of the action's numbers that lie at a bound."""
    return float((np.abs(actions_LA) >= 1.0 - BOUND_MARGIN).mean(axis=1).sum())
