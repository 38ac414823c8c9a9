"""Many meshes against one device, with 8 forced host devices; prints one JSON document.

Run with XLA_FLAGS=--xla_force_host_platform_device_count=8. `--fault` plants an error of 1 % in the
gradient of one shard.
"""

import dataclasses
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agentic_bpt.blockwise import parallel
from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.loss import cross_entropy
from agentic_bpt.blockwise.memory import bytes_of
from agentic_bpt.blockwise.parallel import (
    apply_stack_parallel,
    make_mesh,
    shard_params,
    shard_sequence,
    unshard_sequence,
)
from tests.blockwise.oracle import perturbed_params, relative_error

BATCH, LENGTH = 4, 71
CORE = CoreConfig(
    layers=2, width=32, heads=4, kv_heads=2, feedforward=72, query_block=16, key_block=8
)
"""Grouped heads; a length that neither blocks nor shards divide; unlike blocks."""
FAULT = 1.01

CASES = {
    "data and model": ({"data": 2, "model": 2}, "auto", ("positions",)),
    "gather": ({"sequence": 2}, "gather", ("positions",)),
    "ring": ({"sequence": 4}, "ring", ("positions",)),
    "ring, recomputed": ({"sequence": 2, "data": 2}, "ring", ("recompute",)),
    "ring of 8": ({"sequence": 8}, "ring", ("ordered",)),
    "all, gather": ({"data": 2, "sequence": 2, "model": 2}, "gather", ("dropout",)),
    "all, ring": ({"data": 2, "sequence": 2, "model": 2}, "ring", ("dropout",)),
}
"""Mesh, exchange and what is special."""


def mesh_of(**sizes):
    count = int(np.prod(list(sizes.values())))
    return make_mesh(**sizes, devices=jax.devices()[:count])


def case_inputs(special):
    """Padding at the end, unlike lengths; padding at the start; positions in any order, or none."""
    lengths_B = np.array([LENGTH - 9 * b for b in range(BATCH)])
    valid_BL = np.arange(LENGTH) < lengths_B[:, None]
    valid_BL[0, :3] = False
    inputs = {"valid_BL": jnp.asarray(valid_BL)}
    if "positions" in special:
        generator = np.random.default_rng(0)
        shuffled = [generator.permutation(LENGTH) for _ in range(BATCH)]
        inputs["positions_BL"] = jnp.asarray(np.stack(shuffled), jnp.int32)
    if "dropout" in special:
        inputs["dropout_seed"] = jnp.uint32(5)
    return inputs


def value_and_gradients(apply, params, x_BLD, inputs):
    weights = jax.random.normal(jax.random.key(2), x_BLD.shape, jnp.float32)

    def total(params, x_BLD):
        y_BLD = apply(params, x_BLD, **inputs)
        return (jnp.where(inputs["valid_BL"][..., None], y_BLD, 0) * weights).sum(), y_BLD

    gradients, y_BLD = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x_BLD)
    return y_BLD, gradients


def ordered_before(apply, shards, params, x_BLD, *, valid_BL):
    """Put a batch into the order of the shards first, as training does."""
    x_BLD, valid_BL = (shard_sequence(x, shards=shards) for x in (x_BLD, valid_BL))
    y_BLD = apply(params, x_BLD, valid_BL=valid_BL, in_shard_order=True)
    return unshard_sequence(y_BLD, shards=shards, length=LENGTH)


def worst(found, expected):
    return max(jax.tree.leaves(jax.tree.map(relative_error, found, expected)))


def check_cases():
    """Largest relative error of values and of gradients, by case."""
    params = perturbed_params(CORE)
    x_BLD = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, CORE.width))
    one_device, errors = {}, {}
    for name, (sizes, exchange, special) in CASES.items():
        config = dataclasses.replace(
            CORE,
            dropout=0.3 if "dropout" in special else 0.0,
            recompute_attention="recompute" in special,
        )
        inputs = case_inputs(special)
        key = (config.dropout, *inputs)
        if key not in one_device:
            apply = partial(apply_stack, config=config)
            one_device[key] = value_and_gradients(apply, params, x_BLD, inputs)
        mesh = mesh_of(**sizes)
        apply = partial(apply_stack_parallel, config=config, mesh=mesh, exchange=exchange)
        if "ordered" in special:
            apply = partial(ordered_before, apply, sizes["sequence"])
        y_BLD, gradients = value_and_gradients(apply, shard_params(params, mesh), x_BLD, inputs)
        expected, expected_gradients = one_device[key]
        errors[name] = [relative_error(y_BLD, expected), worst(gradients, expected_gradients)]
    return errors


