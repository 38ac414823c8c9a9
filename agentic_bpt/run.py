"""The one place where the parts meet for training: a run in its folder, resumable."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentic_bpt.blockwise.mesh import MeshConfig
from agentic_bpt.datasets.hidden import HiddenEpisodes
from agentic_bpt.datasets.sampler import (
    ChainBatch,
    ChainSampler,
    TransitionBatch,
    TransitionSampler,
    best_episodes,
)
from agentic_bpt.datasets.store import Store
from agentic_bpt.environments.hidden_tasks import hidden_tasks, reward_file_hash
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import (
    CloningAgent,
    CriticAgent,
    Experiment,
    TransformerAgent,
    difference_from_run,
    replace_in,
    write_experiment,
)
from agentic_bpt.exploration.offline_td3 import make_offline
from agentic_bpt.models.losses import action_error, chain_loss
from agentic_bpt.models.mlp_policy import MLPPolicy
from agentic_bpt.models.tokens import LAYOUTS, Scales
from agentic_bpt.models.trajectory_transformer import Sizes, TrajectoryTransformer, timesteps_of
from agentic_bpt.planner import require_fit
from agentic_bpt.planner.prediction import device_at_hand
from agentic_bpt.planner.step import EpisodeShape, batch_shape, with_engine
from agentic_bpt.reports.results import write_json
from agentic_bpt.spread import mesh_for, spread_batch, spread_state, spread_step
from agentic_bpt.training.checkpoint import Checkpoints
from agentic_bpt.training.loop import Hook, train
from agentic_bpt.training.metrics import MetricsWriter
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import TrainState, init_state, make_train_step
from agentic_bpt.whole_file import held

CHECKPOINTS, DATA_FILE = "checkpoints", "data.json"

VALIDATION_BATCHES = 4
VALIDATION_EVERY_STEPS = 200
_VALIDATION_SEED = 2**31 - 1  # any fixed number that is not a training seed


class Parts(NamedTuple):
    """A method that lowers one loss, made concrete for a store."""

    model: Any
    params: Any
    scales: Scales
    loss: Callable
    """(params, batch, dropout seed or None) -> (sum, count)."""
    batch_at: Callable[[int], Any]
    validation_at: Callable[[int], Any] | None
    tokens_per_batch: int


class Training(NamedTuple):
    """What the training loop needs of any method."""

    state: Any
    """Where it starts: a structure of arrays, of which `step` counts the updates done."""
    step: Callable
    """(state, batch) -> (state, metrics), pure; `loss` is among the metrics."""
    batch_at: Callable[[int], Any]
    scales: Scales
    hooks: list[Hook]
    tokens_per_batch: int


def scales_of(store: Store) -> Scales:
    """Take the units of the training split."""
    longest = int(store.lengths[store.training].max())
    return Scales(
        jnp.asarray(store.observation_mean),
        jnp.asarray(store.observation_std),
        jnp.float32(store.return_scale),
        jnp.float32(store.return_scale / longest),
    )


def make_training(experiment: Experiment, store: Store, mesh: Mesh | None = None) -> Training:
    """Build initial state, update and batches of an experiment, on one device or over a mesh."""
    agent, batch, seed = experiment.agent, experiment.batch, experiment.seed
    optimizer = make_optimizer(experiment.optimizer, steps=experiment.loop.steps)
    if isinstance(agent, CriticAgent):
        offline = make_offline(
            store, agent.learner, optimizer, bc_alpha=agent.bc_alpha, batch=batch, seed=seed
        )
        return Training(*offline, scales_of(store), [], batch)
    parts = make_parts(experiment, store)
    state, scales = init_state(parts.params, optimizer), parts.scales
    if mesh is not None:
        parts = _over(mesh, parts)
        state, scales = spread_state((state, scales), mesh)
    step = make_train_step(parts.loss, optimizer, accumulate=experiment.accumulate, seed=seed)
    return Training(state, step, parts.batch_at, scales, _hooks(parts), parts.tokens_per_batch)


def _over(mesh: Mesh, parts: Parts) -> Parts:
    """Let a transformer's loss and batches be those of its share of a mesh."""
    batch_at, validation_at = parts.batch_at, parts.validation_at
    return parts._replace(
        loss=chain_loss(parts.model.clone(mesh=mesh), parts.scales),
        batch_at=lambda step: spread_batch(batch_at(step), mesh),
        validation_at=validation_at and (lambda number: spread_batch(validation_at(number), mesh)),
    )


