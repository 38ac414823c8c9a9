"""Return against the number of trajectories: declared cells of one task, equal in all but N."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation
from agentic_bpt.experiment import Experiment
from agentic_bpt.run import episode_steps
from agentic_bpt.suites.cell import Cell
from agentic_bpt.suites.table5 import Column, Preset, experiment_of

YARDSTICKS = ("dt", "td3_bc", "td3_offline")
"""Methods marked beside the curve."""


class Grid(NamedTuple):
    """What is compared."""

    task: str
    store: Path
    trajectories: tuple[int, ...]
    """N in training."""
    test: tuple[int, ...]
    """n at test. One evaluation of the largest gives them all: what an agent does in the first n
    episodes of a chain does not depend on how many will follow."""
    prompts: tuple[int, ...]
    """Dataset trajectories that stand before the rollouts; 0 is the published protocol."""
    seeds: int


def grid_cells(grid: Grid, preset: Preset, *, steps: int | None, workdir: Path) -> list[Cell]:
    """Compose the cells at equal updates and equal timesteps an update, N by N.

    Raises:
        InputError: a store with fewer training episodes than the largest N or the longest prompt.
    """
    with Store.open(grid.store) as store:
        timesteps, episodes = episode_steps(store), len(store.training)
        store_of = {"store": str(grid.store), "data_hash": store.data_hash}
    too_many = [n for n in grid.trajectories if n > episodes]
    if too_many:
        raise InputError(
            f"{grid.store}: has {episodes} training episodes: too few for chains of "
            f"{too_many[0]}; leave it out of --trajectories"
        )
    for prompt in grid.prompts:
        if not 0 <= prompt <= episodes:
            raise InputError(
                f"--prompts must be from 0 to {episodes}, the training episodes of {grid.store}; "
                f"got {prompt}"
            )
    columns = [column_of(n) for n in grid.trajectories]
    columns += [Column(name=method, method=method) for method in YARDSTICKS]
    cells = []
    for seed in range(grid.seeds):
        for column in columns:
            experiment = experiment_of(preset, column, timesteps, steps=steps)
            experiment = dataclasses.replace(experiment, **store_of, seed=seed)
            folder = workdir / grid.task / f"{column.name}-seed{seed}"
            cells += _evaluated(grid, preset, column.name, experiment, folder)
    return cells


def column_of(trajectories: int) -> Column:
    """Give the column of an N: the same cell as in Table 5, so that it is trained once for both."""
    name = f"at-n{trajectories}-blockwise"
    return Column(name=name, method="at", trajectories=trajectories, scheme="blockwise")


def _evaluated(
    grid: Grid, preset: Preset, column: str, experiment: Experiment, folder: Path
) -> list[Cell]:
    """Give one cell a prompt length: all of them share the folder, so it is trained once."""
    prompts = grid.prompts if column.startswith("at-") else (0,)
    return [
        Cell(
            task=grid.task,
            column=column if not prompt else f"{column}-prompt{prompt}",
            experiment=experiment,
            evaluation=Evaluation(
                trajectories=max(grid.test),
                chains=preset.chains,
                prompt_trajectories=prompt,
                multipliers=(1.0,),
            ),
            folder=folder,
        )
        for prompt in prompts
    ]


def plain_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Give the cells of AT without a prompt."""
    plain = [cell for cell in cells if cell.column.startswith("at-")]
    return [cell for cell in plain if not cell.evaluation.prompt_trajectories]
