"""Compiled bytes kept on disk, so that nothing is compiled twice."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentic_bpt.blockwise.devices import Device
from agentic_bpt.blockwise.memory import Bytes
from agentic_bpt.experiment import Experiment
from agentic_bpt.planner.step import EpisodeShape
from agentic_bpt.reports.results import write_json

PACKAGES = ("jax", "jaxlib", "flax", "optax", "jax-cuda12-plugin", "libtpu")
"""Packages that decide what is compiled, where they are installed."""
SOURCES = ("blockwise", "models", "training")
"""Parts of this package that do."""
IGNORED = ("method", "store", "data_hash", "seed", "loop")
"""Fields of an experiment that change no bytes."""


def cache_folder() -> Path:
    """Give the folder of kept results: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "agentic-bpt" / "memory"


def read_bytes(experiment: Experiment, episode: EpisodeShape, device: Device) -> Bytes | None:
    """Look up what was compiled before; None if nothing was, or its file is damaged."""
    try:
        found = json.loads(_path(experiment, episode, device).read_text())
        kept = Bytes(**found["bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    whole = all(isinstance(value, int) and value >= 0 for value in kept)
    return kept if whole else None


def write_bytes(
    experiment: Experiment, episode: EpisodeShape, device: Device, found: Bytes
) -> None:
    """Keep a result; a disk that takes none is no reason to stop."""
    path = _path(experiment, episode, device)
    with contextlib.suppress(OSError):
        write_json(path, {"bytes": found._asdict(), "device": device.name})


def _path(experiment: Experiment, episode: EpisodeShape, device: Device) -> Path:
    kept: dict[str, Any] = dataclasses.asdict(experiment)
    for name in IGNORED:
        del kept[name]
    key = {
        "experiment": kept,
        "episode": episode._asdict(),
        "device": [device.name, device.target, device.mesh],
        "versions": compiler_versions(),
        # A CPU program depends on the number of threads.
        "threads": len(os.sched_getaffinity(0)) if device.platform == "cpu" else None,
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{name[:32]}.json"


@functools.cache
def compiler_versions() -> dict[str, str]:
    """Give the versions of what decides the bytes, and a hash of the sources that do."""
    found = {"sources": _sources()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _sources() -> str:
    root = Path(__file__).parents[1]
    files = sorted(path for part in SOURCES for path in (root / part).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