def make_parts(experiment: Experiment, store: Store) -> Parts:
    """Build model, initial parameters, loss and batches of a method that lowers one loss."""
    agent = experiment.agent
    if isinstance(agent, CloningAgent):
        return _cloning_parts(experiment, agent, store)
    if isinstance(agent, TransformerAgent):
        return _transformer_parts(experiment, agent, store)
    raise ValueError(f"{experiment.method} lowers two losses, its critics' and its policy's")


def _transformer_parts(experiment: Experiment, agent: TransformerAgent, store: Store) -> Parts:
    longest = int(store.lengths.max())
    hidden, scales, returns = None, scales_of(store), store.returns
    if agent.hidden_task:
        hidden = HiddenEpisodes(store, hidden_tasks(agent.hidden_task), told=agent.told)
        returns = hidden.returns(np.arange(len(store)), hidden.tasks.training_KD)
        scales = _hidden_scales(hidden, returns[:, store.training])
    source = store if hidden is None else hidden.training_tasks()
    model = transformer_model(agent, store.task, episode_steps(store))

    def sampler(episodes, trajectories, seed, count):
        chain = dataclasses.replace(agent.chain, trajectories=trajectories, trajectory_count=count)
        options: dict[str, Any] = {
            "returns": returns[..., episodes],
            "longest": longest,
            "config": chain,
            "batch": experiment.batch,
            "seed": seed,
        }
        return ChainSampler(source, episodes, **options)

    chain = agent.chain
    training = sampler(store.training, chain.trajectories, experiment.seed, chain.trajectory_count)
    validation = None
    if len(store.validation):
        count = min(chain.trajectories, len(store.validation))
        validation = sampler(store.validation, count, _VALIDATION_SEED, "fixed").batch
    one = one_timestep(experiment, store.task)
    key = jax.random.key(experiment.seed)
    params = model.init(key, timesteps_of(one), one.valid_BL, scales)
    tokens = (
        experiment.batch * chain.trajectories * longest * len(LAYOUTS[agent.model.layout].tokens)
    )
    loss = chain_loss(model, scales)
    return Parts(model, params, scales, loss, training.batch, validation, tokens)


def transformer_model(agent: TransformerAgent, task: str, steps: int) -> TrajectoryTransformer:
    """Build the transformer of a task whose episodes have at most `steps` timesteps."""
    sizes = Sizes(task_spec(task).action_width, steps, agent.chain.trajectories)
    return TrajectoryTransformer(agent.model, sizes)


def _hidden_scales(hidden: HiddenEpisodes, returns_KE: np.ndarray) -> Scales:
    """Take the units of the training split under all training parameters."""
    store = hidden.store
    units = hidden.units(returns_KE, longest=int(store.lengths[store.training].max()))
    return Scales(*(jnp.asarray(unit, jnp.float32) for unit in units))


def observation_width(experiment: Experiment, task: str) -> int:
    """Count the numbers that an agent sees: those of the task, and a parameter that it is told."""
    agent, width = experiment.agent, task_spec(task).observation_width
    if isinstance(agent, TransformerAgent) and agent.told:
        width += len(hidden_tasks(agent.hidden_task).parameter_names)
    return width


def one_timestep(experiment: Experiment, task: str) -> ChainBatch:
    """Make a batch of one chain of one timestep: the shapes that parameters depend on."""
    widths = observation_width(experiment, task), task_spec(task).action_width
    shapes = batch_shape(1, 1, EpisodeShape(*widths, steps=1))
    # Zeros, and True in the masks.
    return jax.tree.map(lambda part: np.full(part.shape, part.dtype == bool, part.dtype), shapes)


def episode_steps(store: Store) -> int:
    """Give the timesteps of the longest episode, stored or to come when acting."""
    acting = task_spec(store.task).episode_steps // store.action_repeat
    return max(acting, int(store.lengths.max()))


def _cloning_parts(experiment: Experiment, agent: CloningAgent, store: Store) -> Parts:
    scales = scales_of(store)
    model = MLPPolicy(agent.model, task_spec(store.task).action_width)
    best = best_episodes(store.returns, store.training, fraction=agent.best_fraction)
    training = TransitionSampler(store, best, batch=experiment.batch, seed=experiment.seed)

    def loss(params, batch: TransitionBatch, dropout_seed):
        predicted: Any = model.apply(params, batch.observations_BO, scales)
        counted = jnp.ones((len(batch.actions_BA), 1), bool)
        return action_error(predicted[:, None], batch.actions_BA[:, None], counted)

    one = jnp.zeros((1, task_spec(store.task).observation_width))
    params = model.init(jax.random.key(experiment.seed), one, scales)
    return Parts(model, params, scales, loss, training.batch, None, experiment.batch)


