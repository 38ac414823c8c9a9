"""`agentic-bpt memory`: what fits where, printed, and drawn."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.blockwise.devices import Device
from agentic_bpt.blockwise.memory import Bytes
from agentic_bpt.blockwise.mesh import MeshConfig
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, override, replace_in
from agentic_bpt.planner.cache import write_bytes
from agentic_bpt.planner.child import measure
from agentic_bpt.planner.prediction import (
    Prediction,
    ask_child,
    compiled_prediction,
    device_at_hand,
    find_device,
    formula_prediction,
    from_bytes,
)
from agentic_bpt.planner.search import largest_that_fits
from agentic_bpt.planner.step import EpisodeShape, training_step, transformer_of
from agentic_bpt.progress import counting
from agentic_bpt.spread import checked_mesh

_SCHEME = ("agent", "model", "core")
_TRAJECTORIES = ("agent", "chain", "trajectories")
PICTURE_TRAJECTORIES = (1, 4, 16, 64, 256)
"""Where the curves of the picture are compiled."""
EXPECTED_GROWTH = 1.15
"""Measured over compiled temporaries that need no explanation."""
CUDA_DEFAULT_SHARE = 0.75
"""Of a GPU's memory JAX takes this much unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""


def episode_of(task: str, action_repeat: int) -> EpisodeShape:
    """Give the shape of a task's episodes.

    Raises:
        InputError: unknown task, or an action repeat below 1.
    """
    spec = task_spec(task)
    if action_repeat < 1:
        raise InputError(f"--action-repeat must be at least 1, got {action_repeat}")
    return EpisodeShape(
        spec.observation_width, spec.action_width, max(1, spec.episode_steps // action_repeat)
    )


def report_memory(
    experiment: Experiment,
    episode: EpisodeShape,
    *,
    devices: Sequence[str],
    schemes: Sequence[str] = SCHEMES,
    largest: bool = False,
    picture: Path | None = None,
    mesh: str | None = None,
) -> None:
    """Print the bytes of the training step for every scheme on every device, present or not.

    Over a mesh, of so many devices of a kind, the bytes are those of each.

    Raises:
        InputError: unknown device, a method that is not a transformer, or a mesh that cannot work.
    """
    console = Console(width=None if Console().is_terminal else 130)
    places = [find_device(name) for name in devices]
    transformer_of(experiment)
    if mesh is not None:
        config = checked_mesh(experiment, mesh)
        places = [place.over(str(config), config.devices) for place in places]
        schemes = ["blockwise"]
    if len(places) == len(schemes) == 1:
        only = override(experiment, "scheme", [_SCHEME], schemes[0])
        print_prediction(compiled_prediction(only, episode, places[0]), only, console)
        if largest:
            console.print(
                f"largest number of trajectories: {largest_trajectories(only, episode, places[0])}"
            )
    else:
        _print_table(experiment, episode, places, schemes, largest, console)
    if picture is not None:
        draw(experiment, episode, places, picture)
        console.print(f"{picture}: written")


def report_local(experiment: Experiment, episode: EpisodeShape) -> None:
    """Compile for the device at hand, run one step, and print planned beside measured bytes.

    Raises:
        InputError: the step could not be run.
    """
    console = Console()
    device = device_at_hand()
    expected = formula_prediction(experiment, episode, device)
    if expected.fits is False:
        print_prediction(expected, experiment, console)
        raise InputError("it would not fit: it is not run")
    if device.platform == "cpu":
        answer = ask_child(experiment, episode, device, measure=True)
    else:  # an accelerator serves one process at a time, and counts its own peak
        answer = measure(training_step(experiment, episode))
    if isinstance(answer, str):
        raise InputError(f"{device.name}: {answer}")
    compiled = Bytes(**answer["bytes"])
    write_bytes(experiment, episode, device, compiled)
    found = from_bytes(device, compiled)
    print_prediction(found, experiment, console)
    measured = answer["measured_growth"]
    console.print(
        f"measured: memory grew by {gigabytes(measured)} while a step ran, "
        f"{measured / found.temporaries:.0%} of the compiled temporaries"
    )
    if device.platform == "cpu" and measured > EXPECTED_GROWTH * found.temporaries:
        console.print(
            "More than was compiled: libraries that XLA calls on a CPU keep memory of their own, "
            "most of all for the matrix products of full attention."
        )


def print_prediction(found: Prediction, experiment: Experiment, console: Console) -> None:
    """Print the bytes by kind, and whether they fit."""
    agent = transformer_of(experiment)
    mark = "" if found.device.verified else ", description unverified"
    console.print(
        f"{found.device.name}{mark}: {agent.model.core.scheme}, {agent.chain.trajectories} "
        f"trajectories, batch {experiment.batch} in {experiment.accumulate} part(s)"
    )
    if found.source != "unknown":
        for name, size in (
            ("parameters and optimiser", found.parameters_and_optimizer),
            ("batch", found.batch),
            ("temporaries", found.temporaries),
            ("total", found.total),
            ("device", found.device.usable_bytes),
        ):
            console.print(f"  {name:26}{gigabytes(size):>14}{size:>20,} bytes")
    console.print(f"  fits: {fits_word(found)}")
    console.print(f"  source: {found.source}{': ' + found.note if found.note else ''}")


def fits_word(found: Prediction) -> str:
    """Say whether it fits, and what must be set for it."""
    if found.source == "unknown":
        return "unknown"
    if found.fits is None:
        return "too close to the limit for a formula to say"
    if not found.fits:
        return "no"
    share = found.total / found.device.usable_bytes
    if found.device.platform == "cuda" and share > CUDA_DEFAULT_SHARE:
        return "yes, with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 (JAX's default is 0.75)"
    return "yes"


def gigabytes(size: int) -> str:
    """Write bytes in powers of 10, as the makers of memory do."""
    return f"{size / 1e9:,.3f} GB"


def largest_trajectories(experiment: Experiment, episode: EpisodeShape, device: Device) -> str:
    """Search the largest N that fits, in words: with what is not certain about it."""

    def at(trajectories: int) -> Experiment:
        return replace_in(experiment, _TRAJECTORIES, trajectories)

    count = MeshConfig.parse(device.mesh).devices if device.mesh else 1

    def by_formula(trajectories: int) -> int:
        return formula_prediction(at(trajectories), episode, device).total // count

    def by_compiler(trajectories: int) -> int | None:
        found = compiled_prediction(at(trajectories), episode, device)
        return None if found.source == "unknown" else found.total

    start, _ = largest_that_fits(by_formula, device.usable_bytes, start=1)
    found, final = largest_that_fits(by_compiler, device.usable_bytes, start=start or 1)
    if found is None:
        return "unknown"
    source = compiled_prediction(at(max(found, 1)), episode, device).source
    words = f"{found:,}" if final else f"at least {found:,}"
    return words if source == "compiled" else f"{words} (formula)"


def _print_table(
    experiment: Experiment,
    episode: EpisodeShape,
    devices: Sequence[Device],
    schemes: Sequence[str],
    largest: bool,
    console: Console,
) -> None:
    table = Table("device", "scheme", "total", "of", "fits", "source")
    if largest:
        table.add_column("largest N")
    notes: dict[str, None] = {}
    with counting("memory", "programs") as advance:
        for number, (device, scheme) in enumerate((d, s) for d in devices for s in schemes):
            advance(number, len(devices) * len(schemes))
            one = override(experiment, "scheme", [_SCHEME], scheme)
            found = compiled_prediction(one, episode, device)
            row = [
                device.name + ("" if device.verified else " (unverified)"),
                scheme,
                "-" if found.source == "unknown" else gigabytes(found.total),
                gigabytes(device.usable_bytes),
                {True: "yes", False: "no", None: "unknown"}[found.fits],
                found.source,
            ]
            table.add_row(*row, *([largest_trajectories(one, episode, device)] if largest else []))
            if found.note:
                notes[f"{device.name}, {scheme}: {found.note}"] = None
    console.print(table)
    for note in notes:
        console.print(note)


def draw(
    experiment: Experiment, episode: EpisodeShape, devices: Sequence[Device], out: Path
) -> None:
    """Draw bytes against trajectories for the first device, with the memory of all as lines."""
    from agentic_bpt.reports.plots import memory_png
    from agentic_bpt.whole_file import write_whole

    curves: dict[str, dict[int, int]] = {}
    sources = set()
    for scheme in SCHEMES:
        one = override(experiment, "scheme", [_SCHEME], scheme)
        for trajectories in PICTURE_TRAJECTORIES:
            at = replace_in(one, _TRAJECTORIES, trajectories)
            found = compiled_prediction(at, episode, devices[0])
            sources.add(found.source)
            if found.source != "unknown":
                curves.setdefault(scheme, {})[trajectories] = found.total
    limits = {device.name: device.usable_bytes for device in devices}
    words = ", ".join(sorted(sources - {"unknown"}))
    title = f"one training step, {devices[0].name}, batch {experiment.batch} ({words})"
    write_whole(out, memory_png(curves, limits, title=title))