def check_descent():
    """Distance from one device after 20 steps, as a share of the distance moved."""
    config = dataclasses.replace(CORE, layers=1, width=16, feedforward=32)
    mesh = mesh_of(data=2, sequence=2, model=2)
    start = init_stack(jax.random.key(0), config)
    x_BLD = jax.random.normal(jax.random.key(1), (BATCH, 48, config.width))
    target_BLD = jax.random.normal(jax.random.key(2), x_BLD.shape)

    def descend(apply, params):
        loss = lambda params: jnp.square(apply(params, x_BLD) - target_BLD).mean()  # noqa: E731
        step = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p)))
        for _ in range(20):
            params = step(params)
        return np.concatenate([np.ravel(w) for w in jax.tree.leaves(params)])

    over_mesh = partial(apply_stack_parallel, config=config, mesh=mesh, exchange="ring")
    alone = descend(partial(apply_stack, config=config), start)
    together = descend(over_mesh, shard_params(start, mesh))
    begin = np.concatenate([np.ravel(w) for w in jax.tree.leaves(start)])
    moved = np.linalg.norm(alone - begin)
    return float(np.linalg.norm(together - alone) / moved), float(moved)


def check_loss():
    """Relative errors of a mean loss in blocks on shards, and of its gradients."""
    mesh = mesh_of(data=2, sequence=2, model=2)
    keys = jax.random.split(jax.random.key(0), 4)
    hidden_BLD = jax.random.normal(keys[0], (BATCH, 40, 16))
    weight_DV = jax.random.normal(keys[1], (16, 10))
    targets_BL = jax.random.randint(keys[2], (BATCH, 40), 0, 10)
    valid_BL = jax.random.bernoulli(keys[3], 0.4, (BATCH, 40))

    def block_loss(weight_DV, hidden_BLD, targets_BL, valid_BL):
        return cross_entropy(hidden_BLD, weight_DV, targets_BL, valid_BL, block=8)

    def mean(loss):
        def function(weight_DV, hidden_BLD):
            total, count = loss(weight_DV, hidden_BLD, targets_BL, valid_BL)
            return total / count

        return jax.jit(jax.value_and_grad(function, (0, 1)))(weight_DV, hidden_BLD)

    def on_shards(weights, *arrays):
        return parallel.sum_over_shards(block_loss, weights, arrays, mesh=mesh)

    return worst(mean(on_shards), mean(block_loss))


def check_bytes():
    """Compiled temporaries of a gradient on each device of a ring, by number of shards."""
    config = CoreConfig(layers=2, width=32, query_block=128, key_block=128)
    params = jax.eval_shape(lambda: init_stack(jax.random.key(0), config))
    found = {}
    for shards in (1, 2, 4, 8):
        mesh = mesh_of(sequence=shards)
        sharding = jax.sharding.NamedSharding(mesh, parallel.SEQUENCES)
        x_BLD = jax.ShapeDtypeStruct((1, 32_768, 32), jnp.float32, sharding=sharding)

        def loss(params, x_BLD, mesh=mesh):
            y_BLD = apply_stack_parallel(
                params, x_BLD, config=config, mesh=mesh, exchange="ring", in_shard_order=True
            )
            return jnp.square(y_BLD).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, x_BLD).compile()
        found[shards] = bytes_of(compiled).temporaries
    return found


def plant_fault():
    """Make the gradients of the first shard of the sequence too large by 1 %."""
    exact = parallel.sum_gradients

    def faulty(dparams):
        scale = jnp.where(jax.lax.axis_index("sequence") == 0, FAULT, 1.0)
        return exact(jax.tree.map(lambda g: g * scale, dparams))

    parallel.sum_gradients = faulty


def main():
    if "--fault" in sys.argv:
        plant_fault()
        print(json.dumps({"descent": check_descent()}))
        return
    document = {
        "cases": check_cases(),
        "descent": check_descent(),
        "loss": check_loss(),
        "bytes": check_bytes(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
