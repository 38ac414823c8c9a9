"""One of several processes of test_parallel that are joined by `jax.distributed` on loopback.

Arguments: rank, number of processes, coordinator, seconds to wait. Prints one JSON document: the
errors of values and gradients over all processes' devices against this process alone.
"""

import json
import sys
from functools import partial

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from agentic_bpt.blockwise.core import CoreConfig, apply_stack
from agentic_bpt.blockwise.parallel import apply_stack_parallel, make_mesh, shard_params
from agentic_bpt.blockwise.processes import join_processes
from tests.blockwise.oracle import perturbed_params, relative_error


def main():
    rank, processes, coordinator, seconds = sys.argv[1:]
    try:
        join_processes(coordinator, int(processes), int(rank), timeout_seconds=int(seconds))
    except TimeoutError as error:
        print(json.dumps({"message": str(error)}), flush=True)
        return
    config = CoreConfig(layers=2, width=16, heads=2, feedforward=32, query_block=8, key_block=8)
    with jax.default_device(jax.local_devices()[0]):
        params = jax.tree.map(np.asarray, perturbed_params(config))
    x_BLD = np.random.default_rng(0).normal(size=(2, 40, 16)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=x_BLD.shape).astype(np.float32)

    def total(apply, params, x_BLD):
        y_BLD = apply(params, x_BLD)
        return (y_BLD * weights).sum(), y_BLD

    def gradients(apply):
        return jax.grad(partial(total, apply), (0, 1), has_aux=True)

    alone = jax.jit(gradients(partial(apply_stack, config=config)))(params, x_BLD)
    mesh = make_mesh(data=1, sequence=2, model=2)
    over_mesh = partial(apply_stack_parallel, config=config, mesh=mesh, exchange="ring")
    together = jax.jit(gradients(over_mesh), out_shardings=NamedSharding(mesh, PartitionSpec()))(
        shard_params(params, mesh), x_BLD
    )
    errors = jax.tree.leaves(jax.tree.map(relative_error, together, alone))
    processes_seen = len({device.process_index for device in mesh.devices.flat})
    print(json.dumps({"error": max(errors), "processes": processes_seen}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
