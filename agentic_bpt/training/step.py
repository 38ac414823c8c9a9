"""One update as a pure function: (state, batch) -> (state, metrics)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

LossFunction = Callable[[Any, Any, jax.Array], tuple[jax.Array, jax.Array]]
"""(params, batch, dropout seed uint32) -> (sum of losses, number of terms)."""


class TrainState(NamedTuple):
    """All that an update changes."""

    params: Any
    optimizer_state: optax.OptState
    step: jax.Array
    """int32 scalar: updates done."""


def init_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Start training from these parameters."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_train_step(
    loss: LossFunction,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    seed: int = 0,
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Build the update: gradient of the mean over all terms of the batch, clipped, applied.

    With `accumulate` > 1 the batch axis is cut into that many parts, worked on one after another.
    Sums and counts are added up before the division, so the result does not depend on the cut.
    """

    def gradients(params, batch, dropout_seed):
        total = lambda params: loss(params, batch, dropout_seed)  # noqa: E731
        (loss_sum, count), gradient = jax.value_and_grad(total, has_aux=True)(params)
        return loss_sum, count, gradient

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        seeds = jax.random.bits(key, (accumulate,), jnp.uint32)
        if accumulate == 1:
            loss_sum, count, gradient = gradients(state.params, batch, seeds[0])
        else:
            parts = jax.tree.map(lambda x: x.reshape(accumulate, -1, *x.shape[1:]), batch)

            def add_part(sums, part):
                return jax.tree.map(jnp.add, sums, gradients(state.params, *part)), None

            zeros = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params))
            sums, _ = jax.lax.scan(add_part, zeros, (parts, seeds))
            loss_sum, count, gradient = sums
        count = jnp.maximum(count, 1.0)
        gradient = jax.tree.map(lambda g: g / count, gradient)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss_sum / count, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return train_step
