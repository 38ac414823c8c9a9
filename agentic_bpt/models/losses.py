"""Squared error of actions as (sum, count): means over parts add up to the mean of the whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.models.tokens import Array, Scales
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformer, timesteps_of


def action_error(
    predicted_BTA: jax.Array, actions_BTA: Array, counted_BT: Array
) -> tuple[jax.Array, jax.Array]:
    """Sum the squared error, mean over action dimensions, over counted timesteps; and count them.

    The loss of a batch is sum / count: padding never dilutes it, in whatever parts it is computed.
    """
    error_BT = jnp.square(predicted_BTA - actions_BTA).mean(axis=-1)
    return jnp.where(counted_BT, error_BT, 0.0).sum(), counted_BT.sum().astype(jnp.float32)


def chain_loss(model: TrajectoryTransformer, scales: Scales) -> Callable:
    """Make the loss of AT and DT: (params, batch, dropout seed or None) -> (sum, count)."""

    def loss(params, batch: ChainBatch, dropout_seed):
        timesteps = timesteps_of(batch)
        predicted: Any = model.apply(params, timesteps, batch.valid_BL, scales, dropout_seed)
        return action_error(predicted, batch.actions_BLA, batch.loss_BL)

    return loss
