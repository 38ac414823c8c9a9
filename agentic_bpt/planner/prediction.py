"""Bytes of an experiment's training step on a device: compiled, kept from before, or a formula."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from agentic_bpt.blockwise.devices import DEVICES, Device, device_named
from agentic_bpt.blockwise.memory import Bytes, compiler_environment, missing_compiler, tree_bytes
from agentic_bpt.errors import REASON_LAST, InputError
from agentic_bpt.experiment import Experiment, write_experiment
from agentic_bpt.planner import child, formula
from agentic_bpt.planner.cache import read_bytes, write_bytes
from agentic_bpt.planner.step import EpisodeShape, training_step

TIMEOUT_SECONDS = 900
"""A compilation that takes longer is given up and its bytes reported as unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """Bytes by kind, beside what the device has."""

    device: Device
    """Where."""
    source: str
    """"compiled", "formula" or "unknown"."""
    parameters_and_optimizer: int = 0
    """Bytes of the state that training carries from step to step."""
    batch: int = 0
    """Bytes of one batch."""
    temporaries: int = 0
    """Bytes of everything that lives within a step: activations and gradients."""
    error: float = 0.0
    """formula: largest relative error seen when it was checked against compiled values."""
    note: str = ""
    """What to know beside the numbers."""

    @property
    def total(self) -> int:
        """All bytes that must fit at once."""
        return self.parameters_and_optimizer + self.batch + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where it is not known, or nearer to the limit than the error."""
        if self.source == "unknown":
            return None
        if self.total * (1 + self.error) <= self.device.usable_bytes:
            return True
        if self.total > self.device.usable_bytes * (1 + self.error):
            return False
        return None


def find_device(name: str) -> Device:
    """Look up a device by its name on the command line.

    Raises:
        InputError: it is not known; the known ones are listed.
    """
    try:
        return device_named(name)
    except ValueError as error:
        raise InputError(str(error)) from error


def device_at_hand() -> Device:
    """Describe the device that training would use here, with the bytes it has now.

    Raises:
        InputError: it does not say how many bytes it has.
    """
    present = jax.devices()[0]
    if present.platform == "cpu":
        return Device(name="cpu", platform="cpu", usable_bytes=host_bytes(), kind="cpu")
    limit = (present.memory_stats() or {}).get("bytes_limit")
    if limit is None:
        raise InputError(f"{present.device_kind} does not say how much memory it has")
    platform = "cuda" if present.platform == "gpu" else present.platform
    for device in DEVICES.values():
        if device.kind == present.device_kind:
            return dataclasses.replace(device, usable_bytes=limit)
    kind = present.device_kind
    return Device(name=kind, platform=platform, usable_bytes=limit, kind=kind)


def host_bytes() -> int:
    """Give the bytes of memory that this process can still have: free, and within its group."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (kilobytes,) = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        free = int(kilobytes) * 1024
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # another system, or no group with a limit
    return max(free, 0)


def compiled_prediction(
    experiment: Experiment, episode: EpisodeShape, device: Device, *, note: str = ""
) -> Prediction:
    """Compile for the device, or take what was compiled before; the formula without a compiler."""
    found = read_bytes(experiment, episode, device)
    if found is not None:
        return from_bytes(device, found, note)
    install = missing_compiler(device)
    if install is not None and device.mesh:
        note = f"no formula knows a mesh; to compile: {install}"
        return Prediction(device=device, source="unknown", note=note)
    if install is not None:
        told = formula_prediction(experiment, episode, device)
        return dataclasses.replace(told, note=f"{told.note}; to compile: {install}")
    answer = ask_child(experiment, episode, device, measure=False)
    if isinstance(answer, str):
        return Prediction(device=device, source="unknown", note=answer)
    found = Bytes(**answer["bytes"])
    write_bytes(experiment, episode, device, found)
    return from_bytes(device, found, note)


