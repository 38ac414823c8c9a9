"""The paper's Table 5 as a declared set of cells: tasks x columns x seeds, in three presets."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.datasets.store import Store, ingest
from agentic_bpt.environments.tasks import task_spec, tasks_of_domain
from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation
from agentic_bpt.experiment import Experiment, TransformerAgent, replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.reports.published import paper_column
from agentic_bpt.run import episode_steps
from agentic_bpt.suites.cell import Cell

TASKS = (
    "walker_stand",
    "walker_run",
    "walker_walk",
    "cheetah_run",
    *tasks_of_domain("jaco"),
    "cartpole_swingup",
)
"""The rows; the paper's "Jaco Reach" does not say which target: all four, and their mean."""

_CHAIN, _CORE = ("agent", "chain"), ("agent", "model", "core")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One method as the table has it."""

    name: str
    """Unique; part of the folders' names."""
    method: str
    """Name in `methods.METHODS`."""
    trajectories: int | None = None
    """N of a chain in training, for AT."""
    scheme: str | None = None
    """What is computed in blocks, for AT."""
    shared_with: str | None = None
    """Column that trains the same numbers: it is trained once where both fit."""

    @property
    def title(self) -> str:
        """Name the column as the paper does."""
        settings = {"trajectories": self.trajectories, "scheme": self.scheme}
        return paper_column(self.method, settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """How large the table is."""

    summary: str
    """One line."""
    methods: str
    """Preset of `methods.METHODS` that cells begin with."""
    few: int
    """N of the small AT; the paper's 4."""
    many: int
    """N of the large AT; the paper's 32."""
    layout: str
    """Tokens of a timestep."""
    test_trajectories: int
    """Episodes in a row when tested, n; the paper's 16."""
    chains: int
    """Chains of n episodes for each seed."""
    timesteps_per_update: int | None
    """Batch x N x timesteps of an episode, held equal over N; None: the batch of the method."""
    share_schemes: bool
    """Train one cell for all schemes at equal N; see `attribution`."""


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        summary="the published configuration: N = 32, four tokens, 128,000 positions a chain",
        methods="paper",
        few=4,
        many=32,
        layout="return-state-action-reward",
        test_trajectories=16,
        chains=10,
        timesteps_per_update=None,
        share_schemes=False,
    ),
    "gpu": Preset(
        summary="for one 80 GB GPU: N = 32 with one joint token a timestep, batch 4 chains of 32; "
        "a task and seed is predicted to take 23 hours of an H100",
        methods="paper",
        few=4,
        many=32,
        layout="joint",
        test_trajectories=16,
        chains=8,
        timesteps_per_update=128_000,
        share_schemes=True,
    ),
    "cpu": Preset(
        summary="for two cores: N = 16, joint tokens, small networks; minutes a cell",
        methods="cpu",
        few=4,
        many=16,
        layout="joint",
        test_trajectories=8,
        chains=8,
        timesteps_per_update=4_000,
        share_schemes=True,
    ),
}


def columns_of(preset: Preset) -> tuple[Column, ...]:
    """Give the columns in the paper's order, with the offline agents that ExoRL's users know."""
    few, many = preset.few, preset.many
    large = [
        Column(name=f"at-n{many}-{scheme}", method="at", trajectories=many, scheme=scheme)
        for scheme in ("vanilla", "memory_efficient", "blockwise")
    ]
    if preset.share_schemes:
        large[:2] = [dataclasses.replace(c, shared_with=large[2].name) for c in large[:2]]
    return (
        Column(name="bc10", method="bc10"),
        Column(name="td3_offline", method="td3_offline"),
        Column(name="td3_bc", method="td3_bc"),
        Column(name="dt", method="dt"),
        Column(name=f"at-n{few}-blockwise", method="at", trajectories=few, scheme="blockwise"),
        *large,
    )


class Row(NamedTuple):
    """A task and its data."""

    task: str
    store: Path | None
    """None where there are no episodes of its domain."""
    why: str
    """One line for None."""


def rows_of(
    data: Path,
    tasks: Sequence[str],
    *,
    episodes: int | None,
    stores: Path,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Make the store of each task from all that `<data>/<domain>/` holds: folders and zips.

    Raises:
        InputError: unknown task, or a bad episode.
    """
    rows = []
    for task in tasks:
        domain = data / task_spec(task).domain
        sources = sorted(
            path for path in domain.glob("*") if path.is_dir() or path.suffix == ".zip"
        )
        if not sources:
            rows.append(Row(task, None, f"not run: no episodes in {domain}"))
            continue
        made = ingest(*sources, task=task, out=stores, episodes=episodes, progress=progress)
        rows.append(Row(task, made.path, ""))
    return rows


def cells_of(
    preset: Preset, rows: Sequence[Row], *, seeds: int, steps: int | None, workdir: Path
) -> list[Cell]:
    """Compose the cells of all rows that have data, row by row, so that rows end one by one.

    Raises:
        InputError: a store with too few episodes for a column.
    """
    evaluation = Evaluation(
        trajectories=preset.test_trajectories,
        chains=preset.chains,
        multipliers=(1.0,),
    )
    cells = []
    for row in rows:
        if row.store is None:
            continue
        with Store.open(row.store) as store:
            timesteps, data = episode_steps(store), store.data_hash
        for seed in range(seeds):
            for column in columns_of(preset):
                experiment = experiment_of(preset, column, timesteps, steps=steps)
                experiment = dataclasses.replace(
                    experiment, store=str(row.store), data_hash=data, seed=seed
                )
                cells.append(
                    Cell(
                        task=row.task,
                        column=column.name,
                        experiment=experiment,
                        evaluation=evaluation,
                        folder=workdir / row.task / f"{column.name}-seed{seed}",
                        shared_with=column.shared_with,
                    )
                )
    return cells


def experiment_of(
    preset: Preset, column: Column, timesteps: int, *, steps: int | None
) -> Experiment:
    """Compose the experiment of a column for episodes of so many timesteps."""
    experiment = preset_of(column.method, preset.methods)
    if steps is not None:
        experiment = replace_in(experiment, ("loop", "steps"), steps)
    if not isinstance(experiment.agent, TransformerAgent):
        return experiment
    experiment = replace_in(experiment, ("agent", "model", "layout"), preset.layout)
    if column.trajectories is not None:
        experiment = replace_in(experiment, (*_CHAIN, "trajectories"), column.trajectories)
    if column.scheme is not None:
        experiment = replace_in(experiment, (*_CORE, "scheme"), column.scheme)
    return at_equal_timesteps(experiment, timesteps, preset.timesteps_per_update)


def at_equal_timesteps(
    experiment: Experiment, timesteps: int, timesteps_per_update: int | None
) -> Experiment:
    """Choose the batch so that an update sees as many timesteps whatever N is."""
    agent = experiment.agent
    if timesteps_per_update is None or not isinstance(agent, TransformerAgent):
        return experiment
    batch = max(1, timesteps_per_update // (agent.chain.trajectories * timesteps))
    return dataclasses.replace(experiment, batch=batch, accumulate=1)


def preset_named(name: str) -> Preset:
    """Look up a preset.

    Raises:
        InputError: unknown; the known ones are listed.
    """
    if name not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    return PRESETS[name]
