"""Bytes of any function as its compiler plans them, also for devices that are not present.

`compile_on` belongs into a process of its own, started with `compiler_environment`, which must be
set before jax starts.
"""

import dataclasses
import importlib.util
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentic_bpt.blockwise.devices import Device
from agentic_bpt.blockwise.mesh import MeshConfig, make_mesh

_REFUSAL = re.compile(r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Bytes(NamedTuple):
    """Bytes on the device while a compiled function runs."""

    arguments: int
    outputs: int
    donated: int
    """Of the arguments, what the outputs are written into; counted once."""
    temporaries: int

    @property
    def total(self) -> int:
        """All that must fit at once."""
        return self.arguments + self.outputs - self.donated + self.temporaries


def compiler_environment(device: Device) -> dict[str, str]:
    """Give the environment in which jax compiles for a device without touching one."""
    if device.platform == "cuda":
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # timing kernels needs the GPU
        }
    if device.platform == "tpu":
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "TPU_SKIP_MDS_QUERY": "1",  # asks a cloud machine what it is
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is touched: no lock is needed
        }
    return {"JAX_PLATFORMS": "cpu"}


def missing_compiler(device: Device) -> str | None:
    """Say how to install the compiler of a device, or None where it is there."""
    package, extra = {
        "cuda": ("jax_plugins.xla_cuda12", "gpu-target"),
        "tpu": ("libtpu", "tpu-target"),
        "cpu": ("jaxlib", ""),
    }[device.platform]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    return None if found else f"pip install 'agentic-bpt[{extra}]'"


def bytes_of(compiled: jax.stages.Compiled) -> Bytes:
    """Read the bytes of a compiled function.

    Raises:
        ValueError: its compiler does not say.
    """
    found: Any = compiled.memory_analysis()
    if found is None:
        raise ValueError("this compiler does not say how many bytes a function takes")
    return Bytes(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
    )


def bytes_on(
    device: Device,
    function: Callable,
    *arguments: Any,
    donate: tuple[int, ...] = (),
    out_shardings: Any = None,
) -> Bytes:
    """Compile a function for a device, present or not, and give its bytes there.

    `arguments` are trees of arrays or of `jax.ShapeDtypeStruct`; those of a program for a mesh have
    their shardings on it (`absent_mesh`), and the bytes are those of each device. A program that
    the compiler refuses as too large has the bytes of the refusal.
    """
    try:
        compiled = compile_on(
            device, function, *arguments, donate=donate, out_shardings=out_shardings
        )
        return bytes_of(compiled)
    except jax.errors.JaxRuntimeError as error:
        needed = refused_bytes(str(error))
        if needed is None:
            raise
        sizes = [tree_bytes(argument) for argument in arguments]
        kept = sum(sizes[number] for number in donate)
        return Bytes(sum(sizes), kept, kept, needed)


def compile_on(
    device: Device,
    function: Callable,
    *arguments: Any,
    donate: tuple[int, ...] = (),
    out_shardings: Any = None,
) -> jax.stages.Compiled:
    """Compile a function for a device, present or not; see `bytes_on`."""
    placed = {} if out_shardings is None else {"out_shardings": out_shardings}
    jitted = jax.jit(function, donate_argnums=donate, **placed)
    if device.platform == "cpu":
        return jitted.lower(*arguments).compile()
    if not device.mesh:
        mesh = Mesh(np.array(_topology(device, 1).devices[:1]), ("device",))
        sharding = NamedSharding(mesh, PartitionSpec())
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments
        )
    traced = jitted.trace(*arguments)
    return traced.lower(lowering_platforms=(device.platform,)).compile()


def absent_mesh(device: Device) -> Mesh:
    """Arrange the devices of `device.mesh`, present or not.

    Raises:
        ValueError: no topology has so many.
    """
    config = MeshConfig.parse(device.mesh)
    if device.platform == "cpu":
        devices = jax.devices()
    else:
        devices = _topology(device, config.devices).devices
    return make_mesh(**dataclasses.asdict(config), devices=devices[: config.devices])


def refused_bytes(message: str) -> int | None:
    """Read from a compiler's refusal the bytes of temporaries it needs; None if it is another."""
    found = _REFUSAL.search(message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def tree_bytes(tree: Any) -> int:
    """Add up the bytes of all arrays of a tree, as the host counts them; of a mesh, a device's."""
    return sum(math.prod(_share(x)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _share(x: Any) -> tuple[int, ...]:
    sharding = getattr(x, "sharding", None)
    return x.shape if sharding is None else sharding.shard_shape(x.shape)


def _topology(device: Device, count: int) -> Any:
    if device.platform == "cuda":
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=device.name,
            topology=f"1x1x{count}",
            target_config=device.target,
        )
    core = {"chip_config_name": "megacore"} if device.target.startswith(("v4", "v5p")) else {}
    name = tpu_topology(device.target, count)
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **core)


def tpu_topology(smallest: str, count: int) -> str:
    """Name the most even topology of at least `count` chips: "v4:2x2x1" and 64 give "v4:4x4x4".

    Raises:
        ValueError: `count` is above 4 and no power of 2, as slices of TPUs are.
    """
    kind, _, shape = smallest.partition(":")
    sides = [int(side) for side in shape.split("x")]
    if count > math.prod(sides) and count & (count - 1):
        raise ValueError(f"TPUs come in powers of 2 above 4, got a mesh of {count}")
    while math.prod(sides) < count:
        shortest = min(reversed(range(len(sides))), key=lambda side: sides[side])
        sides[shortest] *= 2
    return f"{kind}:{'x'.join(map(str, sides))}"