def formula_prediction(experiment: Experiment, episode: EpisodeShape, device: Device) -> Prediction:
    """Answer at once from the fitted formula; it says how far off it was when checked."""
    step = training_step(experiment, episode)
    scheme = experiment.agent.model.core.scheme  # pyright: ignore[reportAttributeAccessIssue]
    error = formula.worst_error(device.platform, scheme)
    return Prediction(
        device=device,
        source="formula",
        parameters_and_optimizer=tree_bytes(step.state),
        batch=tree_bytes(step.batch),
        temporaries=formula.temporaries(experiment, episode, step.state.params, device.platform),
        error=error,
        note=f"a formula, not compiled: off by up to {error:.0%} of the total when checked",
    )


def predict(
    experiment: Experiment,
    observation_width: int,
    action_width: int,
    episode_length: int,
    device: str | None = None,
) -> Prediction:
    """Say what training will take without compiling: kept from before, or by formula.

    Args:
        experiment: Of a transformer.
        observation_width: O of the task.
        action_width: A of the task.
        episode_length: Timesteps of the longest episode.
        device: Name of a device; None: the one at hand.

    Raises:
        InputError: unknown device, or a method that is not a transformer.
    """
    episode = EpisodeShape(observation_width, action_width, episode_length)
    where = device_at_hand() if device is None else find_device(device)
    found = read_bytes(experiment, episode, where)
    if found is not None:
        return from_bytes(where, found, "compiled before")
    return formula_prediction(experiment, episode, where)


def require_fit(
    experiment: Experiment, observation_width: int, action_width: int, episode_length: int
) -> str | None:
    """Ask before training on the device at hand: None if it fits, a line if it is close.

    Raises:
        InputError: it does not fit.
    """
    found = predict(experiment, observation_width, action_width, episode_length)
    if found.fits:
        return None
    has = f"{found.total / 1e9:.1f} GB of {found.device.usable_bytes / 1e9:.1f} GB"
    asked = f"this training step takes about {has} on {found.device.name} ({found.note})"
    if found.fits is None:
        return f"{asked}: it may not fit"
    raise InputError(
        f"{asked}: take fewer --trajectories, more --accumulate or --scheme blockwise; "
        "`agentic-bpt memory --local` with the same options compiles it and is believed"
    )


def ask_child(
    experiment: Experiment, episode: EpisodeShape, device: Device, *, measure: bool
) -> dict[str, Any] | str:
    """Compile, and if asked run, in a process of its own: its answer, or why there is none."""
    environment = dict(os.environ)
    if not measure:
        environment |= compiler_environment(device)
    with tempfile.TemporaryDirectory() as folder:
        write_experiment(experiment, Path(folder))
        request = {
            "episode": episode._asdict(),
            "device": dataclasses.asdict(device),
            "measure": measure,
        }
        (Path(folder) / child.REQUEST).write_text(json.dumps(request))
        command = [sys.executable, "-m", child.__name__, folder]
        return answer_of(command, environment, timeout=TIMEOUT_SECONDS)


def answer_of(
    command: Sequence[str], environment: dict[str, str], *, timeout: float
) -> dict[str, Any] | str:
    """Run a process that prints JSON in its last line: its answer, or why there is none.

    Args:
        command: program and arguments.
        environment: all variables of the process.
        timeout: seconds until it is given up.
    """
    environment = environment | REASON_LAST
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return f"unknown: compiling took more than {timeout:g} seconds"
    if done.returncode < 0:
        return f"unknown: ended by signal {-done.returncode}, as when the host has no memory left"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"unknown: {lines[-1] if lines else 'the compiler ended without a word'}"
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return "unknown: the compiler ended without an answer"


def from_bytes(device: Device, found: Bytes, note: str = "") -> Prediction:
    """Sort compiled bytes by kind: what is donated is the state, other arguments are the batch."""
    return Prediction(
        device=device,
        source="compiled",
        parameters_and_optimizer=found.donated,
        batch=found.arguments - found.donated,
        temporaries=found.temporaries + found.outputs - found.donated,
        note=note,
    )
