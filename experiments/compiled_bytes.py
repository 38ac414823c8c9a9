"""Bytes that training a GPT of the paper takes on devices that are not present, by compiling.

Used by `table2.py` and `table3.py`. Run as a program it compiles one training step: a child of
those, for compilers of absent devices must be configured before jax starts.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec
from language_model import GPTS, RESULTS, gpt_step, init_gpt

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.blockwise.devices import DEVICES, Device
from agentic_bpt.blockwise.memory import (
    absent_mesh,
    bytes_on,
    compiler_environment,
    missing_compiler,
)
from agentic_bpt.blockwise.placement import param_specs
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.planner.prediction import answer_of
from agentic_bpt.reports.results import write_json

BYTES = RESULTS / "bytes.json"
VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, padded to divide by 64 devices."""
BLOCK = 512
TIMEOUT_SECONDS = 1_200
PROTOCOL = (
    "One sequence, float32, AdamW, layers rematerialised, blocks of 512, the loss in blocks; the "
    "blockwise scheme recomputes attention too. Parameters are split over the devices by heads and "
    "hidden units; all else, the residual stream included, as XLA's partitioner finds best. "
    "Compiled for devices that were not present. A device counts as the bytes that one program can "
    "have: 80.8 GB of an A100, 33.0 GB of a TPU v4."
)


class Setup(NamedTuple):
    """One training step: batch 1, float32, AdamW, its parameters split over `count` devices."""

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


def bytes_taken(setup: Setup) -> int | None:
    """Compile a step, or take what `BYTES` has of it; None where the compiler gave no answer.

    Raises:
        SystemExit: its compiler is not installed.
    """
    for row in _known()["rows"]:
        if all(row[name] == value for name, value in setup._asdict().items()):
            return row["bytes"]
    device = device_of(setup)
    install = missing_compiler(device)
    if install is not None:
        sys.exit(f"{setup.device} has no compiler here: {install}")
    command = [sys.executable, __file__, json.dumps(setup._asdict())]
    environment = dict(os.environ) | compiler_environment(device)
    found = answer_of(command, environment, timeout=TIMEOUT_SECONDS)
    print(f"{setup}: {found}", flush=True)
    if isinstance(found, str):
        return None
    known = _known()  # another table may have written meanwhile
    known["rows"].append(setup._asdict() | found)
    write_json(BYTES, known)
    return found["bytes"]


def device_of(setup: Setup) -> Device:
    """Describe the devices of a setup as a mesh."""
    return DEVICES[setup.device].over(f"model={setup.count}", setup.count)


def largest_power(fits: Callable[[int], bool | None], start: int, *, most: int) -> int | None:
    """Give the largest power of two that fits, up to `most`, 0 if none; None if it is not known.

    Args:
        fits: whether a number fits; None: not known.
        start: a power of two to begin at.
        most: no more is asked for.
    """
    n, fit = start, fits(start)
    while fit is False and n > 1:
        n //= 2
        fit = fits(n)
        if fit:
            return n
    if fit is None:
        return None
    if not fit:
        return 0
    while n < most:
        fit = fits(2 * n)
        if fit is None:
            return None
        if not fit:
            break
        n *= 2
    return n


def _known() -> dict[str, Any]:
    """Read what was compiled by the same compilers from the same sources."""
    fresh = {
        "command": "python experiments/table2.py; python experiments/table3.py",
        "protocol": PROTOCOL,
        "versions": compiler_versions(),
        "rows": [],
    }
    known = json.loads(BYTES.read_text()) if BYTES.exists() else fresh
    same = all(known.get(name) == fresh[name] for name in ("protocol", "versions"))
    return known if same else fresh


def _compile(setup: Setup) -> dict[str, Any]:
    """Compile the step of a setup in this process, and read its bytes a device."""
    core = gpt_core(setup.model, setup.scheme)
    device = device_of(setup)
    mesh = absent_mesh(device)
    optimizer = optax.adamw(1e-4)

    def init() -> Any:
        params = init_gpt(jax.random.key(0), core, VOCABULARY)
        return params, optimizer.init(params)

    columns = Spec(None, "model")
    specs = {"embed": columns, "norm": Spec(), "head": columns, "count": Spec()}
    specs |= param_specs()._asdict()

    def placed(path: tuple, x: Any) -> jax.ShapeDtypeStruct:
        """Split an array as the parameter it is, or belongs to as a moment."""
        name = str(getattr(path[-1], "name", getattr(path[-1], "key", "")))
        sharding = NamedSharding(mesh, specs[name])
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    state = jax.tree_util.tree_map_with_path(placed, jax.eval_shape(init))
    whole = NamedSharding(mesh, Spec())
    tokens = jax.ShapeDtypeStruct((1, setup.positions + 1), jnp.int32, sharding=whole)
    began = time.perf_counter()
    found = bytes_on(
        device,
        gpt_step(core, optimizer),
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


if __name__ == "__main__":
    try:
        print(json.dumps(_compile(Setup(**json.loads(sys.argv[1])))))
    except jax.errors.JaxRuntimeError as error:
        sys.exit(str(error).splitlines()[0])
