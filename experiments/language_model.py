"""The paper's GPTs on this package's core: shapes, parameters, loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.loss import cross_entropy

RESULTS = Path(__file__).parent / "results" / "language_model"


class GPT(NamedTuple):
    """A row of the paper's Table 1."""

    layers: int
    width: int
    heads: int


GPTS = {
    "1B": GPT(24, 2048, 16),
    "3B": GPT(32, 2560, 32),
    "7B": GPT(32, 4096, 32),
    "13B": GPT(40, 5120, 40),
    "30B": GPT(48, 7168, 56),
    "70B": GPT(80, 8192, 64),
}
"""Layers and widths of Table 1, in heads of 128 (3B: 80); 13B has width 5,140 there, which no such
heads make: 5,120 is meant."""


def init_gpt(key: jax.Array, core: CoreConfig, vocabulary: int) -> dict[str, Any]:
    """Draw parameters: embedding [V, D], the stack, the last norm's scale [D], head [D, V]."""
    embed, stack, head = jax.random.split(key, 3)
    D = core.width
    return {
        "embed": 0.02 * jax.random.normal(embed, (vocabulary, D)),
        "stack": init_stack(stack, core),
        "norm": jnp.ones(D),
        "head": 0.02 * jax.random.normal(head, (D, vocabulary)),
    }


def gpt_loss(params: dict[str, Any], tokens_BL: jax.Array, core: CoreConfig) -> jax.Array:
    """Give the mean cross-entropy, nats a token, of each token after those before it."""
    inputs_BL, targets_BL = tokens_BL[:, :-1], tokens_BL[:, 1:]
    x_BLD = params["embed"][inputs_BL] + sinusoids(inputs_BL.shape[1], core.width)
    x_BLD = apply_stack(params["stack"], x_BLD, config=core)
    x_BLD = x_BLD - x_BLD.mean(axis=-1, keepdims=True)
    x_BLD *= params["norm"] / jnp.sqrt(jnp.square(x_BLD).mean(axis=-1, keepdims=True) + 1e-6)
    valid_BL = jnp.ones(targets_BL.shape, bool)
    total, count = cross_entropy(x_BLD, params["head"], targets_BL, valid_BL)
    return total / count


def gpt_step(core: CoreConfig, optimizer: optax.GradientTransformation) -> Callable:
    """Give the update of a GPT: ((params, moments), tokens [B, L + 1]) -> (the same, loss)."""

    def step(state: Any, tokens_BL: jax.Array) -> Any:
        params, moments = state
        loss, gradients = jax.value_and_grad(gpt_loss)(params, tokens_BL, core)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    return step


def sinusoids(positions: int, width: int) -> jax.Array:
    """Give position embeddings [L, D] without parameters (Vaswani et al. 2017), of size 0.02."""
    rates_D = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles_LD = jnp.arange(positions)[:, None] * rates_D
    return 0.02 * jnp.concatenate([jnp.sin(angles_LD), jnp.cos(angles_LD)], axis=-1)
