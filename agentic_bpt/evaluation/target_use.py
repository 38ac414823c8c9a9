"""Whether the return asked for is one that the data knows, and whether the return follows it."""

import dataclasses
from typing import Any

import numpy as np

from agentic_bpt.datasets.hindsight import is_complete
from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.protocol import bootstrap_interval

NEAR = 0.05
"""Relative; a target so near to the one asked counts as the same."""

ROUNDING = 1e-6
"""Relative; the best return itself, written down and read again, is not above the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AskedTarget:
    """A return that the agent was asked for, among the targets it was trained with."""

    target: float
    """Return asked for."""
    quantile: float
    """Share of the training chains whose target, the return-to-go at timestep 0, is no larger."""
    near: float
    """Share of the training chains whose target is within `NEAR` of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationUse:
    """What one result file says; N trajectories in a row, K targets."""

    file: str
    """Name of the result file."""
    steps: int | None
    """Updates the agent had when it was evaluated."""
    target: float | None
    """Return asked for; None where the agent is not told one."""
    return_N: list[float]
    """Mean return of the 1st, 2nd, ... trajectory, under that target."""
    random: float
    """Mean return of the uniform random policy beside it."""
    reached_N: list[float] | None
    """Share of the chains whose 1st, 2nd, ... trajectory reached that target."""
    target_K: list[float]
    """All targets asked for, ascending."""
    return_K: list[float]
    """Mean return under each."""
    slope: float | None
    """How much the mean return grows when the target grows by 1, by least squares; 1 follows it.
    Over the targets that the data reaches, if there are two; None with one target."""
    slope_low: float | None
    """Lower end of its 95 % bootstrap interval over chains."""
    slope_high: float | None
    """Upper end."""

    @property
    def slope_text(self) -> str:
        """Write the slope with its interval; it must be there."""
        if self.slope_low is None or self.slope_high is None:
            return f"{self.slope:.2f} (one chain, no interval)"
        return f"{self.slope:.2f} [{self.slope_low:.2f}, {self.slope_high:.2f}]"


class _ReturnsAlone:
    """Stands for a store where only returns matter: every episode is one step that earns all."""

    def __init__(self, returns_E: np.ndarray):
        self._returns_E = returns_E

    def trajectory(self, episode: int) -> Trajectory:
        """Make up the episode."""
        nothing = np.zeros((1, 0), np.float32)
        rewards = self._returns_E[episode : episode + 1].astype(np.float32)
        return Trajectory(nothing, nothing, rewards, nothing[0])


def chain_targets(
    returns_E: np.ndarray, *, config: ChainConfig, chains: int, seed: int
) -> np.ndarray:
    """Draw the target returns [chains] of training chains as the sampler does, reading no data."""
    sampler = ChainSampler(
        _ReturnsAlone(returns_E),
        np.arange(len(returns_E)),
        returns=returns_E,
        longest=1,
        config=config,
        batch=chains,
        seed=seed,
    )
    return sampler.batch(0).returns_to_go_BL[:, 0].astype(np.float64)


def place_target(target: float, targets_C: np.ndarray) -> AskedTarget:
    """Place a return asked for among the targets of training chains."""
    slack = ROUNDING * abs(target)
    return AskedTarget(
        target=target,
        quantile=float((targets_C <= target + slack).mean()),
        near=float((np.abs(targets_C - target) <= NEAR * abs(target) + slack).mean()),
    )


def describe_evaluation(
    *,
    file: str,
    steps: int | None,
    targets_K: list[float] | None,
    returns_KCN: np.ndarray,
    random_CN: np.ndarray,
    best_return: float,
    completion: str,
) -> EvaluationUse:
    """Say what an evaluation found; its first condition is the one that a table shows.

    `targets_K` is None where the agent is told no target; `best_return` is the data's.
    """
    fields: dict[str, Any] = {
        "file": file,
        "steps": steps,
        "return_N": returns_KCN[0].mean(axis=0).tolist(),
        "random": float(random_CN.mean()),
    }
    if targets_K is None:
        nothing: dict[str, Any] = dict.fromkeys(
            ("target", "reached_N", "slope", "slope_low", "slope_high")
        )
        return EvaluationUse(**fields, **nothing, target_K=[], return_K=[])
    reached_CN = is_complete(returns_KCN[0], targets_K[0], last=True, completion=completion)
    order = np.argsort(targets_K)
    sorted_K, sorted_KCN = np.asarray(targets_K)[order], returns_KCN[order]
    slope, low, high = _slope(sorted_K, sorted_KCN.mean(axis=2), best_return)
    return EvaluationUse(
        **fields,
        target=targets_K[0],
        reached_N=reached_CN.mean(axis=0).tolist(),
        target_K=sorted_K.tolist(),
        return_K=sorted_KCN.mean(axis=(1, 2)).tolist(),
        slope=slope,
        slope_low=low,
        slope_high=high,
    )


def _slope(
    targets_K: np.ndarray, returns_KC: np.ndarray, best_return: float
) -> tuple[float | None, float | None, float | None]:
    """Give the slope of return over target with its interval; targets are ascending."""
    known_K = targets_K <= best_return + ROUNDING * abs(best_return)
    if len(np.unique(targets_K[known_K])) >= 2:  # above the data no return can follow
        targets_K, returns_KC = targets_K[known_K], returns_KC[known_K]
    if len(np.unique(targets_K)) < 2:
        return None, None, None
    centred_K = targets_K - targets_K.mean()
    # Least squares is linear in the returns: the slope of the means is the mean of the slopes.
    slopes_C = centred_K @ returns_KC / (centred_K @ centred_K)
    return bootstrap_interval(slopes_C[None])
