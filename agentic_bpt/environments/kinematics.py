"""What rewards need to know of a body, read from many stored physics states at once.

Walker and cheetah are planar chains and the quadruped's reward sees its torso only, so their
kinematics are a few lines of NumPy over all rows: ten times as fast as calling MuJoCo for each
row. The jaco arm goes through MuJoCo's own kinematics, row by row. Lengths and masses are those of
the compiled models. Axes: R rows, P physics state (nq positions, nv velocities, activations).
"""

# Hidden from pyright: MuJoCo's compiled names, and `.real` of arrays whose type it does not infer.
# pyright: reportAttributeAccessIssue=false

import copy
import functools
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.environments.tasks import load_dm_environment, tasks_of_domain

JACO_PINCH_SITE = "jaco_arm/jaco_hand/pinchsite"  # the point whose distance is rewarded


class TorsoMotion(NamedTuple):
    """Where the torso of a planar body is and how fast the body moves."""

    height: np.ndarray
    """[R], height of the torso, m."""
    upright: np.ndarray
    """[R], cosine of the angle between the torso's z axis and the vertical."""
    speed: np.ndarray
    """[R], forward velocity of the centre of mass, m/s."""


class _Link(NamedTuple):
    """One body of a planar chain. A point (x, z) of the plane is the complex number x + i z.

    A turn by the angle t about the y axis is then a product with exp(-i t).
    """

    position: np.ndarray
    """complex [R], origin of the body."""
    velocity: np.ndarray
    """complex [R], velocity of that origin."""
    turn: np.ndarray
    """complex [R], exp(-i angle) of the body."""
    spin: np.ndarray
    """[R], angular velocity about the y axis, rad/s."""

    def moved(self, offset: complex) -> tuple[np.ndarray, np.ndarray]:
        """Give position and velocity of the point at an offset in the body's frame."""
        arm_R = self.turn * offset
        return self.position + arm_R, self.velocity - 1j * self.spin * arm_R


def torso_motion(domain: str, physics_RP: np.ndarray) -> TorsoMotion:
    """Follow the torso and the centre of mass of a walker or a cheetah."""
    return planar_motion(_model(domain), physics_RP)


def planar_motion(model: Any, physics_RP: np.ndarray) -> TorsoMotion:
    """Follow the body `torso` and the centre of mass of a tree of bodies that moves in a plane.

    Args:
        model: mujoco.MjModel whose joints slide within the x-z plane or turn about the y axis.
        physics_RP: float64 [R, P].
    """
    zero_R = np.zeros(len(physics_RP), complex)
    links = [_Link(zero_R, zero_R, zero_R + 1, zero_R.real)]  # the world
    momentum_R = zero_R.real
    for body in range(1, model.nbody):
        link = _child(model, body, links[model.body_parentid[body]], physics_RP)
        links.append(link)
        _, velocity_R = link.moved(_in_plane(model.body_ipos[body]))
        momentum_R = momentum_R + model.body_mass[body] * velocity_R.real
    torso = links[model.body("torso").id]
    return TorsoMotion(torso.position.imag, torso.turn.real, momentum_R / model.body_mass[1:].sum())


