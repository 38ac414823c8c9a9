"""Bytes of a training step's temporaries by a fitted formula, for when no compiler can be asked.

A sum of terms, each the bytes of something a step holds, times how many of it the compiler keeps at
its peak. `agentic_bpt.planner.fit` makes the coefficients and measures the errors.
"""

from typing import Any, NamedTuple

from agentic_bpt.blockwise.memory import tree_bytes
from agentic_bpt.experiment import Experiment
from agentic_bpt.planner.step import EpisodeShape, batch_shape, positions_of, transformer_of

TERMS = (
    "layer inputs",
    "attention outputs",
    "sequences",
    "sequences in float32 products",
    "heads",
    "batch",
    "gradients",
    "scores",
    "dropped scores",
)
"""Names of the terms of `terms`, in order."""


class Fit(NamedTuple):
    """Coefficients of the terms for one platform and scheme, and how far off they were."""

    coefficients: tuple[float, ...]
    error: float
    """Largest relative error of the total over the points it was checked on."""


def terms(experiment: Experiment, episode: EpisodeShape, params: Any) -> tuple[float, ...]:
    """Give the bytes of each term; chains are worked on `batch / accumulate` at a time."""
    core = transformer_of(experiment).model.core
    chains = experiment.batch // experiment.accumulate
    positions = positions_of(experiment, episode)
    part = batch_shape(
        chains, transformer_of(experiment).chain.trajectories * episode.steps, episode
    )
    sequence = 4 * chains * positions * core.width
    scores = 4 * chains * core.heads * positions**2
    return (
        core.layers * sequence,
        core.layers * sequence * (not core.recompute_attention),
        sequence,
        sequence * (core.dtype != "bfloat16"),
        4 * chains * positions * core.heads,
        tree_bytes(part),
        tree_bytes(params),
        scores * (core.scheme == "vanilla"),
        scores * (core.scheme == "vanilla" and core.dropout > 0),
    )


def temporaries(experiment: Experiment, episode: EpisodeShape, params: Any, platform: str) -> int:
    """Estimate the bytes that live within a step on a platform."""
    fit = FITS[platform, transformer_of(experiment).model.core.scheme]
    found = terms(experiment, episode, params)
    return round(sum(n * size for n, size in zip(fit.coefficients, found, strict=True)))


def worst_error(platform: str, scheme: str) -> float:
    """Give the largest relative error of the total seen when the formula was checked."""
    return FITS[platform, scheme].error


FITS: dict[tuple[str, str], Fit] = {
    ("cuda", "blockwise"): Fit((1.128, 1.017, 4.295, 1.044, 7.791, 3.014, 4.296, 0.0, 0.0), 0.031),
    ("cuda", "memory_efficient"): Fit(
        (0.899, 0.0, 19.282, 2.193, 41.852, 3.128, 7.652, 0.0, 0.0), 0.275
    ),
    ("cuda", "vanilla"): Fit((0.0, 5.65, 0.0, 9.006, 1295.098, 0.0, 0.0, 2.268, 0.688), 0.269),
    ("cpu", "blockwise"): Fit((0.864, 1.056, 5.677, 0.0, 1.884, 10.466, 4.337, 0.0, 0.0), 0.189),
    ("cpu", "memory_efficient"): Fit((0.0, 1.056, 28.336, 0.241, 0.0, 0.0, 3.502, 0.0, 0.0), 0.023),
    ("cpu", "vanilla"): Fit((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.861, 0.0), 0.372),
    ("tpu", "blockwise"): Fit((0.0, 1.631, 3.127, 0.754, 0.0, 102.511, 11.887, 0.0, 0.0), 0.348),
    ("tpu", "memory_efficient"): Fit((0.0, 1.86, 16.006, 0.0, 0.0, 13.785, 0.0, 0.0, 0.0), 0.352),
    ("tpu", "vanilla"): Fit((0.0, 0.0, 0.0, 7.636, 0.0, 204.592, 0.0, 2.211, 0.0), 1.27),
}
"""By platform and scheme, from the points and the fit of `agentic_bpt.planner.fit`, jax 0.10.2."""
