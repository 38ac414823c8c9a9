"""Says what works on this machine, and what is wrong with a data set."""

import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentic_bpt.errors import InputError

PACKAGES = (
    "agentic-bpt",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "dm_control",
    "mujoco",
    "gymnasium",
    "h5py",
    "numpy",
)


def examine() -> bool:
    """Print a table of checks; True if all that training and evaluation need works."""
    table = Table("what", "works", "detail", title="agentic-bpt doctor")
    healthy = True
    for name, needed, check in CHECKS:
        try:
            detail, works = check(), True
        except Exception as error:  # whatever a package raises is the finding
            detail, works = f"{type(error).__name__}: {error}".splitlines()[0], False
        healthy &= works or not needed
        table.add_row(name, "yes" if works else "NO" if needed else "no (optional)", detail)
    Console().print(table)
    return healthy


def examine_data(path: Path) -> bool:
    """Check all episodes of a data set and print what was found; True if every file is good."""
    from agentic_bpt.datasets.check import RELABELLED_EPISODES, STORED, check_data, histogram
    from agentic_bpt.progress import counting

    with counting(f"doctor {path}", "episodes") as advance:
        report = check_data(path, progress=advance)
    console = Console(width=None if Console().is_terminal else 120)
    for line in report.bad:
        console.print(f"bad: {line}", markup=False, highlight=False, soft_wrap=True)
    for line in report.duplicates:
        console.print(f"twice: {line}", markup=False, highlight=False, soft_wrap=True)
    table = Table("returns of", "episodes", "min", "mean", "best", "distribution, min to best")
    for name, returns in report.returns.items():
        numbers = (returns.min(), returns.mean(), returns.max())
        table.add_row(
            name, f"{len(returns):,}", *(f"{x:,.1f}" for x in numbers), histogram(returns)
        )
    console.print(table)
    if report.episodes > RELABELLED_EPISODES and len(report.returns) > 1:
        console.print(f"tasks: {RELABELLED_EPISODES} episodes spread over the collection")
    if list(report.returns) == [STORED]:
        console.print("no physics, or repeated actions: rewards of other tasks cannot be computed")
    good = report.episodes - len(report.bad)
    console.print(
        f"{report.path}: {report.domain}, {good:,} of {report.episodes:,} episodes good, "
        f"{report.steps:,} steps, {len(report.duplicates)} there twice",
        markup=False,
        soft_wrap=True,
    )
    return not report.bad


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            raise InputError(f"{package} is not installed: pip install agentic-bpt") from None
    return f"Python {platform.python_version()}, " + ", ".join(found)


def _devices() -> str:
    import jax

    devices = jax.devices()
    return ", ".join(f"{device.platform}: {device.device_kind}" for device in devices)


def _core() -> str:
    import jax
    import jax.numpy as jnp

    from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack

    config = CoreConfig(layers=1, width=16, feedforward=32)
    params = init_stack(jax.random.key(0), config)
    out = apply_stack(params, jnp.ones((1, 8, 16)), config=config)
    return f"a layer ran on {next(iter(out.devices())).platform}"


def _physics() -> str:
    import numpy as np

    from agentic_bpt.environments.tasks import Environment

    environment = Environment("cartpole_swingup")
    environment.reset(0)
    reward = environment.step(np.array([0.5])).reward
    return f"cartpole_swingup stepped, reward {reward:.3f}"


def _renderer() -> str:
    import os

    from agentic_bpt.environments.tasks import Environment

    environment = Environment("cartpole_swingup")
    environment.reset(0)
    frame = environment.render(height=64, width=64)
    return f"MUJOCO_GL={os.environ.get('MUJOCO_GL', 'chosen by dm_control')}, {frame.shape} picture"


def _disk() -> str:
    return f"{shutil.disk_usage('.').free / 2**30:,.0f} GiB free here"


CHECKS: tuple[tuple[str, bool, Callable[[], str]], ...] = (
    ("versions", True, _versions),
    ("devices", True, _devices),
    ("core", True, _core),
    ("physics", True, _physics),
    ("renderer", False, _renderer),
    ("disk", True, _disk),
)
"""Name, whether training and evaluation need it, and the check: returns a detail or raises."""
