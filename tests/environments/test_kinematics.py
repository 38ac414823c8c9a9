"""Tests of the NumPy kinematics against the sensors of MuJoCo's own models."""

import mujoco
import numpy as np
import pytest

from agentic_bpt.environments.kinematics import (
    JACO_PINCH_SITE,
    jaco_pinch_positions,
    planar_motion,
    quadruped_motion,
    torso_motion,
)
from agentic_bpt.environments.tasks import TASKS, load_dm_environment

# All that a planar body may have, dm_control's or not: a slide after a hinge, a body turned at
# rest, a joint off the body's origin, a reference position, an axis that points backwards.
SPRAWLING = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="base" pos="0.1 0 0.5">
      <joint type="slide" axis="1 0 0" ref="0.3"/>
      <geom size="0.1" mass="2" pos="0.2 0 -0.1"/>
      <body name="torso" pos="0.3 0 0.2" euler="0 0.7 0">
        <joint type="hinge" axis="0 -1 0" pos="0.1 0 0.2" ref="-0.4"/>
        <joint type="slide" axis="0 0 1"/>
        <geom size="0.1" mass="3" pos="-0.1 0 0.3"/>
        <body pos="0 0 0.4" euler="0 -1.2 0">
          <joint type="hinge" axis="0 1 0"/>
          <geom size="0.1" mass="1" pos="0.4 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <sensor><subtreelinvel body="base"/></sensor>
</mujoco>
"""


def sensed(task: str, states_RP: np.ndarray, read) -> np.ndarray:
    """Set each state in dm_control and read from its physics."""
    environment = load_dm_environment(task)  # jaco's physics is a weak reference
    physics = environment.physics
    values = []
    for state_P in states_RP:
        with physics.reset_context():
            physics.set_state(state_P)
        values.append(read(physics))
    return np.array(values)


def wild_states(task: str) -> np.ndarray:
    """Make states far outside of the joints' ranges, where no term of a velocity is small."""
    return np.random.default_rng(0).normal(0, 3, (20, TASKS[task].physics_width))


@pytest.mark.parametrize("task", ["walker_run", "cheetah_run"])
def test_planar_bodies_move_as_in_mujoco(task):
    states_RP = wild_states(task)

    def read(physics):
        data = physics.named.data
        speed = data.sensordata["torso_subtreelinvel"][0]
        return data.xpos["torso", "z"], data.xmat["torso", "zz"], speed

    motion = torso_motion(TASKS[task].domain, states_RP)
    np.testing.assert_allclose(np.stack(motion, axis=1), sensed(task, states_RP, read), atol=1e-12)


def test_any_planar_body_moves_as_in_mujoco():
    model = mujoco.MjModel.from_xml_string(SPRAWLING)  # pyright: ignore
    data = mujoco.MjData(model)  # pyright: ignore
    states_RP = np.random.default_rng(1).normal(0, 2, (10, 8))
    motion = np.stack(planar_motion(model, states_RP), axis=1)
    for state_P, moved_3 in zip(states_RP, motion, strict=True):
        data.qpos[:], data.qvel[:] = state_P[:4], state_P[4:]
        mujoco.mj_forward(model, data)  # pyright: ignore
        torso = data.body("torso")
        expected_3 = torso.xpos[2], torso.xmat[8], data.sensordata[0]
        np.testing.assert_allclose(moved_3, expected_3, atol=1e-12)


def test_the_quadruped_feels_what_its_sensors_feel():
    states_RP = wild_states("quadruped_run")

    def read(physics):
        return physics.torso_upright(), physics.torso_velocity()[0]

    motion = np.stack(quadruped_motion(states_RP), axis=1)
    np.testing.assert_allclose(motion, sensed("quadruped_run", states_RP, read), atol=1e-12)


def test_the_jaco_pinch_is_where_mujoco_has_it():
    states_RP = wild_states("jaco_reach_top_left")

    def read(physics):
        return physics.named.data.site_xpos[JACO_PINCH_SITE].copy()

    pinches_R3 = jaco_pinch_positions(states_RP)
    expected_R3 = sensed("jaco_reach_top_left", states_RP, read)
    np.testing.assert_allclose(pinches_R3, expected_R3, atol=1e-12)
