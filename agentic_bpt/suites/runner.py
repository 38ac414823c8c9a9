"""Runs cells side by side, each in a process of its own, and survives the death of any of them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import REASON_LAST
from agentic_bpt.experiment import TransformerAgent
from agentic_bpt.made_by import command_line
from agentic_bpt.planner.prediction import Prediction, predict
from agentic_bpt.suites.cell import (
    OUT_OF_MEMORY,
    Cell,
    State,
    record,
    state_of,
    write_request,
)
from agentic_bpt.suites.on_ray import RayProcess, connect

ATTEMPTS = 2
"""A cell whose process is killed is tried again, this often in all."""
COMMAND = (sys.executable, "-m", "agentic_bpt.suites.cell")
"""What is started for a cell, with its folder behind."""
CELL_ENVIRONMENT = os.environ | REASON_LAST
"""As this process was started."""
_POLL_SECONDS = 0.1
_LOG = "log.txt"


class Running(NamedTuple):
    """A cell and its process."""

    cell: Cell
    process: subprocess.Popen | RayProcess
    cores: list[int]
    attempt: int


def leave_memory_to_cells() -> None:
    """Let this process take of an accelerator only what it uses: its cells need the rest.

    To be called before JAX starts. Cells themselves are started in `CELL_ENVIRONMENT`.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def predicted(cell: Cell, episode_steps: int, device: str | None = None) -> Prediction | None:
    """Say what the training step of a cell takes on a device, or the one here; None for an MLP."""
    if not isinstance(cell.experiment.agent, TransformerAgent):
        return None
    spec = task_spec(cell.task)
    widths = spec.observation_width, spec.action_width
    return predict(cell.experiment, *widths, episode_steps, device)


def oom_state(found: Prediction | None) -> State | None:
    """Give the state of a cell that cannot fit; None where it may, or nothing is known."""
    if found is None or found.fits is not False:
        return None
    return State(
        "oom", f"oom: {found.total / 1e9:.3g} GB predicted of {found.device.usable_bytes / 1e9:.3g}"
    )


def cores_of_workers(workers: int) -> list[list[int]]:
    """Share the cores of this process out."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    return [cores[i * share : (i + 1) * share] for i in range(workers)]


def run_cells(
    cells: Sequence[Cell],
    *,
    workers: int,
    ray: str | None = None,
    changed: Callable[[Cell, State, int], None] = lambda cell, state, left: None,
) -> dict[str, State]:
    """Run what is not done: `workers` cells at a time, each on its share of the cores.

    Args:
        cells: in the order in which they are begun; those with `shared_with` are not run.
        workers: processes at a time; on an accelerator, which a process takes whole, use 1.
        ray: address of a cluster whose machines see the same files; None: processes on this one.
        changed: told of every cell that ended and how many are left.

    Returns:
        The state of every cell by its name.
    """
    waiting = [cell for cell in cells if not cell.shared_with and state_of(cell).kind != "done"]
    attempts = dict.fromkeys((cell.name for cell in waiting), 0)
    free = cores_of_workers(workers)
    if ray is not None:
        connect(ray)
        free = [[]] * workers  # the cluster places them
    running: list[Running] = []
    try:
        while waiting or running:
            while free and (cell := _startable(waiting, running)) is not None:
                waiting.remove(cell)
                attempts[cell.name] += 1
                running.append(_start(cell, free.pop(0), attempts[cell.name], ray))
            time.sleep(_POLL_SECONDS)
            polled = [(one, one.process.poll()) for one in running]
            for one, code in [(one, code) for one, code in polled if code is not None]:
                running.remove(one)
                free.append(one.cores)
                state = _ended(one, code)
                if state is None:
                    waiting.append(one.cell)
                    continue
                changed(one.cell, state, len(waiting) + len(running))
    except KeyboardInterrupt:
        for one in running:  # the terminal sent them the signal too: they write a checkpoint
            one.process.wait()
        raise
    except BaseException:
        for one in running:
            one.process.terminate()
            one.process.wait()
        raise
    return {cell.name: state_of(cell) for cell in cells}


def _startable(waiting: Sequence[Cell], running: Sequence[Running]) -> Cell | None:
    """Find the next cell whose folder no running one is in; cells of one folder train once."""
    taken = {one.cell.folder for one in running}
    return next((cell for cell in waiting if cell.folder not in taken), None)


def _start(cell: Cell, cores: list[int], attempt: int, ray: str | None) -> Running:
    write_request(cell, command=command_line(), cores=cores)
    log, run = cell.folder / _LOG, [*COMMAND, str(cell.folder)]
    if ray is not None:
        return Running(cell, RayProcess(run, log), cores, attempt)
    with log.open("ab") as handle:
        process = subprocess.Popen(
            run, stdout=handle, stderr=subprocess.STDOUT, env=CELL_ENVIRONMENT
        )
    return Running(cell, process, cores, attempt)


def _ended(one: Running, code: int) -> State | None:
    """Say how a cell ended, by its exit code; None if it is to be tried again."""
    if code == 0 and state_of(one.cell).kind == "done":
        return State("done")
    if code < 0 and one.attempt < ATTEMPTS:
        return None
    why = _last_line(one.cell.folder / _LOG)
    if code < 0:
        why = f"ended by signal {-code}, as when the host has no memory left"
    kind = "oom" if code == OUT_OF_MEMORY else "failed"
    return record(one.cell, State(kind, f"oom: {why}" if kind == "oom" else why))


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "ended without a word"
