"""How much of a domain's states a collection has visited: occupied cells of a fixed grid."""

from typing import NamedTuple

import numpy as np

from agentic_bpt.environments.kinematics import torso_motion
from agentic_bpt.errors import InputError


class Axis(NamedTuple):
    """One quantity of the state, cut into equal cells; the outermost hold what lies beyond."""

    name: str
    low: float
    high: float
    cells: int


GRIDS: dict[str, tuple[Axis, ...]] = {
    "cartpole": (
        Axis("position of the cart, m", -2.0, 2.0, 20),
        Axis("angle of the pole, rad", -np.pi, np.pi, 20),
        Axis("angular velocity of the pole, rad/s", -10.0, 10.0, 20),
    ),
    "point_mass_maze": (Axis("x, m", -0.3, 0.3, 30), Axis("y, m", -0.3, 0.3, 30)),
    "walker": (
        Axis("height of the torso, m", 0.0, 2.0, 20),
        Axis("uprightness of the torso", -1.0, 1.0, 20),
        Axis("forward speed, m/s", -5.0, 5.0, 20),
    ),
}
"""The grid of each domain that has one; it never changes, so counts can be compared."""


def occupied_cells(domain: str, physics_RP: np.ndarray) -> int:
    """Count the cells of the domain's grid that hold at least one of these states.

    Args:
        domain: one of `GRIDS`.
        physics_RP: float64 [R, P], physics states, of any number of episodes.

    Raises:
        InputError: the domain has no grid.
    """
    if domain not in GRIDS:
        raise InputError(
            f"domain: no grid of states for it: choose one of {', '.join(GRIDS)}; got {domain!r}"
        )
    cells = [
        np.clip((values_R - axis.low) * (axis.cells / (axis.high - axis.low)), 0, axis.cells - 1)
        for axis, values_R in zip(GRIDS[domain], _coordinates(domain, physics_RP), strict=True)
    ]
    return len(np.unique(np.stack(cells).astype(np.int64), axis=1).T)


def _coordinates(domain: str, physics_RP: np.ndarray) -> tuple[np.ndarray, ...]:
    """Give the values [R] along each axis of the domain's grid."""
    if domain == "walker":
        motion = torso_motion(domain, physics_RP)
        return motion.height, motion.upright, motion.speed
    if domain == "cartpole":
        position_R, angle_R, _, angular_velocity_R = physics_RP.T
        return position_R, np.remainder(angle_R + np.pi, 2 * np.pi) - np.pi, angular_velocity_R
    return physics_RP[:, 0], physics_RP[:, 1]
