"""The speed of the device at hand, against which steps are judged and predicted."""

import time

import jax
import jax.numpy as jnp

PEAK_SIZE = 2048
"""Rows and columns of the square product that is timed."""
_SECONDS = 0.5  # that are spent on measuring


def measured_peak() -> float:
    """Measure the float32 operations a second of a large square product; the best of several."""
    a = jnp.ones((PEAK_SIZE, PEAK_SIZE))
    product = jax.jit(jnp.dot)
    product(a, a).block_until_ready()
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK_SIZE**3 / best
