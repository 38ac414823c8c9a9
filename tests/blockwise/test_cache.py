"""Decoding with a cache gives the rows of the full pass."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.cache import extend_stack, init_cache, require_room
from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_chunks_of_any_size_equal_the_full_pass(dtype, bound):
    config = CoreConfig(layers=2, width=32, heads=4, kv_heads=2, feedforward=64)
    params = init_stack(jax.random.key(0), config)
    x_BLD = jax.random.normal(jax.random.key(1), (3, 600, 32))
    valid_BL = jnp.arange(600) % 7 != jnp.array([0, 3, 5])[:, None]
    full = apply_stack(params, x_BLD, config=config, valid_BL=valid_BL)
    cache = init_cache(config, batch=3, capacity=600, dtype=dtype)
    parts, first = [], 0
    for size in (540, 1, 1, 58):  # the last chunk crosses no block, the first crosses one
        cut = slice(first, first + size)
        out, cache = extend_stack(
            params, x_BLD[:, cut], cache, config=config, valid_BM=valid_BL[:, cut]
        )
        parts.append(out)
        first += size
    difference = jnp.where(valid_BL[..., None], jnp.concatenate(parts, axis=1) - full, 0)
    assert np.abs(difference).max() <= bound * np.abs(full).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_holds_blocks_of_the_cache_and_no_copy_of_it(dtype):
    config = CoreConfig(layers=2, width=32, heads=2)
    params = init_stack(jax.random.key(0), config)
    cache = init_cache(config, batch=1, capacity=65_536, dtype=dtype)
    step = jax.jit(partial(extend_stack, config=config), donate_argnums=2)
    analysis = step.lower(params, jnp.ones((1, 1, 32)), cache).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < cache.keys_KGSE.nbytes / 4


def test_an_overrun_is_refused_before_the_call():
    cache = init_cache(CoreConfig(width=16), batch=1, capacity=512)
    require_room(cache, filled=511, new=1)
    with pytest.raises(ValueError, match="no room for 2 more"):
        require_room(cache, filled=511, new=2)
