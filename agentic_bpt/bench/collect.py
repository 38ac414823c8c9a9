"""Collectors in each domain that has a grid of states: their speed, and how much they visit."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from agentic_bpt.datasets.exorl import episode_files, read_episode
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import EXPLORERS, collect
from agentic_bpt.exploration.coverage import GRIDS, occupied_cells

TASKS = ("cartpole_swingup", "point_mass_maze_reach_top_left", "walker_stand")
"""One of each domain that has a grid. The cartpole begins hanging down: from upright, falling over
shows a random policy as much as any explorer sees."""
EPISODES = 40
"""Episodes of each collector: in two minutes an explorer that learns has left random behind."""
WARM_STEPS = 3000
"""Control steps that are not timed: uniform actions, then compiling."""


class CollectorRow(NamedTuple):
    """One collector in one domain."""

    task: str
    """The task whose reward is stored; rnd does not see it."""
    expl_agent: str
    episodes: int
    environments: int
    workers: int
    steps_per_second: float
    """Control steps a second, learning included, writing episodes included, compiling not."""
    updates_per_second: float
    """Updates a second beside them; 0 for random."""
    occupied_cells: int
    """Cells of the domain's grid that its episodes visited."""
    cells_over_random: float
    """The same over what as many random episodes visited."""


def collector_table(
    console: Console,
    *,
    tasks: Sequence[str] = TASKS,
    episodes: int = EPISODES,
    environments: int = 1,
    workers: int = 1,
) -> list[dict[str, Any]]:
    """Collect with every explorer in each domain, print a line each, and give them as rows.

    Args:
        console: to print to.
        tasks: of domains in `coverage.GRIDS`.
        episodes: of each collector; the more, the further ahead of random an explorer is.
        environments: as in `collect`.
        workers: as in `collect`.

    Raises:
        InputError: a domain has no grid, or there are no episodes left to time.
    """
    unknown = [task for task in tasks if task_spec(task).domain not in GRIDS]
    if unknown:
        raise InputError(f"tasks: choose of the domains {', '.join(GRIDS)}; got {unknown[0]!r}")
    rows = []
    for task in tasks:
        console.print(
            f"{task}, {episodes} episodes, {environments} environments, {workers} workers:"
        )
        cells_of_random = 0
        for expl_agent in EXPLORERS:  # random first
            row = _row(task, expl_agent, episodes, environments, workers, cells_of_random)
            cells_of_random = cells_of_random or row.occupied_cells
            console.print(
                f"  {expl_agent:7} {row.steps_per_second:8,.0f} steps/s "
                f"{row.updates_per_second:6,.0f} updates/s {row.occupied_cells:6,} cells "
                f"{row.cells_over_random:5.2f} x random"
            )
            rows.append(row._asdict())
    return rows


def _row(
    task: str, expl_agent: str, episodes: int, environments: int, workers: int, of_random: int
) -> CollectorRow:
    """Collect into a folder that is gone after, in two calls of which the second is timed."""
    spec = task_spec(task)
    rounds = -(-WARM_STEPS // (spec.episode_steps * environments))
    warm = rounds * environments
    if episodes <= warm:
        raise InputError(f"episodes must be over {warm}, which are not timed, got {episodes}")
    with tempfile.TemporaryDirectory() as folder:
        for total in (warm, episodes):
            result = collect(
                task,
                expl_agent=expl_agent,
                episodes=total,
                out=Path(folder),
                environments=environments,
                workers=workers,
                progress=False,
            )
            if result.interrupted:
                raise KeyboardInterrupt
        cells = occupied_cells(spec.domain, _physics(result.folder, spec.domain))
    speed = result.steps_per_second
    return CollectorRow(
        task=task,
        expl_agent=expl_agent,
        episodes=episodes,
        environments=environments,
        workers=workers,
        steps_per_second=speed,
        updates_per_second=speed / _steps_of_an_update(expl_agent),
        occupied_cells=cells,
        cells_over_random=cells / (of_random or cells),
    )


def _physics(folder: Path, domain: str) -> np.ndarray:
    """Give every physics state [R, P] of a folder of episodes."""
    states = [read_episode(file, domain=domain).physics for file in episode_files(folder)]
    return np.concatenate([physics_TP for physics_TP in states if physics_TP is not None])


def _steps_of_an_update(expl_agent: str) -> float:
    """Give the decisions for each update, infinite for an explorer that does not learn."""
    from agentic_bpt.exploration.actor_critic import LearnerConfig

    return float("inf") if expl_agent == "random" else LearnerConfig().update_every_steps