def quadruped_motion(physics_RP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read what the quadruped's own sensors tell.

    Returns:
        upright_R, the cosine of the torso's tilt, and speed_R, the first number of the velocimeter:
        the velocity of the torso along its own x axis, m/s.
    """
    # The torso hangs on a free joint: position (3) and quaternion (4) of the 23 positions, and as
    # its first velocity the one of its origin in the world. The velocimeter sits at that origin.
    quaternion_4R = physics_RP[:, 3:7].T.copy()
    linear_3R = physics_RP[:, 23:26].T
    quaternion_4R[0, ~quaternion_4R.any(axis=0)] = 1  # MuJoCo takes zeros for no rotation
    w_R, x_R, y_R, z_R = quaternion_4R / np.linalg.norm(quaternion_4R, axis=0)
    upright_R = 1 - 2 * (x_R**2 + y_R**2)
    own_x_3R = np.stack(  # the torso's x axis in the world
        [1 - 2 * (y_R**2 + z_R**2), 2 * (x_R * y_R + w_R * z_R), 2 * (x_R * z_R - w_R * y_R)]
    )
    return upright_R, (own_x_3R * linear_3R).sum(axis=0)


def jaco_pinch_positions(physics_RP: np.ndarray) -> np.ndarray:
    """Find the middle of the jaco hand's pinch in each state, float64 [R, 3] in m."""
    model = _model("jaco")
    import mujoco

    data = mujoco.MjData(model)  # the call's own: calls from several threads do not meet
    position_3 = data.site_xpos[model.site(JACO_PINCH_SITE).id]
    positions_R3 = np.empty((len(physics_RP), 3))
    for row, positions_Q in enumerate(physics_RP[:, : model.nq]):
        data.qpos[:] = positions_Q
        mujoco.mj_kinematics(model, data)
        positions_R3[row] = position_3
    return positions_R3


def _child(model: Any, body: int, parent: _Link, physics_RP: np.ndarray) -> _Link:
    """Place a body from its parent and its own joints, in the order in which they act."""
    import mujoco

    position_R, velocity_R = parent.moved(_in_plane(model.body_pos[body]))
    w, _, y, _ = model.body_quat[body]  # cos t/2, 0, sin t/2, 0: a turn by t about the y axis
    link = _Link(position_R, velocity_R, parent.turn * complex(w, -y) ** 2, parent.spin)
    first = model.body_jntadr[body]
    for joint in range(first, first + model.body_jntnum[body]):
        position = model.jnt_qposadr[joint]
        moved_R = physics_RP[:, position] - model.qpos0[position]
        rate_R = physics_RP[:, model.nq + model.jnt_dofadr[joint]]
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
            link = _slid(link, _in_plane(model.jnt_axis[joint]), moved_R, rate_R)
        else:
            sign = model.jnt_axis[joint][1]  # of a hinge about +y or -y
            link = _turned(link, _in_plane(model.jnt_pos[joint]), sign * moved_R, sign * rate_R)
    return link


def _slid(link: _Link, axis: complex, moved_R: np.ndarray, rate_R: np.ndarray) -> _Link:
    """Move a link along an axis of its own frame, by metres and at m/s."""
    axis_R = link.turn * axis
    return link._replace(
        position=link.position + axis_R * moved_R,
        velocity=link.velocity + axis_R * rate_R - 1j * link.spin * axis_R * moved_R,
    )


def _turned(link: _Link, anchor: complex, angle_R: np.ndarray, rate_R: np.ndarray) -> _Link:
    """Turn a link about a point of its own frame that stays where it is, by rad and at rad/s."""
    anchor_R, anchor_velocity_R = link.moved(anchor)
    turned = _Link(anchor_R, anchor_velocity_R, link.turn * _unit(-angle_R), link.spin + rate_R)
    position_R, velocity_R = turned.moved(-anchor)
    return turned._replace(position=position_R, velocity=velocity_R)


def _in_plane(vector_3: np.ndarray) -> complex:
    return complex(vector_3[0], vector_3[2])


def _unit(angle_R: np.ndarray) -> np.ndarray:
    """Compute exp(i angle); NumPy's complex exponential takes twice as long."""
    unit_R = np.empty(angle_R.shape, complex)
    np.cos(angle_R, out=unit_R.real)
    np.sin(angle_R, out=unit_R.imag)
    return unit_R


@functools.cache
def _model(domain: str) -> Any:
    """Compile a domain's model once; nobody changes it afterwards."""
    # The tasks of a domain differ in floor and target only, not in the body. The copy outlives
    # the environment.
    environment = load_dm_environment(tasks_of_domain(domain)[0])
    return copy.copy(environment.physics.model.ptr)
