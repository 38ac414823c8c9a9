"""Checks the paper's section 3.1: the activation bytes of one layer against its formulas.

Command:   python experiments/section31.py      (extra gpu-target)
Time:      about 10 minutes of one core, 4 GB of memory; no accelerator
Expected:  experiments/results/language_model/section31.md: the formulas' order holds, their factors
           do not: compilers hold more than one tensor at a time
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from language_model import RESULTS

from agentic_bpt.blockwise.attention import blockwise_attention, dense_attention
from agentic_bpt.blockwise.core import SCHEMES, CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.blockwise.feedforward import (
    finish_layer,
    map_blocks,
    project_keys_values,
    project_queries,
)
from agentic_bpt.blockwise.memory import bytes_on, compiler_environment, missing_compiler
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.reports.plots import memory_png
from agentic_bpt.reports.results import write_json
from agentic_bpt.whole_file import write_whole

DEVICE = DEVICES["a100-80gb"]
HEAD_WIDTH = 128


class Shape(NamedTuple):
    """One layer: positions s, width h, and the block c of queries and keys; batch 1."""

    positions: int
    width: int
    block: int


BASE = Shape(16_384, 1_024, 512)
SHAPES = (
    *(BASE._replace(positions=positions) for positions in (4_096, 8_192, 16_384, 32_768)),
    *(BASE._replace(width=width) for width in (256, 4_096)),
    *(BASE._replace(block=block) for block in (128, 2_048)),
)


class Formula(NamedTuple):
    """The paper's largest tensor of a part, in numbers (half its bytes) over s h."""

    attention: float
    feedforward: float


