"""Answers what fits where: the Agentic Transformer of the paper on devices that are not present.

Command:   python experiments/devices.py      (extras gpu-target and tpu-target; resumable)
Time:      about two hours of one core, 4 GB of memory; no accelerator
Expected:  experiments/results/devices/devices.md and its picture: the blockwise scheme holds about
           twice the trajectories of the memory-efficient one on GPUs, a quarter more on TPU v4
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import jax

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.blockwise.memory import missing_compiler
from agentic_bpt.experiment import Experiment, override
from agentic_bpt.methods import preset_of
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.planner.prediction import compiled_prediction
from agentic_bpt.planner.report import draw, episode_of, largest_trajectories
from agentic_bpt.spread import checked_mesh
from agentic_bpt.whole_file import write_whole

OUT = Path(__file__).parent / "results" / "devices"
TASK = "walker_walk"
EPISODE = episode_of(TASK, action_repeat=1)
TRAJECTORIES = (4, 32, 128)
MESHES = (("h100-80gb", "sequence=8"), ("tpu-v4", "sequence=64"))
"""Devices and meshes of several that are asked too, for the blockwise scheme."""
_PLACES = (("agent", "model", "core"), ("agent", "chain"), ())


def asked_of(scheme: str) -> Experiment:
    """Give the paper's configuration at batch 1 in a scheme."""
    experiment = preset_of("at", "paper")
    for name, value in (("batch", 1), ("scheme", scheme)):
        experiment = override(experiment, name, _PLACES, value)
    return experiment


def row_of(device: Device, scheme: str) -> str:
    """Compile what a row of the table asks, but for its last cell: bytes at each N."""
    cells = []
    for trajectories in TRAJECTORIES:
        experiment = override(asked_of(scheme), "trajectories", _PLACES, trajectories)
        found = compiled_prediction(experiment, EPISODE, device)
        taken = f"{found.total / 1e9:,.2f} GB{'' if found.fits else ', does not fit'}"
        cells.append("unknown" if found.source == "unknown" else taken)
    mark = "" if device.verified else " (unverified)"
    place = f"{device.name}{mark}{f', {device.mesh}' if device.mesh else ''}"
    has = f"{device.usable_bytes / 1e9:,.1f} GB"
    return f"| {place} | {has} | {scheme} | {' | '.join(cells)} |"


def write_page(largest: Mapping[str, str]) -> None:
    """Write the table with all that is known so far: rows, and the last cell of each."""
    lines = [
        "# What fits where",
        "",
        "One training step of preset `paper` (3 layers x 128, four tokens a timestep, dropout), "
        f"one chain of N trajectories of {TASK} (1,000 timesteps each), compiled for devices that "
        "were not present: bytes that it takes of what a program can have, and the largest N "
        "(above 200 within half a percent). Over a mesh, bytes of each device.",
        "",
        "![bytes against trajectories](devices.png)",
        "",
        "| device | memory | scheme | "
        + " | ".join(f"N = {n}" for n in TRAJECTORIES)
        + " | largest N |",
        "|---|---:|---|---:|---:|---:|---:|",
        *(f"{row} {cell} |" for row, cell in largest.items()),
        "",
        "An unverified device is described from its vendor's data: the compiler's sources have "
        "none of it.",
        "",
        f"Command: `python experiments/devices.py`; versions {compiler_versions()}.",
    ]
    write_whole(OUT / "devices.md", ("\n".join(lines) + "\n").encode())


def main() -> None:
    """Compile what is missing, and write the picture and the table, after each of its cells."""
    for device in DEVICES.values():
        if install := missing_compiler(device):
            sys.exit(f"{device.name} has no compiler here: {install}")
    jax.config.update("jax_platforms", "cpu")  # no device is touched
    places = [(device, scheme) for device in DEVICES.values() for scheme in SCHEMES]
    for name, mesh in MESHES:
        config = checked_mesh(asked_of("blockwise"), mesh)
        places.append((DEVICES[name].over(str(config), config.devices), "blockwise"))
    OUT.mkdir(parents=True, exist_ok=True)
    draw(asked_of("blockwise"), EPISODE, list(DEVICES.values()), OUT / "devices.png")
    largest: dict[str, str] = {}
    for place in places:
        row = row_of(*place)
        largest[row] = "not searched"
        print(row, flush=True)
        write_page(largest)
    for row, (device, scheme) in zip(list(largest), places, strict=True):
        largest[row] = largest_trajectories(asked_of(scheme), EPISODE, device)
        print(row, largest[row], flush=True)
        write_page(largest)


if __name__ == "__main__":
    main()
