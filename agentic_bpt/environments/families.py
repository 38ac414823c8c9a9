"""Families of hidden tasks: one body, one kind of reward, and a parameter that says what is wanted.

A parameter range is cut into cells, and one cell in five is held out: parameters for training and
for evaluation are drawn from different cells. ExoRL's own goals of the maze and of the jaco arm lie
in cells that are held out.

Axes: R rows, P physics state, A actions, F what a reward sees of a state, K parameters, D numbers
of a parameter.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import numpy as np

from agentic_bpt.environments import kinematics
from agentic_bpt.environments.rewards import (
    cartpole_upright,
    nearness,
    small_control,
    tolerance,
    walker_stand,
)
from agentic_bpt.environments.targets import (
    JACO_TARGET_RADIUS,
    JACO_TARGETS,
    MAZE_TARGET_RADIUS,
    MAZE_TARGETS,
)

See = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What a reward sees [R, F] of physics states [R, P] and controls [R, A]."""
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Rewards [R] of what was seen [R, F] under a parameter [D]."""
Band = tuple[float, float]

# Rewards that are felt from afar: an episode that is near what is wanted says so.
WALKER_SPEED_BAND, WALKER_SPEED_MARGIN = 0.1, 1.0  # m/s: full reward within, none beyond both
CHEETAH_SPEED_BAND, CHEETAH_SPEED_MARGIN = 0.2, 2.0  # m/s
CARTPOLE_POSITION_BAND, CARTPOLE_POSITION_MARGIN = 0.1, 0.75  # m: 0.1 of the reward beyond both

_CELL_WEIGHTS = np.array([1, 2, 3])
_HELD_OUT_EVERY = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of task with a parameter, on one body."""

    name: str
    summary: str
    """What is wanted, in one line."""
    domain: str
    parameter_names: tuple[str, ...]
    """The D numbers of a parameter, with their unit."""
    bands: tuple[tuple[Band, ...], ...]
    """Intervals into which the range of each of the D numbers is cut."""
    first_cell: int
    """Shifts which cells are held out."""
    see: See
    score: Score
    named: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """Parameters of ExoRL's own tasks that belong to the family, by the name of the task."""

    def parameters(self, *, held_out: bool, count: int, seed: int) -> np.ndarray:
        """Draw parameters, float64 [count, D]: a function of the seed, spread over the cells.

        Cell (i, j, k) is held out if i + 2 j + 3 k + `first_cell` is a multiple of five.
        """
        cells_CD = np.array(list(np.ndindex(*(len(bands) for bands in self.bands))))
        numbers_C = cells_CD @ _CELL_WEIGHTS[: cells_CD.shape[1]] + self.first_cell
        cells_CD = cells_CD[(numbers_C % _HELD_OUT_EVERY == 0) == held_out]
        generator = np.random.default_rng([seed, int(held_out)])
        cells_KD = cells_CD[np.resize(generator.permutation(len(cells_CD)), count)]
        edges_DK2 = [
            np.array(bands)[cells_K] for bands, cells_K in zip(self.bands, cells_KD.T, strict=True)
        ]
        low_KD, high_KD = np.stack(edges_DK2, axis=1).transpose(2, 0, 1)
        return generator.uniform(low_KD, high_KD)


def _bands(low: float, high: float, count: int) -> tuple[Band, ...]:
    edges = np.linspace(low, high, count + 1).tolist()
    return tuple(itertools.pairwise(edges))


