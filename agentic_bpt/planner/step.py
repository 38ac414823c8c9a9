"""The real training step of an experiment as shapes: what is compiled, and what it is handed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentic_bpt.blockwise.core import LARGEST_BLOCK
from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, TransformerAgent, replace_in
from agentic_bpt.models.losses import chain_loss
from agentic_bpt.models.tokens import LAYOUTS, Scales
from agentic_bpt.models.trajectory_transformer import Sizes, TrajectoryTransformer, timesteps_of
from agentic_bpt.spread import spread_shapes, step_shardings
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import init_state, make_train_step


class EpisodeShape(NamedTuple):
    """What a data set fixes."""

    observation_width: int
    action_width: int
    steps: int
    """Timesteps of the longest episode."""


class Step(NamedTuple):
    """One update, ready to be traced."""

    function: Callable
    """(state, batch) -> (state, metrics); the state is donated."""
    init: Callable[[], Any]
    """Make the state that training starts from."""
    state: Any
    """`jax.ShapeDtypeStruct` of the state."""
    batch: Any
    """`jax.ShapeDtypeStruct` of the batch."""
    out_shardings: Any = None
    """Over a mesh, how what the function gives lies."""


def transformer_of(experiment: Experiment) -> TransformerAgent:
    """Give the transformer agent of an experiment.

    Raises:
        InputError: the method is an MLP on single steps.
    """
    if not isinstance(experiment.agent, TransformerAgent):
        raise InputError(
            f"method {experiment.method} learns from single steps and fits anywhere: "
            "ask for at or dt"
        )
    return experiment.agent


def positions_of(experiment: Experiment, episode: EpisodeShape) -> int:
    """Count the tokens L of one chain."""
    agent = transformer_of(experiment)
    tokens = len(LAYOUTS[agent.model.layout].tokens)
    return agent.chain.trajectories * episode.steps * tokens


def with_engine(experiment: Experiment, platform: str) -> Experiment:
    """Name the engine and blocks that training would take on a platform ("cpu", "cuda", "tpu").

    Raises:
        InputError: the engine that was asked for cannot compute this.
    """
    core = transformer_of(experiment).model.core
    try:
        engine = core.engine_with(
            dropout=core.dropout, platform="gpu" if platform == "cuda" else platform
        )
    except ValueError as error:
        raise InputError(f"--{error}") from error
    core_path = ("agent", "model", "core")
    if platform != "cpu":  # compiled from a CPU, which would choose smaller ones
        for name in ("query_block", "key_block"):
            size = getattr(core, name) or LARGEST_BLOCK
            experiment = replace_in(experiment, (*core_path, name), size)
    return replace_in(experiment, (*core_path, "engine"), engine)


def training_step(experiment: Experiment, episode: EpisodeShape, mesh: Mesh | None = None) -> Step:
    """Build model, loss, optimiser and accumulation as `agentic_bpt.run` does, without data."""
    agent = transformer_of(experiment)
    N = agent.chain.trajectories
    model = TrajectoryTransformer(agent.model, Sizes(episode.action_width, episode.steps, N))
    ones = np.ones(episode.observation_width, np.float32)
    scales = Scales(0 * ones, ones, jnp.float32(1), jnp.float32(1))
    optimizer = make_optimizer(experiment.optimizer, steps=experiment.loop.steps)

    def init():
        one = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch_shape(1, 1, episode))
        params = model.init(
            jax.random.key(experiment.seed), timesteps_of(one), one.valid_BL, scales
        )
        return init_state(params, optimizer)

    state: Any = jax.eval_shape(init)
    batch = batch_shape(experiment.batch, N * episode.steps, episode)
    out_shardings = None
    if mesh is not None:
        model = model.clone(mesh=mesh)
        state, batch = spread_shapes(state, batch, mesh)
        out_shardings = step_shardings(state, mesh)
    step = make_train_step(
        chain_loss(model, scales),
        optimizer,
        accumulate=experiment.accumulate,
        seed=experiment.seed,
    )
    return Step(step, init, state, batch, out_shardings)


def example_batch(step: Step) -> ChainBatch:
    """Make a batch that a step can be run on; what it holds is of no meaning."""
    batch: ChainBatch = jax.tree.map(
        lambda x: jax.device_put(np.ones(x.shape, x.dtype)), step.batch
    )
    # A timestep embedding is looked up by these: any row will do, but there must be one.
    return batch._replace(timesteps_BL=0 * batch.timesteps_BL)


def batch_shape(chains: int, timesteps: int, episode: EpisodeShape) -> Any:
    """Give the shapes of a batch of chains."""

    def array(kind, *widths) -> Any:
        return jax.ShapeDtypeStruct((chains, timesteps, *widths), kind)

    number, count, flag = array(np.float32), array(np.int32), array(np.bool_)
    return ChainBatch(
        array(np.float32, episode.observation_width),
        array(np.float32, episode.action_width),
        *(number, number, number, count, count, flag, flag),
    )
