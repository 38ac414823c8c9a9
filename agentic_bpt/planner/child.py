"""The process that compiles, or also runs, one training step and prints its bytes as JSON.

Its own process, because a compiler for an absent device must be configured before jax starts, may
die of too little memory, and because the peak of a process is measured once.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax

from agentic_bpt.blockwise.devices import Device
from agentic_bpt.blockwise.memory import absent_mesh, bytes_of, bytes_on
from agentic_bpt.experiment import read_experiment, replace_in
from agentic_bpt.planner.step import EpisodeShape, Step, example_batch, training_step, with_engine

REQUEST = "request.json"


def main(folder: Path) -> None:
    """Answer the request of a folder: experiment.json, and request.json with the rest."""
    request = json.loads((folder / REQUEST).read_text())
    device = Device(**request["device"])
    experiment, mesh = read_experiment(folder), None
    if device.mesh:
        mesh = absent_mesh(device)
        experiment = replace_in(experiment, ("agent", "model", "core", "engine"), "portable")
    experiment = with_engine(experiment, device.platform)
    step = training_step(experiment, EpisodeShape(**request["episode"]), mesh)
    if request["measure"]:
        answer = measure(step)
    else:
        found = bytes_on(
            device,
            step.function,
            step.state,
            step.batch,
            donate=(0,),
            out_shardings=step.out_shardings,
        )
        answer = {"bytes": found._asdict()}
    print(json.dumps(answer))


def measure(step: Step) -> dict[str, Any]:
    """Compile the step for the device at hand, run it once, and see how memory grows."""
    state = jax.jit(step.init)()
    batch = example_batch(step)
    compiled = jax.jit(step.function, donate_argnums=0).lower(state, batch).compile()
    jax.block_until_ready((state, batch))
    before = _in_use()
    jax.block_until_ready(compiled(state, batch))
    return {"bytes": bytes_of(compiled)._asdict(), "measured_growth": _peak() - before}


def _in_use() -> int:
    """Bytes in use now; the peak counts from here on."""
    stats = jax.devices()[0].memory_stats()
    if stats is not None:
        return stats["bytes_in_use"]
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's way of resetting VmHWM
    return _process_bytes("VmRSS")


def _peak() -> int:
    stats = jax.devices()[0].memory_stats()
    return _process_bytes("VmHWM") if stats is None else stats["peak_bytes_in_use"]


def _process_bytes(name: str) -> int:
    """Read a line such as `VmHWM:  123 kB` of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
