"""The mesh of devices that a stack is spread over, and which meshes can work.

Axes: "data" has different sequences of a batch, "sequence" different positions of a sequence,
"model" different heads and hidden units. Neighbours on the last axis talk most: devices of one
host belong there.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from agentic_bpt.blockwise.core import CoreConfig

AXES = ("data", "sequence", "model")

_SHOWN = 6
"""Meshes that would work, in a message."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices share out the batch, the positions, and the heads."""

    data: int = 1
    """Parts of the batch; must divide it."""
    sequence: int = 1
    """Parts P of the positions; any length is padded to fit."""
    model: int = 1
    """Parts of the heads and of the feed-forward network's hidden units; must divide them."""

    def __post_init__(self):
        """Refuse an axis without devices."""
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise ValueError(f"mesh: {axis} must be at least 1, got {getattr(self, axis)}")

    @classmethod
    def parse(cls, text: str) -> "MeshConfig":
        """Read "data=2,sequence=4,model=1"; an axis that is not named is 1.

        Raises:
            ValueError: a word is not axis=number, or an axis is unknown or named twice.
        """
        sizes = {}
        for word in text.split(","):
            axis, _, size = (part.strip() for part in word.partition("="))
            if axis not in AXES or axis in sizes or not size.isdecimal():
                raise ValueError(
                    f"mesh must be like data=2,sequence=4,model=1, each axis once, got {text!r}"
                )
            sizes[axis] = int(size)
        return cls(**sizes)

    @classmethod
    def of(cls, mesh: Mesh) -> "MeshConfig":
        """Read the sizes of a mesh.

        Raises:
            ValueError: it has other axes.
        """
        if tuple(mesh.axis_names) != AXES:
            raise ValueError(f"mesh must have the axes {AXES}, got {mesh.axis_names}")
        return cls(**{axis: mesh.shape[axis] for axis in AXES})

    def __str__(self) -> str:
        """Write it as `parse` reads it."""
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.sequence * self.model

    def refusal(self, config: CoreConfig, *, batch: int) -> str | None:
        """Say why this stack and batch cannot be spread so; None if they can."""
        for axis, count, what in (
            ("data", batch, f"the batch of {batch}"),
            ("model", config.heads, f"{config.heads} heads"),
            ("model", config.key_value_heads, f"{config.key_value_heads} key-value heads"),
            ("model", config.feedforward_width, f"{config.feedforward_width} hidden units"),
        ):
            if count % getattr(self, axis):
                return f"{axis}={getattr(self, axis)} does not divide {what}"
        return None

    def require(self, config: CoreConfig, *, batch: int, devices: int) -> None:
        """Refuse a mesh that cannot work, before anything is compiled.

        Raises:
            ValueError: it takes more or fewer devices than there are, or does not divide the heads,
                the hidden units or the batch; meshes that would work are listed.
        """
        reason = self.refusal(config, batch=batch)
        if self.devices != devices:
            reason = f"takes {self.devices} devices, got {devices}"
        if reason:
            would = working_meshes(config, batch=batch, devices=devices)
            shown = "; ".join(str(mesh) for mesh in would[:_SHOWN])
            more = f"; and {len(would) - _SHOWN} more" if len(would) > _SHOWN else ""
            raise ValueError(f"mesh {self}: {reason}; on {devices} would work: {shown}{more}")


def working_meshes(config: CoreConfig, *, batch: int, devices: int) -> list[MeshConfig]:
    """List the meshes of exactly so many devices that can work, fewest parts of the model first.

    There is always one: all devices on the sequence axis.
    """
    meshes = [
        MeshConfig(data=devices // (sequence * model), sequence=sequence, model=model)
        for model in range(1, devices + 1)
        for sequence in range(1, devices + 1)
        if devices % (sequence * model) == 0
    ]
    return [mesh for mesh in meshes if mesh.refusal(config, batch=batch) is None]


def make_mesh(
    *,
    data: int = 1,
    sequence: int = 1,
    model: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Arrange devices (None: all, of all processes) into a mesh with the axes `AXES`.

    Raises:
        ValueError: there are more or fewer devices than the mesh takes.
    """
    config = MeshConfig(data=data, sequence=sequence, model=model)
    devices = jax.devices() if devices is None else devices
    if config.devices != len(devices):
        raise ValueError(f"mesh {config}: takes {config.devices} devices, got {len(devices)}")
    shape = (data, sequence, model)
    return Mesh(mesh_utils.create_device_mesh(shape, devices), AXES)
