"""A user's own hidden tasks: a Python file with a reward and the parameters that it takes.

The file is code of whoever gives it on the command line, and is run. It has

- `DOMAIN`, ExoRL's word for the body, such as "walker";
- `PARAMETERS`, numbers [K] or [K, D], drawn from in training;
- `HELD_OUT`, numbers [H] or [H, D], for evaluation, none of them in `PARAMETERS`;
- a function `(physics_RP, parameter) -> rewards [R]` of float64 physics states (positions,
  velocities, activations, as MuJoCo has them) after each control step, and of one parameter [D].
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from agentic_bpt.environments.tasks import DOMAINS
from agentic_bpt.errors import InputError


class RewardFile(NamedTuple):
    """What such a file says."""

    domain: str
    training_KD: np.ndarray
    held_out_KD: np.ndarray
    reward: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """(physics_RP, parameter_D) -> float64 [R]; refuses what is not as many finite numbers."""


def read_reward_file(path: Path, function: str) -> RewardFile:
    """Run a user's file and check what it defines.

    Raises:
        InputError: naming the file, what is wrong in it and what it should be.
    """
    module = _run(path)
    domain = getattr(module, "DOMAIN", None)
    if domain not in DOMAINS:
        raise InputError(f"{path}: DOMAIN must be one of {', '.join(DOMAINS)}; got {domain!r}")
    training_KD, held_out_KD = (_numbers(module, path, name) for name in ("PARAMETERS", "HELD_OUT"))
    if training_KD.shape[1] != held_out_KD.shape[1]:
        raise InputError(
            f"{path}: HELD_OUT must be as wide as PARAMETERS, {training_KD.shape[1]}, got "
            f"{held_out_KD.shape[1]}"
        )
    shared = [row.tolist() for row in held_out_KD if (training_KD == row).all(axis=1).any()]
    if shared:
        raise InputError(f"{path}: HELD_OUT must hold nothing of PARAMETERS, got {shared[0]}")
    users = getattr(module, function, None)
    if not callable(users):
        raise InputError(f"{path}: has no function {function!r}: define it or give its name")
    return RewardFile(domain, training_KD, held_out_KD, _checked(users, f"{path}:{function}"))


def require_file(path: Path) -> None:
    """Refuse a path where no file is."""
    if not path.is_file():
        raise InputError(f"{path}: is not there: give the path of a Python file")


def _run(path: Path) -> ModuleType:
    require_file(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: cannot be run; got {_line(error)}") from error
    return module


def _numbers(module: ModuleType, path: Path, name: str) -> np.ndarray:
    """Read an array of parameters as float64 [K, D]."""
    values = getattr(module, name, None)
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.size == 0 or not np.isfinite(array).all():
        raise InputError(
            f"{path}: {name} must be finite numbers, one row (or one number) a parameter, got "
            f"{str(values)[:60]!r}"
        )
    return array


def _checked(users: Callable, where: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def reward(physics_RP: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
        try:
            rewards_R = np.asarray(users(physics_RP, parameter_D), np.float64)
        except Exception as error:
            raise InputError(f"{where}: fails; got {_line(error)}") from error
        if rewards_R.shape != (len(physics_RP),) or not np.isfinite(rewards_R).all():
            raise InputError(
                f"{where}: must give one finite number for each of {len(physics_RP)} states, got "
                f"shape {rewards_R.shape}"
            )
        return rewards_R

    return reward


def _line(error: Exception) -> str:
    """Put an error into one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
