"""Compiling a stack of layers for a device that is not present, in a process of its own."""

import dataclasses
import json
import os
import subprocess
import sys

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.blockwise.memory import compiler_environment, missing_compiler

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.blockwise.memory import bytes_of, compile_on

name, fields, shape = json.loads(sys.argv[1])
config = CoreConfig(**fields)
params = jax.eval_shape(lambda: init_stack(jax.random.key(0), config))
x_BLD = jax.ShapeDtypeStruct((*shape, config.width), jnp.float32)
valid_BL = jax.ShapeDtypeStruct(shape, bool)


def loss(params, x_BLD, valid_BL):
    if config.engine == "portable":
        valid_BL = None
    return jnp.square(apply_stack(params, x_BLD, config=config, valid_BL=valid_BL)).sum()


compiled = compile_on(DEVICES[name], jax.grad(loss, (0, 1)), params, x_BLD, valid_BL)
print(json.dumps({"bytes": bytes_of(compiled)._asdict(), "text": compiled.as_text()}))
"""


def why_not(name: str) -> str | None:
    """Say what is missing to compile for a device: the reason of a skipped test."""
    install = missing_compiler(DEVICES[name])
    return f"compiling for {name} needs {install}" if install else None


def compiled_for(name: str, config: CoreConfig, *, batch: int, positions: int) -> dict:
    """Compile the gradient of a sum of squares; its bytes and the text of the program."""
    request = json.dumps([name, dataclasses.asdict(config), [batch, positions]])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request],
        capture_output=True,
        text=True,
        env=os.environ | compiler_environment(DEVICES[name]),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
