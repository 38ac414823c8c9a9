"""Shows that the three schemes train alike: the same steps of plain SGD, weight by weight."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.datasets.store import Store
from agentic_bpt.experiment import Experiment, replace_in
from agentic_bpt.run import make_parts

STEPS = 20
RATE = 0.05
"""Of plain SGD, constant. Adam would hide an error of scale in a gradient, and enlarge rounding."""
TRAJECTORIES = 2
"""Of a chain here: two suffice for attention across episodes, and full attention stays quick."""
BOUND = 1e-3
"""Largest distance between the ends of two runs, in units of the distance moved."""


def scheme_distances(experiment: Experiment, store_path: Path) -> dict[str, float]:
    """Train 20 steps in each scheme, without dropout, from the same start on the same batches.

    Gives for each scheme the distance between where it and `blockwise` end, divided by the
    distance that `blockwise` moved; at most `BOUND` where the schemes compute the same.
    """
    experiment = replace_in(experiment, ("batch",), 1)
    experiment = replace_in(experiment, ("agent", "chain", "trajectories"), TRAJECTORIES)
    experiment = replace_in(experiment, ("agent", "model", "core", "dropout"), 0.0)
    ends, start = {}, None
    with Store.open(store_path) as store:
        for scheme in SCHEMES:
            parts = make_parts(
                replace_in(experiment, ("agent", "model", "core", "scheme"), scheme), store
            )
            start = parts.params
            ends[scheme] = trained(parts.loss, parts.params, parts.batch_at)
    moved = distance(ends["blockwise"], start)
    return {scheme: distance(end, ends["blockwise"]) / moved for scheme, end in ends.items()}


def trained(loss: Any, params: Any, batch_at: Any) -> Any:
    """Take `STEPS` steps of plain SGD on the mean loss."""

    @jax.jit
    def step(params: Any, batch: Any) -> Any:
        def mean(params: Any) -> jax.Array:
            total, count = loss(params, batch, None)
            return total / count

        return jax.tree.map(lambda w, g: w - RATE * g, params, jax.grad(mean)(params))

    for number in range(STEPS):
        params = step(params, batch_at(number))
    return params


def distance(a: Any, b: Any) -> float:
    """Give the Euclidean distance between two sets of weights."""
    squares = jax.tree.map(partial(_squared, dtype=np.float64), a, b)
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


def _squared(a: jax.Array, b: jax.Array, *, dtype: Any) -> float:
    return float(np.square(np.asarray(a, dtype) - np.asarray(b, dtype)).sum())