def formula(scheme: str, shape: Shape) -> Formula:
    """Give the paper's.

    Attention: 2bs²a of scores, or 2bsh in blocks; feed-forward: 8bsh, or in blocks the larger of
    2bsh and 19bch, all that the feed-forward of one block holds.
    """
    s, h, c = shape
    heads = max(1, h // HEAD_WIDTH)
    return {
        "vanilla": Formula(s * heads / h, 4.0),
        "memory_efficient": Formula(1.0, 4.0),
        "blockwise": Formula(1.0, max(1.0, 9.5 * c / s)),
    }[scheme]


def config_of(scheme: str, shape: Shape) -> CoreConfig:
    """Give a core of one layer."""
    return CoreConfig(
        layers=1,
        width=shape.width,
        heads=max(1, shape.width // HEAD_WIDTH),
        scheme=scheme,
        engine="portable",
        query_block=shape.block,
        key_block=shape.block,
    )


def parts_of(scheme: str, shape: Shape) -> dict[str, Callable]:
    """Give functions of (stacked parameters, x [1, L, D]): both parts alone, and the layer."""
    config = config_of(scheme, shape)
    L, H, E = shape.positions, config.heads, config.head_width
    positions_BL = jnp.arange(L, dtype=jnp.int32)[None]
    attention: Callable = dense_attention
    if scheme != "vanilla":
        attention = partial(blockwise_attention, query_block=shape.block, key_block=shape.block)

    def attend(params: Any, x_BLD: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda w: w[0], params)
        q_MD = project_queries(p, x_BLD[0], head_width=E, dtype=config.dtype)
        kv_BLJE = project_keys_values(p, x_BLD[0], dtype=config.dtype).reshape(1, L, 2, H, E)
        return attention(
            q_MD.reshape(1, L, H, E) * E**0.5,  # attention divides by sqrt(E) itself
            kv_BLJE[:, :, 0],
            kv_BLJE[:, :, 1],
            query_positions_BL=positions_BL,
            key_positions_BS=positions_BL,
        )

    def finish(params: Any, x_BLD: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda w: w[0], params)
        one = partial(finish_layer, p, activation="relu", dtype=config.dtype, dropout=None)
        if scheme == "blockwise":
            return map_blocks(one, x_BLD[0], x_BLD[0], rows=shape.block)
        return one(x_BLD[0], x_BLD[0])

    return {
        "attention": jax.checkpoint(attend),
        "feedforward": jax.checkpoint(finish),
        "layer": partial(apply_stack, config=config),
    }


def measure(scheme: str, shape: Shape) -> dict[str, Any]:
    """Compile the gradient of each part; give its temporaries, in float32 numbers over s h."""
    config = config_of(scheme, shape)
    params = jax.eval_shape(lambda: init_stack(jax.random.key(0), config))
    x_BLD = jax.ShapeDtypeStruct((1, shape.positions, shape.width), jnp.float32)
    row: dict[str, Any] = {"scheme": scheme, **shape._asdict()}
    for name, function in parts_of(scheme, shape).items():

        def gradients(params, x_BLD, dy_BLD, function=function):
            y, backward = jax.vjp(function, params, x_BLD)
            return backward(dy_BLD.reshape(y.shape))

        found = bytes_on(DEVICE, gradients, params, x_BLD, x_BLD)
        row[name] = found.temporaries / 4 / (shape.positions * shape.width)
    return row


def main() -> None:
    """Compile everything and write the page and the picture."""
    if "--compile" not in sys.argv:  # jax must start in the compiler's environment
        install = missing_compiler(DEVICE)
        if install is not None:
            sys.exit(f"{DEVICE.name} has no compiler here: {install}")
        environment = dict(os.environ) | compiler_environment(DEVICE)
        subprocess.run([sys.executable, __file__, "--compile"], env=environment, check=True)
        return
    rows = []
    for shape in SHAPES:
        for scheme in SCHEMES:
            rows.append(measure(scheme, shape))
            print(rows[-1], flush=True)
    document = {"rows": rows, "command": "python experiments/section31.py"}
    document |= {"device": DEVICE.name, "versions": compiler_versions()}
    write_json(RESULTS / "section31.json", document)
    lines = [
        "# Section 3.1: activations of one layer",
        "",
        "Temporaries of the compiled gradient of one layer and of its parts alone, in float32 "
        "numbers over s h (positions times width); A100, batch 1, heads of 128, no dropout. The "
        "paper counts the largest tensor, at 2 bytes a number: its 2bsh is 1 here, its 8bsh 4. "
        "The layer's input, its output and their gradients are not temporaries and not counted.",
        "",
        "| s | h | block | scheme | attention (paper) | feed-forward (paper) | layer (paper) |",
        "|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        shape = Shape(row["positions"], row["width"], row["block"])
        paper = formula(row["scheme"], shape)
        lines.append(
            f"| {shape.positions:,} | {shape.width:,} | {shape.block:,} | {row['scheme']} | "
            f"{row['attention']:.1f} ({paper.attention:.1f}) | {row['feedforward']:.1f} "
            f"({paper.feedforward:.1f}) | {row['layer']:.1f} ({max(paper):.1f}) |"
        )
    lines += ["", "![bytes against positions](section31.png)", ""]
    lines += [f"Command: `{document['command']}`; versions {document['versions']}."]
    write_whole(RESULTS / "section31.md", ("\n".join(lines) + "\n").encode())
    write_whole(RESULTS / "section31.png", _picture(rows))


def _picture(rows: list[dict[str, Any]]) -> bytes:
    """Draw bytes against positions at the base width and block, ours and the formulas'."""
    curves: dict[str, dict[int, int]] = {}
    for row in rows:
        shape = Shape(row["positions"], row["width"], row["block"])
        if shape[1:] != BASE[1:]:
            continue
        size = 4 * shape.positions * shape.width
        for name, numbers in (
            (row["scheme"], row["layer"]),
            (f"{row['scheme']}, section 3.1", max(formula(row["scheme"], shape))),
        ):
            curves.setdefault(name, {})[shape.positions] = round(numbers * size)
    title = f"One layer of width {BASE.width:,}, float32: temporaries of its gradient"
    return memory_png(curves, {}, title=title, counted="positions")


if __name__ == "__main__":
    main()
