"""Answers what fits where: the Agentic Transformer of the paper on devices that are not present.

Command:   python experiments/devices.py      (extras gpu-target and tpu-target; resumable)
Time:      about an hour of one core, 4 GB of memory; no accelerator
Expected:  experiments/results/devices/devices.md and its picture: the blockwise scheme holds the
           most trajectories on every device
"""

import sys
from pathlib import Path

import jax

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.blockwise.memory import missing_compiler
from agentic_bpt.experiment import override
from agentic_bpt.methods import preset_of
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.planner.prediction import compiled_prediction
from agentic_bpt.planner.report import draw, episode_of, largest_trajectories
from agentic_bpt.spread import checked_mesh
from agentic_bpt.whole_file import write_whole

OUT = Path(__file__).parent / "results" / "devices"
TASK = "walker_walk"
TRAJECTORIES = (4, 32, 128)
MESHES = (("h100-80gb", "sequence=8"), ("tpu-v4", "sequence=64"))
"""Devices and meshes of several that are asked too, for the blockwise scheme."""
_PLACES = (("agent", "model", "core"), ("agent", "chain"), ())


def row_of(device: Device, scheme: str) -> str:
    """Compile what a row of the table asks: bytes at each N, and the largest N that fits."""
    episode = episode_of(TASK, action_repeat=1)
    experiment = preset_of("at", "paper")
    for name, value in (("batch", 1), ("scheme", scheme)):
        experiment = override(experiment, name, _PLACES, value)
    cells = []
    for trajectories in TRAJECTORIES:
        asked = override(experiment, "trajectories", _PLACES, trajectories)
        found = compiled_prediction(asked, episode, device)
        taken = f"{found.total / 1e9:,.2f} GB{'' if found.fits else ', does not fit'}"
        cells.append("unknown" if found.source == "unknown" else taken)
    largest = largest_trajectories(experiment, episode, device)
    mark = "" if device.verified else " (unverified)"
    place = f"{device.name}{mark}{f', {device.mesh}' if device.mesh else ''}"
    has = f"{device.usable_bytes / 1e9:,.1f} GB"
    return f"| {place} | {has} | {scheme} | {' | '.join(cells)} | {largest} |"


def main() -> None:
    """Compile what is missing, and write the table and the picture."""
    for device in DEVICES.values():
        if install := missing_compiler(device):
            sys.exit(f"{device.name} has no compiler here: {install}")
    jax.config.update("jax_platforms", "cpu")  # no device is touched
    experiment = override(preset_of("at", "paper"), "batch", [()], 1)
    asked = [(device, scheme) for device in DEVICES.values() for scheme in SCHEMES]
    for name, mesh in MESHES:
        config = checked_mesh(experiment, mesh)
        asked.append((DEVICES[name].over(str(config), config.devices), "blockwise"))
    lines = [
        "# What fits where",
        "",
        "One training step of preset `paper` (3 layers x 128, four tokens a timestep, dropout), "
        f"one chain of N trajectories of {TASK} (1,000 timesteps each), compiled for devices that "
        "were not present: bytes that it takes of what a program can have, and the largest N. Over "
        "a mesh, bytes of each device.",
        "",
        "| device | memory | scheme | "
        + " | ".join(f"N = {n}" for n in TRAJECTORIES)
        + " | largest N |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for device, scheme in asked:
        lines.append(row_of(device, scheme))
        print(lines[-1], flush=True)
    places = list(DEVICES.values())
    OUT.mkdir(parents=True, exist_ok=True)
    draw(experiment, episode_of(TASK, action_repeat=1), places, OUT / "devices.png")
    lines += [
        "",
        "An unverified device is described from its vendor's data: the compiler's sources have "
        "none of it.",
        "",
        f"Command: `python experiments/devices.py`; versions {compiler_versions()}.",
    ]
    write_whole(OUT / "devices.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
