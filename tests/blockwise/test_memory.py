"""Bytes of compiled functions: exact where they can be counted, parsed where they are refused."""

import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from agentic_bpt.blockwise.devices import DEVICES, Device, device_named
from agentic_bpt.blockwise.memory import (
    bytes_of,
    bytes_on,
    compiler_environment,
    missing_compiler,
    refused_bytes,
    tree_bytes,
)

CPU = Device(name="cpu", platform="cpu", usable_bytes=0)

COMPILE = """
import jax, jax.numpy as jnp
from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.blockwise.memory import bytes_on
x = jax.ShapeDtypeStruct(({size},), jnp.float32)
sorted_outer = lambda x: x + jnp.sort(jnp.outer(x, x), axis=0)[0]
print(*bytes_on(DEVICES[{name!r}], sorted_outer, x, donate=(0,)))
"""


def needs(name: str):
    package = {"cuda": "jax_cuda12_plugin", "tpu": "libtpu"}[DEVICES[name].platform]
    missing = importlib.util.find_spec(package) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {package}"))


def compiled_elsewhere(name: str, size: int) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE.format(name=name, size=size)],
        capture_output=True,
        text=True,
        env=os.environ | compiler_environment(DEVICES[name]),
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_arguments_outputs_and_what_is_donated():
    x = jnp.zeros(1000)
    function = jax.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)
    found = bytes_of(function.lower(x, x).compile())
    assert (found.arguments, found.donated) == (8000, 4000)
    assert 8000 <= found.outputs < 8100  # the outputs and the table of their addresses
    assert found.total == found.arguments + found.outputs - 4000 + found.temporaries


def test_temporaries_hold_what_must_be_kept():
    def loss(x):
        for _ in range(4):
            x = jnp.tanh(x @ x)
        return x.sum()

    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    forward = bytes_on(CPU, loss, x).temporaries
    backward = bytes_on(CPU, jax.grad(loss), x).temporaries
    assert backward >= 4 * 256 * 256 * 4 > forward / 2


def test_a_refusal_is_read():
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (47.44G) exceeds available HBM (30.75G)."
    )
    assert refused_bytes(message) == round(47.44 * 2**30)
    assert refused_bytes("INTERNAL: something else (47.44G)") is None


def test_bytes_of_a_tree():
    assert tree_bytes({"a": jnp.zeros((2, 3)), "b": [jnp.zeros(5, jnp.int8)]}) == 29


def test_an_unknown_device_lists_the_known():
    with pytest.raises(ValueError, match=r"a100-80gb, .*tpu-v6e; got 'a100'"):
        device_named("a100")


def test_only_what_xla_does_not_describe_is_unverified():
    assert {name for name, device in DEVICES.items() if not device.verified} == {"l4", "rtx4090"}


def test_the_compiler_that_is_there_needs_no_install():
    assert missing_compiler(CPU) is None


@pytest.mark.parametrize("name", [needs("l4"), needs("tpu-v5e")])
def test_compiling_for_a_device_that_is_not_present(name):
    arguments, outputs, donated, temporaries = compiled_elsewhere(name, 4096)
    assert (arguments, donated) == (4096 * 4, 4096 * 4)
    assert outputs >= 4096 * 4
    assert 4096**2 * 4 <= temporaries <= 4 * 4096**2 * 4


@pytest.mark.parametrize("name", [needs("tpu-v5e")])
def test_a_program_that_a_tpu_refuses_has_its_bytes(name):
    temporaries = compiled_elsewhere(name, 131_072)[3]
    assert temporaries >= 131_072**2 * 4 > DEVICES[name].usable_bytes
