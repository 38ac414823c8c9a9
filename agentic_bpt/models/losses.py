"""Squared error of actions as (sum, count): means over parts add up to the mean of the whole."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.models.tokens import Array, Scales, Timesteps
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformer, timesteps_of


def action_error(
    predicted_BTA: jax.Array, actions_BTA: Array, counted_BT: Array
) -> tuple[jax.Array, jax.Array]:
    """Sum the squared error, mean over action dimensions, over counted timesteps; and count them.

    The loss of a batch is sum / count: padding never dilutes it, in whatever parts it is computed.
    """
    error_BT = jnp.square(predicted_BTA - actions_BTA).mean(axis=-1)
    return jnp.where(counted_BT, error_BT, 0.0).sum(), counted_BT.sum().astype(jnp.float32)


class Lesson(NamedTuple):
    """What a transformer is taught by a batch of chains; every array is [B, T, ...]."""

    timesteps: Timesteps
    """What it sees."""
    actions_BTA: Array
    """What it is to choose."""
    valid_BT: Array
    """False where a chain is padded."""
    counted_BT: Array
    """Whether its choice counts."""


def lesson_of(batch: ChainBatch) -> Lesson:
    """Give the lesson of a batch."""
    return Lesson(timesteps_of(batch), batch.actions_BLA, batch.valid_BL, batch.loss_BL)


def chain_loss(model: TrajectoryTransformer, scales: Scales) -> Callable:
    """Make the loss of AT and DT: (params, batch, dropout seed or None) -> (sum, count).

    A model over a mesh takes a `Lesson` in shard order in place of a `ChainBatch`.
    """

    def loss(params, batch: ChainBatch | Lesson, dropout_seed):
        lesson = batch if isinstance(batch, Lesson) else lesson_of(batch)
        predicted: Any = model.apply(
            params, lesson.timesteps, lesson.valid_BT, scales, dropout_seed
        )
        return action_error(predicted, lesson.actions_BTA, lesson.counted_BT)

    return loss
