"""Checkpoints of a run, through Orbax: whole or absent, the newest two kept."""

import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from agentic_bpt.errors import InputError

KEPT = 2
"""The newest checkpoint, and one before it in case the newest state turns out to be bad."""


class Checkpoints:
    """The checkpoints of one run, by number of updates done."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        # Orbax reports every save and restore at level INFO and warns of defaults that hold here.
        logging.getLogger("absl").setLevel(logging.ERROR)
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def latest_step(self) -> int | None:
        """Updates done in the newest whole checkpoint; None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, tree: Any) -> None:
        """Write a pytree of arrays; it appears under its step only when it is complete.

        Raises:
            InputError: the disk is full; the checkpoints before are untouched.
        """
        try:
            self._manager.save(step, args=ocp.args.StandardSave(tree))
        except (ValueError, OSError) as error:
            # TensorStore, which Orbax writes with, reports a full disk as a ValueError.
            if "RESOURCE_EXHAUSTED" not in str(error) and "No space left" not in str(error):
                raise
            good = self.latest_step
            kept = f"the one of step {good} is whole" if good is not None else "none was written"
            raise InputError(
                f"{self.folder}: the disk is full at step {step}: make room and run the same "
                f"command again; of the checkpoints before, {kept}"
            ) from error

    def restore(self, template: Any) -> Any:
        """Read the newest checkpoint into the shapes of `template`, whatever devices wrote it.

        Arrays of the template say where theirs go; shapes alone go to the first device here.

        Raises:
            InputError: there is none, or it cannot be read into these shapes.
        """
        step = self.latest_step
        if step is None:
            raise InputError(f"{self.folder}: holds no checkpoint: run `agentic-bpt train` first")
        abstract = jax.tree.map(_placed_shape, template)
        try:
            return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
        except (ValueError, KeyError, FileNotFoundError) as error:
            reason = str(error).splitlines()[0][:200]
            raise InputError(
                f"{self.folder}/{step}: cannot be read; delete this checkpoint to go on from the "
                f"one before it; got: {reason}"
            ) from error

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()


def _placed_shape(x: Any) -> jax.ShapeDtypeStruct:
    shape: Any = ocp.utils.to_shape_dtype_struct(x)
    if shape.sharding is not None:
        return shape
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=here)
