"""What a set of cells will take before any is run: bytes against the device's, and seconds."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from agentic_bpt.blockwise.peak import measured_peak
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.experiment import Experiment, TransformerAgent
from agentic_bpt.planner.prediction import Prediction, find_device
from agentic_bpt.planner.step import EpisodeShape, positions_of
from agentic_bpt.suites.cell import Cell, State, record, state_of
from agentic_bpt.suites.runner import oom_state, predicted

SHARE_OF_PEAK = 0.5
"""Of a device's float32 peak that a training step is assumed to reach."""


class Estimate(NamedTuple):
    """A cell before it is run."""

    cell: Cell
    state: State
    bytes: Prediction | None
    """None for an MLP, which fits anywhere."""
    training_seconds: float | None
    """Predicted; None for an MLP, a cell that shares a training, or a device whose speed is not
    known."""


def estimates(
    cells: Sequence[Cell], steps_of: dict[str, int], device: str | None = None
) -> list[Estimate]:
    """Predict every cell.

    Args:
        cells: of any tasks.
        steps_of: timesteps of an episode of each task.
        device: name of one that need not be present; None: the one at hand.

    Raises:
        InputError: unknown device.
    """
    peak = measured_peak() if device is None else find_device(device).float32_peak
    found = []
    for cell in cells:
        bytes_ = predicted(cell, steps_of[cell.task], device)
        state = state_of(cell)
        if state.kind == "oom":  # of another time, limit or device
            state = State("pending")
        if state.kind != "done":
            state = oom_state(bytes_) or state
        seconds = None
        if bytes_ is not None and peak is not None and not cell.shared_with:
            operations = training_operations(cell.experiment, steps_of[cell.task])
            seconds = operations / (SHARE_OF_PEAK * peak)
        found.append(Estimate(cell, state, bytes_, seconds))
    return found


def runnable(found: Sequence[Estimate]) -> list[Cell]:
    """Give the cells that fit; the others are recorded as out of memory, for the report."""
    for one in found:
        if one.state.kind == "oom":
            record(one.cell, one.state)
        else:
            one.cell.state_file.unlink(missing_ok=True)
    return [one.cell for one in found if one.state.kind != "oom"]


def left_seconds(found: Sequence[Estimate]) -> float:
    """Add up the predicted time of what is still to be trained; cells of one folder train once."""
    trained = {one.cell.folder for one in found if one.state.kind == "done"}
    left = {
        one.cell.folder: one.training_seconds or 0.0
        for one in found
        if one.state.kind not in ("done", "oom") and one.cell.folder not in trained
    }
    return sum(left.values())


def training_operations(experiment: Experiment, timesteps: int) -> float:
    """Count the floating-point operations of all updates: exact causal attention and products."""
    agent = experiment.agent
    assert isinstance(agent, TransformerAgent)
    core = agent.model.core
    L = positions_of(experiment, EpisodeShape(0, 0, timesteps))
    attention = 7 * L**2 * core.width
    weights = core.width * (2 * core.width + 2 * core.key_value_heads * core.head_width)
    weights += 2 * core.width * core.feedforward_width
    products = 3 * 2 * L * weights
    return float(experiment.loop.steps * experiment.batch * core.layers * (attention + products))


def suite_console() -> Console:
    """Give what a suite prints to: without markup, since reasons of failures hold brackets."""
    return Console(width=None if Console().is_terminal else 130, markup=False)


def print_estimates(found: Sequence[Estimate], console: Console) -> None:
    """Print a line a cell."""
    table = Table("cell", "state", "memory", "of", "training", "environment steps")
    for one in found:
        evaluation, spec = one.cell.evaluation, task_spec(one.cell.task)
        steps = evaluation.chains * evaluation.trajectories * spec.episode_steps
        shared = f"as {one.cell.shared_with}" if one.cell.shared_with else ""
        table.add_row(
            one.cell.name,
            shared if one.state.kind == "pending" and shared else one.state.kind,
            "-" if one.bytes is None else f"{one.bytes.total / 1e9:.3g} GB",
            "-" if one.bytes is None else f"{one.bytes.device.usable_bytes / 1e9:.3g} GB",
            "-" if one.training_seconds is None else f"{one.training_seconds:,.0f} s",
            f"{steps:,}",
        )
    hours = left_seconds(found) / 3600
    table.caption = (
        f"memory and time of training are predictions, time at {SHARE_OF_PEAK:.0%} of the device's "
        "float32 peak (measured here; of a device that is not present, without tensor cores); an "
        f"MLP fits anywhere and takes minutes; left to train: {hours:,.1f} hours"
    )
    console.print(table)