def _walker_sees(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    motion = kinematics.torso_motion("walker", physics_RP)
    return np.stack([walker_stand(motion), motion.speed], axis=1)


def _walker_score(seen_RF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
    """Weigh standing and speed as walker_walk does; here too fast is as wrong as too slow."""
    move_R = _near_speed(seen_RF[:, 1], parameter_D[0], WALKER_SPEED_BAND, WALKER_SPEED_MARGIN)
    return seen_RF[:, 0] * (5 * move_R + 1) / 6


def _cheetah_sees(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    return kinematics.torso_motion("cheetah", physics_RP).speed[:, None]


def _cheetah_score(seen_RF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
    return _near_speed(seen_RF[:, 0], parameter_D[0], CHEETAH_SPEED_BAND, CHEETAH_SPEED_MARGIN)


def _near_speed(speed_R: np.ndarray, wanted: float, band: float, margin: float) -> np.ndarray:
    return tolerance(
        speed_R,
        bounds=(wanted - band, wanted + band),
        margin=margin,
        value_at_margin=0,
        sigmoid="linear",
    )


def _maze_sees(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    return np.column_stack([physics_RP[:, :2], small_control(control_RA)])


def _maze_score(seen_RF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
    return nearness(seen_RF[:, :2], parameter_D, radius=MAZE_TARGET_RADIUS) * seen_RF[:, 2]


def _jaco_sees(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    del control_RA
    return kinematics.jaco_pinch_positions(physics_RP)


def _jaco_score(seen_RF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
    return nearness(seen_RF, parameter_D, radius=JACO_TARGET_RADIUS)


def _cartpole_sees(physics_RP: np.ndarray, control_RA: np.ndarray) -> np.ndarray:
    return np.column_stack([physics_RP[:, 0], cartpole_upright(physics_RP, control_RA)])


def _cartpole_score(seen_RF: np.ndarray, parameter_D: np.ndarray) -> np.ndarray:
    off_R = seen_RF[:, 0] - parameter_D[0]
    bounds = (-CARTPOLE_POSITION_BAND, CARTPOLE_POSITION_BAND)
    return tolerance(off_R, bounds=bounds, margin=CARTPOLE_POSITION_MARGIN) * seen_RF[:, 1]


_MAZE_BANDS = (*_bands(-0.25, -0.05, 5), *_bands(0.05, 0.25, 5))  # m; not in the crossing walls
_JACO_BANDS = _bands(-0.105, 0.105, 6)  # m; the four targets lie in the outer ones

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="walker_speed",
            summary="walk upright at a speed, 0 (stand still) to 3 m/s",
            domain="walker",
            parameter_names=("speed, m/s",),
            bands=(_bands(0, 3, 15),),
            first_cell=3,
            see=_walker_sees,
            score=_walker_score,
        ),
        Family(
            name="cheetah_speed",
            summary="run at a speed, -3 (backwards) to 3 m/s",
            domain="cheetah",
            parameter_names=("speed, m/s",),
            bands=(_bands(-3, 3, 15),),
            first_cell=3,
            see=_cheetah_sees,
            score=_cheetah_score,
        ),
        Family(
            name="maze_goal",
            summary="bring the point mass to a goal in any of the four rooms, as ExoRL rewards it",
            domain="point_mass_maze",
            parameter_names=("x, m", "y, m"),
            bands=(_MAZE_BANDS, _MAZE_BANDS),
            first_cell=4,
            see=_maze_sees,
            score=_maze_score,
            named={f"point_mass_maze_{name}": xyz[:2] for name, xyz in MAZE_TARGETS.items()},
        ),
        Family(
            name="jaco_goal",
            summary="bring the hand to a goal between ExoRL's four, up to 0.2 m above the table",
            domain="jaco",
            parameter_names=("x, m", "y, m", "z, m"),
            bands=(_JACO_BANDS, _JACO_BANDS, _bands(0, 0.2, 5)),
            first_cell=0,
            see=_jaco_sees,
            score=_jaco_score,
            named={f"jaco_{name}": xyz for name, xyz in JACO_TARGETS.items()},
        ),
        Family(
            name="cartpole_position",
            summary="keep the pole upright with the cart at a position, -1.2 to 1.2 m",
            domain="cartpole",
            parameter_names=("x, m",),
            bands=(_bands(-1.2, 1.2, 15),),
            first_cell=3,
            see=_cartpole_sees,
            score=_cartpole_score,
        ),
    )
}
