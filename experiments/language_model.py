"""The paper's GPTs on this package's core, and the bytes that training one takes on any devices.

Used by `table2.py`, `table3.py` and `table4.py`. Run as a program it compiles one training step
(a child of those, for compilers of absent devices must be configured before jax starts).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.blockwise.loss import cross_entropy
from agentic_bpt.blockwise.memory import absent_mesh, bytes_on, compiler_environment
from agentic_bpt.blockwise.placement import param_specs
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.reports.results import write_json

RESULTS = Path(__file__).parent / "results" / "language_model"
BYTES = RESULTS / "bytes.json"
VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, padded to divide by 64 devices."""
BLOCK = 512
TIMEOUT_SECONDS = 1_200


class GPT(NamedTuple):
    """A row of the paper's Table 1."""

    layers: int
    width: int
    heads: int


GPTS = {
    "1B": GPT(24, 2048, 16),
    "3B": GPT(32, 2560, 32),
    "7B": GPT(32, 4096, 32),
    "13B": GPT(40, 5120, 40),
    "30B": GPT(48, 7168, 56),
    "70B": GPT(80, 8192, 64),
}
"""Table 1; 13B there has width 5,140, which its 40 heads of 128 do not make: 5,120 is meant."""


class Setup(NamedTuple):
    """One training step: batch 1, float32, AdamW, tensor-parallel over `count` devices."""

    model: str
    device: str
    count: int
    scheme: str
    positions: int


def gpt_core(model: str, scheme: str) -> CoreConfig:
    """Give the core of a GPT of Table 1; the blockwise scheme recomputes attention too."""
    return CoreConfig(
        **GPTS[model]._asdict(),
        activation="gelu",
        scheme=scheme,
        engine="portable",
        recompute_attention=scheme == "blockwise",
        query_block=BLOCK,
        key_block=BLOCK,
    )


def init_gpt(key: jax.Array, core: CoreConfig, vocabulary: int) -> dict[str, Any]:
    """Draw parameters: embedding [V, D], the stack, the last norm's scale [D], head [D, V]."""
    embed, stack, head = jax.random.split(key, 3)
    D = core.width
    return {
        "embed": 0.02 * jax.random.normal(embed, (vocabulary, D)),
        "stack": init_stack(stack, core),
        "norm": jnp.ones(D),
        "head": 0.02 * jax.random.normal(head, (D, vocabulary)),
    }


def gpt_loss(params: dict[str, Any], tokens_BL: jax.Array, core: CoreConfig) -> jax.Array:
    """Give the mean cross-entropy, nats a token, of each token after those before it."""
    inputs_BL, targets_BL = tokens_BL[:, :-1], tokens_BL[:, 1:]
    x_BLD = params["embed"][inputs_BL] + sinusoids(inputs_BL.shape[1], core.width)
    x_BLD = apply_stack(params["stack"], x_BLD, config=core)
    x_BLD = x_BLD - x_BLD.mean(axis=-1, keepdims=True)
    x_BLD *= params["norm"] / jnp.sqrt(jnp.square(x_BLD).mean(axis=-1, keepdims=True) + 1e-6)
    valid_BL = jnp.ones(targets_BL.shape, bool)
    total, count = cross_entropy(x_BLD, params["head"], targets_BL, valid_BL)
    return total / count


def sinusoids(positions: int, width: int) -> jax.Array:
    """Give position embeddings [L, D] without parameters (Vaswani et al. 2017), of size 0.02."""
    rates_D = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles_LD = jnp.arange(positions)[:, None] * rates_D
    return 0.02 * jnp.concatenate([jnp.sin(angles_LD), jnp.cos(angles_LD)], axis=-1)


def bytes_taken(setup: Setup) -> int | None:
    """Compile a step, or take what `BYTES` has of it; None where the compiler gave no answer.

    Raises:
        RuntimeError: another error than one of the compiler.
    """
    known = json.loads(BYTES.read_text()) if BYTES.exists() else {"rows": []}
    for row in known["rows"]:
        if all(row[name] == value for name, value in setup._asdict().items()):
            return row["bytes"]
    device = device_of(setup)
    words = [sys.executable, __file__, json.dumps(setup._asdict())]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env=dict(os.environ) | compiler_environment(device),
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode < 0:
        return None  # killed, as when the host has no memory left
    if done.returncode:
        raise RuntimeError(f"{setup}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    known["rows"].append(setup._asdict() | found)
    known |= {"command": "python experiments/table2.py; python experiments/table3.py"}
    known |= {"versions": compiler_versions()}
    write_json(BYTES, known)
    print(f"{setup}: {found['bytes'] / 1e9:.1f} GB, {found['seconds']:.0f} s", flush=True)
    return found["bytes"]


def device_of(setup: Setup) -> Device:
    """Describe the devices of a setup as a mesh over which heads and hidden units are split."""
    return DEVICES[setup.device].over(f"model={setup.count}", setup.count)


def _compile(setup: Setup) -> dict[str, Any]:
    """Compile the step of a setup in this process, and read its bytes a device."""
    core = gpt_core(setup.model, setup.scheme)
    device = device_of(setup)
    mesh = absent_mesh(device)
    optimizer = optax.adamw(1e-4)

    def init() -> Any:
        params = init_gpt(jax.random.key(0), core, VOCABULARY)
        return params, optimizer.init(params)

    def step(state: Any, tokens_BL: Any) -> Any:
        params, moments = state
        loss, gradients = jax.value_and_grad(gpt_loss)(params, tokens_BL, core)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    columns = Spec(None, "model")
    specs = {"embed": columns, "norm": Spec(), "head": columns}
    specs |= param_specs()._asdict()

    def placed(path: tuple, x: Any) -> jax.ShapeDtypeStruct:
        """Split an array as the parameter it is, or belongs to as a moment."""
        name = str(getattr(path[-1], "name", getattr(path[-1], "key", "")))
        sharding = NamedSharding(mesh, specs.get(name, Spec()))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    state = jax.tree_util.tree_map_with_path(placed, jax.eval_shape(init))
    whole = NamedSharding(mesh, Spec())
    tokens = jax.ShapeDtypeStruct((1, setup.positions + 1), jnp.int32, sharding=whole)
    began = time.perf_counter()
    found = bytes_on(
        device,
        step,
        state,
        tokens,
        donate=(0,),
        out_shardings=(jax.tree.map(lambda x: x.sharding, state), whole),
    )
    return {
        "bytes": found.total,
        "state": found.donated,
        "temporaries": found.temporaries,
        "seconds": time.perf_counter() - began,
    }


def largest_power(fits: Callable[[int], bool | None], start: int, *, most: int) -> int | None:
    """Give the largest power of two that fits, up to `most`; None where it is not known.

    Args:
        fits: whether a number fits; None: not known.
        start: a power of two to begin at.
        most: no more is asked for.
    """
    n = start
    first = fits(n)
    if first is None:
        return None
    if not first:
        while n > 1:
            n //= 2
            if fits(n):
                return n
        return 0
    while n < most and fits(2 * n):
        n *= 2
    return n


if __name__ == "__main__":
    print(json.dumps(_compile(Setup(**json.loads(sys.argv[1])))))
