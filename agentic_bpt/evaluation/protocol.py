"""What the returns of chains of trajectories say: first, last, mean and max of n, with intervals.

Every method is summed up by all four protocols, since max of n rewards luck as well as skill: the
best of 32 uniformly random jaco episodes is 130, above every jaco entry of the published table.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

PROTOCOLS = ("first", "last", "mean", "max")

# Fewer chains a training than this make an interval too narrow to be believed: reports warn.
MIN_CHAINS = 5

# Fewer trainings than this, and reports say how seldom a bootstrap interval then holds the truth.
FEW_SEEDS = 5
FEW_SEEDS_NOTE = (
    "Intervals over few trainings are too narrow: where trainings differ more than chains do, one "
    "of 95 % holds the true mean in about 65 % of cases with 2 trainings, 75 % with 3."
)

# (uniform random policy, reference) in raw returns. Random: measured over 100 episodes. Reference:
# TD-MPC2 trained online for 4M steps; jaco has none, so its bound of 250 stands instead, and its
# four targets were measured at 10-12 with a spread of 29, so one value serves all four.
_JACO_RANDOM, _JACO_BOUND = 11.0, 250.0
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "walker_stand": (127.3, 993.0),
    "walker_walk": (32.6, 981.0),
    "walker_run": (22.6, 877.0),
    "cheetah_run": (3.7, 896.0),
    "cartpole_swingup": (27.1, 877.0),
    "jaco_reach_top_left": (_JACO_RANDOM, _JACO_BOUND),
    "jaco_reach_top_right": (_JACO_RANDOM, _JACO_BOUND),
    "jaco_reach_bottom_left": (_JACO_RANDOM, _JACO_BOUND),
    "jaco_reach_bottom_right": (_JACO_RANDOM, _JACO_BOUND),
}


class Interval(NamedTuple):
    """A value and its bootstrap interval; the ends are None where one number stands alone."""

    value: float
    low: float | None
    high: float | None


def reduce_chains(returns_SCN: np.ndarray, protocol: str) -> np.ndarray:
    """Turn the N returns of every chain into one number: float64 [seeds, chains].

    Raises:
        ValueError: The protocol is not one of `PROTOCOLS`.
    """
    match protocol:
        case "first":
            return returns_SCN[..., 0]
        case "last":
            return returns_SCN[..., -1]
        case "mean":
            return returns_SCN.mean(axis=-1)
        case "max":
            return returns_SCN.max(axis=-1)
    raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")


def chain_scores(
    returns_CN: np.ndarray, base_C: np.ndarray, best_C: np.ndarray
) -> np.ndarray | None:
    """Score the rollouts of chains that each have a task of their own: float64 [C, N].

    0 is what a random policy has in the chain's task. The unit is a hundredth of the mean distance
    from there to the best of the data over the chains: a task in which random acting is near it
    must not outweigh the others. None where the data is no better than random on average.
    """
    distance = float(np.mean(best_C - base_C))
    return None if distance <= 0 else 100 * (returns_CN - base_C[:, None]) / distance


def interquartile_mean(values: np.ndarray, *, axis: int | None = None) -> np.ndarray:
    """Average the middle half: the lowest and the highest quarter (rounded down) are left out.

    `axis=None` pools all values. The same trimming as `scipy.stats.trim_mean(values, 0.25)`, the
    aggregate recommended by Agarwal et al. 2021 (arXiv 2108.13264, section 4.3).
    """
    pooled = np.ravel(values) if axis is None else np.moveaxis(np.asarray(values), axis, -1)
    count = pooled.shape[-1]
    cut = count // 4
    return np.sort(pooled, axis=-1)[..., cut : count - cut].mean(axis=-1)


def _mean(values: np.ndarray, *, axis: int) -> np.ndarray:
    return values.mean(axis=axis)


def bootstrap_interval(
    values_SC: np.ndarray,
    statistic: Callable[..., np.ndarray] = _mean,
    *,
    groups_C: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """Give a statistic of one number a chain, with its percentile bootstrap interval.

    Seeds are drawn with replacement, and chains too, the same ones for all seeds: chain c begins
    alike whatever was trained. So the interval holds both kinds of chance. With one seed only the
    chains are drawn: it then says nothing of what another training would give.

    Args:
        values_SC: one number a seed and chain.
        statistic: `statistic(values, axis=-1)` sees seeds and chains pooled.
        groups_C: what each chain belongs to, where chains are not alike by design: as many of each
            group are drawn as there are.
        resamples: draws.
        seed: of the draws.
        confidence: share of the draws between the ends.

    Raises:
        ValueError: Not [seeds, chains] with one or more of each, a value that is not finite, or
            resamples or confidence out of range.
    """
    values_SC = np.asarray(values_SC, dtype=np.float64)
    if values_SC.ndim != 2 or values_SC.size == 0:
        raise ValueError(f"values must be [seeds, chains], none empty, got {values_SC.shape}")
    if not np.isfinite(values_SC).all():
        raise ValueError(
            f"returns must be finite, got {np.sum(~np.isfinite(values_SC))} that aren't"
        )
    if resamples < 1 or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"resamples must be >= 1 and confidence in (0, 1), got {resamples} and {confidence}"
        )
    S, C = values_SC.shape
    value = float(statistic(values_SC.reshape(-1), axis=-1))
    if S * C == 1:
        return Interval(value, None, None)
    generator = np.random.default_rng(seed)
    seeds_RS = generator.integers(S, size=(resamples, S))
    chains_RC = np.empty((resamples, C), int)
    groups = [0] * C if groups_C is None else list(groups_C)
    for group in dict.fromkeys(groups):
        of_group = np.flatnonzero([one == group for one in groups])
        chains_RC[:, of_group] = generator.choice(of_group, (resamples, len(of_group)))
    drawn_RSC = values_SC[seeds_RS[:, :, None], chains_RC[:, None]]
    statistics_R = statistic(drawn_RSC.reshape(resamples, S * C), axis=-1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistics_R, (tail, 1.0 - tail))
    return Interval(value, float(low), float(high))


def _checked(returns_SCN: np.ndarray) -> np.ndarray:
    returns_SCN = np.asarray(returns_SCN, dtype=np.float64)
    if returns_SCN.ndim != 3 or returns_SCN.size == 0:
        raise ValueError(
            f"returns must be [seeds, chains, trajectories], none empty, got {returns_SCN.shape}"
        )
    return returns_SCN


def summarize(
    returns_SCN: np.ndarray, *, resamples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> dict[str, Interval]:
    """Give first, last, mean and max of n, each a mean over seeds and chains with its interval.

    Raises:
        ValueError: As `bootstrap_interval`, or not [seeds, chains, trajectories].
    """
    returns_SCN = _checked(returns_SCN)
    return {
        protocol: bootstrap_interval(
            reduce_chains(returns_SCN, protocol),
            resamples=resamples,
            seed=seed,
            confidence=confidence,
        )
        for protocol in PROTOCOLS
    }


def along_the_chain(returns_SCN: np.ndarray, *, resamples: int = 2000) -> list[Interval]:
    """Give the mean return of the 1st, 2nd, ... nth trajectory of a chain, each with its interval.

    Raises:
        ValueError: As `summarize`.
    """
    returns_SCN = _checked(returns_SCN)
    return [
        bootstrap_interval(returns_SCN[..., n], resamples=resamples)
        for n in range(returns_SCN.shape[-1])
    ]


def normalized_score(task: str, raw: float) -> float | None:
    """Place a raw return between random (0) and the reference (100); None for a task without one.

    100 (R - random) / (reference - random). It stands beside the raw return, never alone.
    """
    if task not in REFERENCE_RETURNS:
        return None
    random, reference = REFERENCE_RETURNS[task]
    return 100.0 * (raw - random) / (reference - random)
