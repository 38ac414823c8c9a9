"""Memory on a GPU that is not present: the portable engine compiled ahead of time for an H100."""

import importlib.util
import os
import subprocess
import sys

import pytest

POSITIONS, WIDTH, LAYERS = 16_384, 128, 3

COMPILE = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from agentic_bpt.blockwise import CoreConfig, apply_stack, init_stack

H100 = '''gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32
shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536
registers_per_block_limit: 65536 } platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 } device_description_str: "NVIDIA H100 80GB HBM3"'''
topology = topologies.get_topology_desc(
    platform="cuda", topology_name="h100", topology="1x1x8", target_config=H100
)
sharding = NamedSharding(Mesh(np.array(topology.devices[:1]), ("device",)), PartitionSpec())
place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
config = CoreConfig(layers={layers}, width={width})
params = jax.tree.map(place, jax.eval_shape(lambda: init_stack(jax.random.key(0), config)))
x_BLD = place(jax.ShapeDtypeStruct((1, {positions}, {width}), jnp.float32))
loss = lambda params, x_BLD: jnp.square(apply_stack(params, x_BLD, config=config)).sum()
traced = jax.jit(jax.grad(loss, (0, 1))).trace(params, x_BLD)
compiled = traced.lower(lowering_platforms=("cuda",)).compile()
print("bytes", compiled.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None,
    reason="compiling for a GPU needs jax-cuda12-plugin and jax-cuda12-pjrt",
)
def test_temporaries_on_an_h100_stay_within_14_sequences():
    """The floor is 2 K + 3 = 9 sequences; copies of loop carries come on top."""
    sizes = {"layers": LAYERS, "width": WIDTH, "positions": POSITIONS}
    code = COMPILE
    for name, value in sizes.items():
        code = code.replace("{" + name + "}", str(value))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = int(done.stdout.split("bytes")[1])
    assert found <= 14 * POSITIONS * WIDTH * 4
