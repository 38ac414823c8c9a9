"""A training run over many devices: where its state and its batches lie on a mesh.

Nothing of it is part of an experiment: a run gives the same numbers on any mesh, up to rounding,
and a checkpoint that was written on one goes on upon another.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentic_bpt.blockwise.memory import bytes_of
from agentic_bpt.blockwise.mesh import MeshConfig, make_mesh
from agentic_bpt.blockwise.parallel import SEQUENCES, param_specs, shard_sequence
from agentic_bpt.blockwise.processes import join_processes
from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import Experiment, TransformerAgent
from agentic_bpt.models.losses import Lesson, lesson_of

_STACK_SPECS = param_specs()._asdict()


def join_mesh(
    mesh: str | None, *, coordinator: str | None, processes: int, rank: int
) -> MeshConfig | None:
    """Read a mesh, after joining the processes whose devices it is made of; None for one device.

    Raises:
        InputError: a wrong argument, or a process that did not join.
    """
    if mesh is None:
        if coordinator or processes != 1 or rank:
            raise InputError("--coordinator, --processes and --rank belong to a --mesh: give one")
        return None
    config = _parsed(mesh)
    if not coordinator:
        if processes != 1 or rank:
            raise InputError("several --processes need the --coordinator, host:port of rank 0")
        return config
    try:
        join_processes(coordinator, processes, rank)
    except ValueError as error:
        raise InputError(f"--{error}") from error
    except TimeoutError as error:
        raise InputError(str(error)) from error
    return config


def checked_mesh(experiment: Experiment, mesh: str) -> MeshConfig:
    """Read a mesh that an experiment could be spread over, were there such devices.

    Raises:
        InputError: As `mesh_for`.
    """
    config = _parsed(mesh)
    _require(experiment, config, devices=config.devices)
    return config


def mesh_for(experiment: Experiment, config: MeshConfig) -> Mesh:
    """Arrange all devices, of all processes, for the training of an experiment.

    Raises:
        InputError: the method is not a transformer, its scheme or engine are for one device, or the
            mesh does not divide its batch or heads or take the devices there are; meshes that would
            work are listed.
    """
    _require(experiment, config, devices=len(jax.devices()))
    return make_mesh(**dataclasses.asdict(config))


def _parsed(mesh: str) -> MeshConfig:
    try:
        return MeshConfig.parse(mesh)
    except ValueError as error:
        raise InputError(f"--{error}") from error


def _require(experiment: Experiment, config: MeshConfig, *, devices: int) -> None:
    agent = experiment.agent
    if not isinstance(agent, TransformerAgent):
        raise InputError(f"--mesh means nothing to method {experiment.method}: leave it out")
    core = agent.model.core
    if core.scheme != "blockwise" or core.engine not in ("auto", "portable"):
        raise InputError(
            "--mesh needs --scheme blockwise and --engine portable, "
            f"got {core.scheme} and {core.engine}"
        )
    try:
        config.require(core, batch=experiment.batch // experiment.accumulate, devices=devices)
    except ValueError as error:
        raise InputError(f"--{error}") from error


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """Say how the arrays of a training state lie: those of a stack are split over "model".

    What an optimiser keeps for a parameter lies as the parameter does.
    """

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        names = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
        inside = "stack" in names[:-1] and names[-1] in _STACK_SPECS
        return NamedSharding(mesh, _STACK_SPECS[names[-1]] if inside else Spec())

    return jax.tree_util.tree_map_with_path(sharding, state)


def step_shardings(state: Any, mesh: Mesh) -> tuple[Any, NamedSharding]:
    """Say how what an update gives lies: the state as before, its metrics on every device."""
    return state_shardings(state, mesh), NamedSharding(mesh, Spec())


def spread_step(step: Callable, state: Any, batch: Lesson, mesh: Mesh, *, limit: int) -> Callable:
    """Compile an update for a mesh, and ask before it is run whether it fits.

    Args:
        step: (state, batch) -> (state, metrics), pure; the state is donated.
        state: on the mesh.
        batch: on the mesh.
        mesh: the devices.
        limit: bytes that each of them has; of a CPU, those that all of its devices share.

    Raises:
        InputError: it does not fit.
    """
    jitted = jax.jit(step, donate_argnums=0, out_shardings=step_shardings(state, mesh))
    compiled = jitted.lower(state, batch).compile()
    sharing = len(mesh.local_devices) if mesh.local_devices[0].platform == "cpu" else 1
    takes, has = bytes_of(compiled).total, limit // sharing
    if takes > has:
        raise InputError(
            f"this training step takes {takes / 1e9:.1f} GB on each device, which has "
            f"{has / 1e9:.1f} GB: take a --mesh of more, fewer --trajectories or more --accumulate"
        )
    return compiled


def spread_state(state: Any, mesh: Mesh) -> Any:
    """Put a state, the same one in all processes, on the devices of a mesh."""
    return jax.tree.map(_place, state, state_shardings(state, mesh))


def spread_shapes(state: Any, batch: Any, mesh: Mesh) -> tuple[Any, Any]:
    """Give the `jax.ShapeDtypeStruct`s of a spread state and of the lesson of a batch."""
    shards, sharding = mesh.shape["sequence"], NamedSharding(mesh, SEQUENCES)

    def shape(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    ordered = jax.eval_shape(
        lambda batch: jax.tree.map(partial(shard_sequence, shards=shards), lesson_of(batch)), batch
    )
    placed = jax.tree.map(lambda x: shape(x, sharding), ordered)
    return jax.tree.map(shape, state, state_shardings(state, mesh)), placed


def spread_batch(batch: ChainBatch, mesh: Mesh) -> Lesson:
    """Put a batch, the same in all processes, on a mesh: in shard order, each device its share."""
    shards, sharding = mesh.shape["sequence"], NamedSharding(mesh, SEQUENCES)
    lesson = jax.tree.map(np.asarray, lesson_of(batch))
    return jax.tree.map(lambda x: _place(shard_sequence(x, shards=shards), sharding), lesson)


def _place(x: Any, sharding: NamedSharding) -> jax.Array:
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda share: whole[share])