def only_run(workdir: Path) -> contextlib.AbstractContextManager[None]:
    """Hold a run's folder.

    Raises:
        InputError: another process holds it.
    """
    refusal = "is in use by another run: wait for it, or give another --workdir"
    return held(workdir, refusal=refusal)


def train_run(
    experiment: Experiment,
    workdir: Path,
    *,
    label: str | None = None,
    mesh: MeshConfig | None = None,
) -> None:
    """Train an experiment in its folder, or go on where it was stopped.

    Over a mesh, every process of it calls this with the same arguments and sees the same folder;
    the first holds it and says how far it is.

    Raises:
        InputError: the folder is in use or holds another experiment, the store is not fit, or the
            mesh cannot work.
    """
    first = mesh is None or jax.process_index() == 0
    alone = only_run(workdir) if first else contextlib.nullcontext()
    with alone, Store.open(Path(experiment.store)) as store:
        experiment = _with_hashes(experiment, store)
        checkpoints = Checkpoints(workdir / CHECKPOINTS)
        if difference := difference_from_run(experiment, workdir):
            raise InputError(
                f"{workdir}: holds another experiment: {difference}; give another --workdir"
            )
        devices = None if mesh is None else mesh_for(experiment, mesh)
        if checkpoints.latest_step == experiment.loop.steps:
            checkpoints.close()
            return
        if devices is None:
            _require_fit(experiment, store)
        training = make_training(experiment, store, devices)
        state, beside = training.state, {"scales": training.scales}
        if checkpoints.latest_step is not None:
            saved = checkpoints.restore({"state": state, **beside})
            state = type(state)(*saved["state"])
        step_function: Callable = jax.jit(training.step, donate_argnums=0)
        if devices is not None:
            limit = device_at_hand().usable_bytes
            step_function = spread_step(
                training.step, state, training.batch_at(0), devices, limit=limit
            )
        metrics = None
        if first:  # only now: a run that is refused leaves the folder to another experiment
            write_experiment(experiment, workdir)
            write_json(workdir / DATA_FILE, describe_data(store))
            metrics = MetricsWriter(workdir, resume_step=int(state.step))
        try:
            train(
                state,
                config=experiment.loop,
                step_function=step_function,
                batch_at=training.batch_at,
                tokens_per_batch=training.tokens_per_batch,
                checkpoints=checkpoints,
                saved_beside=beside,
                metrics=metrics,
                hooks=training.hooks,
                label=label or f"train {experiment.method}",
            )
        finally:
            if metrics:
                metrics.close()
            checkpoints.close()


def _with_hashes(experiment: Experiment, store: Store) -> Experiment:
    """Say what is in the files that an experiment names."""
    agent = experiment.agent
    if isinstance(agent, TransformerAgent):
        hidden_hash = reward_file_hash(agent.hidden_task)
        experiment = replace_in(experiment, ("agent", "hidden_hash"), hidden_hash)
    return dataclasses.replace(experiment, data_hash=store.data_hash)


def _hooks(parts: Parts) -> list[Hook]:
    if parts.validation_at is None:
        return []
    batches = [parts.validation_at(number) for number in range(VALIDATION_BATCHES)]
    loss = jax.jit(lambda params, batch: parts.loss(params, batch, None))

    def validate(state: TrainState) -> dict[str, float]:
        sums = [loss(state.params, batch) for batch in batches]
        total, count = (float(sum(values)) for values in zip(*sums, strict=True))
        return {"validation_loss": total / max(count, 1.0)}

    return [Hook(VALIDATION_EVERY_STEPS, validate)]


def _require_fit(experiment: Experiment, store: Store) -> None:
    """Ask the planner before hours are spent; print its line if it is close.

    Raises:
        InputError: it does not fit, or the engine that was asked for cannot compute it.
    """
    if not isinstance(experiment.agent, TransformerAgent):
        return
    with_engine(experiment, jax.default_backend())
    widths = observation_width(experiment, store.task), task_spec(store.task).action_width
    line = require_fit(experiment, *widths, episode_steps(store))
    if line:
        print(line, file=sys.stderr)


def describe_data(store: Store) -> dict[str, Any]:
    """Say what a run must know of its data without the store, and what reports show of it."""
    returns = store.returns[store.training]
    best_tenth = store.returns[best_episodes(store.returns, store.training, fraction=0.1)]
    return {
        "path": str(store.path),
        "data_hash": store.data_hash,
        "task": store.task,
        "action_repeat": store.action_repeat,
        "relabel": store.relabel,
        "episodes": len(store),
        "episode_steps": episode_steps(store),
        "returns": [round(float(value), 4) for value in returns],
        "best": store.best_return,
        "mean": float(returns.mean()),
        "best_tenth_mean": float(best_tenth.mean()),
    }
