"""Occupied cells: counted by hand on states placed in the cells, the same wherever they repeat."""

import numpy as np
import pytest

from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.coverage import GRIDS, occupied_cells


def test_cells_of_the_maze_are_two_centimetres():
    places = [(-0.29, 0.29), (-0.285, 0.285), (-0.29, 0.27), (0.005, 0.29), (0.015, 0.29)]
    physics_RP = np.array([(*place, 0.0, 9.0) for place in places])
    assert [occupied_cells("point_mass_maze", physics_RP[: n + 1]) for n in range(5)] == [
        1,
        1,  # beside the first, in the same cell
        2,
        3,
        3,
    ]
    assert occupied_cells("point_mass_maze", physics_RP[::-1].repeat(3, axis=0)) == 3


def test_every_cell_of_a_grid_is_counted_and_nothing_outside_adds_one():
    axes = GRIDS["cartpole"]
    centres = [
        axis.low + (np.arange(axis.cells) + 0.5) * (axis.high - axis.low) / axis.cells
        for axis in axes
    ]
    position_R, angle_R, velocity_R = (part.ravel() for part in np.meshgrid(*centres))
    physics_RP = np.stack([position_R, angle_R, 0 * angle_R, velocity_R], axis=1)
    assert occupied_cells("cartpole", physics_RP) == 8000
    assert occupied_cells("cartpole", np.concatenate([physics_RP, 100 * physics_RP])) == 8000


def test_an_angle_is_the_same_after_a_whole_turn():
    physics_RP = np.array([[0.1, angle, 0.0, 0.5] for angle in (0.1, 0.1 + 2 * np.pi, 0.1 - np.pi)])
    assert occupied_cells("cartpole", physics_RP) == 2


def test_a_walkers_cells_are_those_of_its_torso():
    environment = Environment("walker_walk")
    environment.reset(0)
    state_P = environment.physics_state()
    lifted_P, rushing_P, bent_P, elsewhere_P = (state_P.copy() for _ in range(4))
    lifted_P[0] += 0.1  # rootz, rootx, rooty, then the joints
    elsewhere_P[1] += 30.0
    rushing_P[9 + 1] += 0.5
    bent_P[2] += 1.5
    alike = occupied_cells("walker", np.stack([state_P, elsewhere_P]))
    assert alike == 1
    for other_P in (lifted_P, rushing_P, bent_P):
        assert occupied_cells("walker", np.stack([state_P, other_P])) == 2


def test_a_domain_without_a_grid_is_refused():
    with pytest.raises(InputError, match=r"choose one of cartpole.*got 'jaco'"):
        occupied_cells("jaco", np.zeros((3, 18)))
