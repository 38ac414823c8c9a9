"""Bytes of any function as its compiler plans them, also for devices that are not present.

`compile_on` belongs into a process of its own, started with `compiler_environment`, which must be
set before jax starts.
"""

import importlib.util
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agentic_bpt.blockwise.devices import Device

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
    device: Device, function: Callable, *arguments: Any, donate: tuple[int, ...] = ()
) -> Bytes:
    """Compile a function for one device, present or not, and give its bytes.

    `arguments` are trees of arrays or of `jax.ShapeDtypeStruct`. A program that the compiler
    refuses as too large has the bytes of the refusal.
    """
    try:
        return bytes_of(compile_on(device, function, *arguments, donate=donate))
    except jax.errors.JaxRuntimeError as error:
        needed = refused_bytes(str(error))
        if needed is None:
            raise
        sizes = [tree_bytes(argument) for argument in arguments]
        kept = sum(sizes[number] for number in donate)
        return Bytes(sum(sizes), kept, kept, needed)


def compile_on(
    device: Device, function: Callable, *arguments: Any, donate: tuple[int, ...] = ()
) -> jax.stages.Compiled:
    """Compile a function for one device, present or not."""
    jitted = jax.jit(function, donate_argnums=donate)
    if device.platform == "cpu":
        return jitted.lower(*arguments).compile()
    mesh = Mesh(np.array(_topology(device).devices[:1]), ("device",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def place(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    traced = jitted.trace(*jax.tree.map(place, arguments))
    return traced.lower(lowering_platforms=(device.platform,)).compile()


def refused_bytes(message: str) -> int | None:
    """Read from a compiler's refusal the bytes of temporaries it needs; None if it is another."""
    found = _REFUSAL.search(message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def tree_bytes(tree: Any) -> int:
    """Add up the bytes of all arrays of a tree, as the host counts them."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _topology(device: Device) -> Any:
    if device.platform == "cuda":
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=device.name,
            topology="1x1x1",
            target_config=device.target,
        )
    core = {"chip_config_name": "megacore"} if device.target.startswith(("v4", "v5p")) else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=device.target, **core)
