"""Tests of the tasks that ExoRL defines itself: starts, walls, observation layout."""

import numpy as np
import pytest

from agentic_bpt.environments.kinematics import jaco_pinch_positions
from agentic_bpt.environments.tasks import Environment, tasks_of_domain


def push(environment: Environment, start: tuple[float, float], action: list[float]) -> np.ndarray:
    """Start at rest at a place, hold an action for 150 steps and give the position [2]."""
    environment.reset(0)
    physics = environment._environment.physics
    with physics.reset_context():
        physics.set_state(np.array([*start, 0.0, 0.0]))
    for _ in range(150):
        step = environment.step(np.array(action))
    return step.observation[:2]


def test_the_walls_of_the_maze_stop_the_mass_and_leave_gaps_at_their_ends():
    maze = Environment("point_mass_maze_reach_bottom_right")
    half_width = 0.02  # m
    assert push(maze, (-0.1, 0.1), [1, 0])[0] < -half_width
    assert push(maze, (0.1, -0.1), [-1, 0])[0] > half_width
    assert push(maze, (-0.1, 0.1), [0, -1])[1] > half_width
    assert push(maze, (0.1, -0.1), [0, 1])[1] < -half_width
    assert push(maze, (-0.1, 0.25), [1, 0])[0] > 0.1
    assert push(maze, (-0.25, 0.1), [0, -1])[1] < -0.1


@pytest.mark.parametrize("task", tasks_of_domain("point_mass_maze"))
def test_the_mass_starts_at_rest_in_the_corner_at_the_top_left(task):
    maze = Environment(task)
    starts = np.array([maze.reset(seed) for seed in range(40)])
    assert ((starts[:, 0] >= -0.29) & (starts[:, 0] <= -0.15)).all()
    assert ((starts[:, 1] >= 0.15) & (starts[:, 1] <= 0.29)).all()
    assert (starts[:, :2].std(axis=0) > 0.03).all()  # uniform over 0.14 m: 0.04
    assert (starts[:, 2:] == 0).all()


def test_the_mass_passes_through_the_target():
    maze = Environment("point_mass_maze_reach_top_left")  # target at (-0.15, 0.15)
    assert push(maze, (-0.25, 0.15), [1, 0])[0] > -0.1


def test_the_jaco_hand_starts_in_its_box():
    jaco = Environment("jaco_reach_top_right")
    states = []
    for seed in range(12):
        jaco.reset(seed)
        states.append(jaco.physics_state())
    pinches = jaco_pinch_positions(np.array(states))
    slack = 0.01  # m, the solver's tolerance on the way to the drawn place
    assert (pinches >= np.array([-0.2, -0.2, 0.02]) - slack).all()
    assert (pinches <= np.array([0.2, 0.2, 0.4]) + slack).all()
    assert (pinches.std(axis=0) > 0.05).all()


def test_the_jaco_observation_has_exorls_layout():
    jaco = Environment("jaco_reach_bottom_left")
    jaco.reset(4)
    observation = jaco.step(np.full(9, 0.3)).observation
    state = jaco.physics_state()
    np.testing.assert_allclose(observation[0:12:2], np.sin(state[:6]), atol=1e-6)
    np.testing.assert_allclose(observation[1:12:2], np.cos(state[:6]), atol=1e-6)
    np.testing.assert_allclose(observation[18:24], state[9:15], atol=1e-6)  # 12:18 are torques
    np.testing.assert_allclose(observation[24:27], state[6:9], atol=1e-6)
    np.testing.assert_allclose(observation[27:30], state[15:18], atol=1e-6)
    rotation = observation[33:42].reshape(3, 3)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)
