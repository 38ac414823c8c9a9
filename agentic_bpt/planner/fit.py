"""Fit the formula to compiled values and check it on others: `python -m agentic_bpt.planner.fit`.

Prints the table that stands in `formula.py`. Needs the extras gpu-target and tpu-target, and about
half an hour of one core; what was compiled before is not compiled again.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.blockwise.memory import missing_compiler
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, override
from agentic_bpt.methods import preset_of
from agentic_bpt.planner.formula import TERMS, Fit, terms
from agentic_bpt.planner.prediction import compiled_prediction
from agentic_bpt.planner.step import EpisodeShape, training_step

EPISODE = EpisodeShape(observation_width=24, action_width=6, steps=1000)
"""Of the walker tasks."""
VANILLA_SHARE = 8
"""Full attention is asked for so many times fewer trajectories: where it can fit at all."""
FIT_POINTS: tuple[dict[str, Any], ...] = (
    {"trajectories": 8},
    {"trajectories": 32},
    {"trajectories": 128},
    {"trajectories": 32, "batch": 16},
    {"trajectories": 32, "layers": 6},
    {"trajectories": 32, "width": 256},
    {"trajectories": 32, "heads": 4},
    {"trajectories": 32, "dtype": "bfloat16"},
    {"trajectories": 32, "recompute_attention": True},
    {"trajectories": 32, "layout": "joint", "batch": 16, "dropout": 0.0},
)
"""Changes to the paper's configuration at batch 1 that the coefficients are fitted to."""
CHECK_POINTS: tuple[dict[str, Any], ...] = (
    {"trajectories": 64, "batch": 4, "layers": 4, "width": 64, "heads": 2},
    {
        "trajectories": 100,
        "batch": 8,
        "accumulate": 4,
        "heads": 4,
        "width": 256,
        "dtype": "bfloat16",
    },
    {
        "trajectories": 16,
        "layout": "joint",
        "batch": 64,
        "layers": 2,
        "width": 64,
        "dropout": 0.0,
    },
)
"""Those that it is only checked on, each on another device."""
_HERE = Device(name="cpu", platform="cpu", usable_bytes=0)
WHERE: dict[str, tuple[Device, tuple[Device, ...]]] = {
    "cuda": (
        DEVICES["a100-80gb"],
        (DEVICES["h100-80gb"], DEVICES["l4"], DEVICES["rtx4090"]),
    ),
    "tpu": (DEVICES["tpu-v5p"], (DEVICES["tpu-v4"], DEVICES["tpu-v5e"], DEVICES["tpu-v6e"])),
    "cpu": (_HERE, (_HERE, _HERE, _HERE)),
}
"""The device of the fit, and those of the check."""
_CORE = ("agent", "model", "core")
_PLACES = (_CORE, ("agent", "model"), ("agent", "chain"), ())


class Point(NamedTuple):
    """One compiled step."""

    terms: tuple[float, ...]
    kept: int
    """State and batch: counted, not fitted."""
    temporaries: int


def experiment_at(scheme: str, changes: dict[str, Any]) -> Experiment:
    """Make the paper's configuration at batch 1 with changes."""
    changes = {"batch": 1, **changes, "scheme": scheme}
    if scheme == "vanilla":
        changes["trajectories"] = max(1, changes["trajectories"] // VANILLA_SHARE)
    experiment = preset_of("at", "paper")
    for name, value in changes.items():
        experiment = override(experiment, name, _PLACES, value)
    return experiment


def compiled_point(scheme: str, changes: dict[str, Any], device: Device) -> Point:
    """Compile one point.

    Raises:
        InputError: the compiler is not there, or did not answer.
    """
    install = missing_compiler(device)
    if install is not None:
        raise InputError(f"the formula is fitted to compiled values: {install}")
    experiment = experiment_at(scheme, changes)
    found = compiled_prediction(experiment, EPISODE, device)
    if found.source != "compiled":
        raise InputError(f"{device.name}, {scheme}, {changes}: {found.note}")
    params = training_step(experiment, EPISODE).state.params
    kept = found.parameters_and_optimizer + found.batch
    return Point(terms(experiment, EPISODE, params), kept, found.temporaries)


def fit_points(points: list[Point], check: list[Point]) -> Fit:
    """Find the coefficients >= 0 of least relative error of the total, and the worst of a check."""
    totals = np.array([point.kept + point.temporaries for point in points])
    rows = np.array([point.terms for point in points]) / totals[:, None]
    scale = rows.max(axis=0) + np.finfo(float).tiny
    wanted = np.array([point.temporaries for point in points]) / totals
    found = nnls(rows / scale, wanted)[0] / scale
    coefficients = tuple(round(float(value), 3) for value in found)
    errors = [
        abs(point.kept + np.dot(coefficients, point.terms) - point.kept - point.temporaries)
        / (point.kept + point.temporaries)
        for point in check
    ]
    return Fit(coefficients, round(float(max(errors)), 3))


def refit(platform: str, scheme: str) -> Fit:
    """Compile all points of a platform and scheme, fit, and check.

    Raises:
        InputError: a compiler is missing.
    """
    fitted, checked = WHERE[platform]
    points = [
        compiled_point(scheme, changes, fitted)
        for changes in FIT_POINTS
        if scheme == "blockwise" or "recompute_attention" not in changes
    ]
    check = [
        compiled_point(scheme, changes, device)
        for changes, device in zip(CHECK_POINTS, checked, strict=True)
    ]
    return fit_points(points, points + check)


def main() -> None:
    """Print the table of `formula.FITS`."""
    print(f"# {', '.join(TERMS)}")
    for platform in WHERE:
        for scheme in SCHEMES:
            fit = refit(platform, scheme)
            values = f"{fit.coefficients}, {fit.error}"
            print(f"    {(platform, scheme)}: Fit({values}),", flush=True)


if __name__ == "__main__":
    main()
