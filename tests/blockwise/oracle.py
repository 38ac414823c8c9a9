"""The dense float64 oracle of a stack of layers, and how far something is from it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack

TOLERANCE = 1e-5  # max |a - b| <= TOLERANCE max |b|


def relative_error(a, b) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b))))


def perturbed_params(config: CoreConfig):
    """Parameters in which no bias is zero and no scale is one."""
    params = init_stack(jax.random.key(0), config)
    noise = lambda w: w + 0.1 * jax.random.normal(jax.random.key(3), w.shape, jnp.float32)  # noqa: E731
    return jax.tree.map(noise, params)


def value_and_gradients(config, params, x_BLD, **inputs):
    """Weighted sum of valid outputs, the outputs, and gradients of parameters and input."""
    valid_BL = inputs.get("valid_BL", jnp.ones(x_BLD.shape[:2], bool))
    weights = jax.random.normal(jax.random.key(2), x_BLD.shape, jnp.float32)

    def total(params, x_BLD):
        y_BLD = apply_stack(params, x_BLD, config=config, **inputs)
        kept_BLD = jnp.where(valid_BL[..., None], y_BLD, 0)
        return (kept_BLD * weights).sum(), (kept_BLD, y_BLD)

    gradients, (kept_BLD, y_BLD) = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x_BLD)
    return kept_BLD, gradients, y_BLD


def oracle(config, params, x_BLD, **inputs):
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda w: jnp.asarray(np.asarray(w), jnp.float64), tree)  # noqa: E731
        dense = dataclasses.replace(config, scheme="vanilla", dtype="float64", engine="portable")
        kept, gradients, _ = value_and_gradients(dense, wide(params), wide(x_BLD), **inputs)
        return np.asarray(kept), jax.tree.map(np.asarray, gradients)
