"""The tasks that ExoRL defines itself and dm_control lacks.

Written afresh on dm_control's own bodies, from the definitions published with ExoRL
(arXiv 2201.13425): cheetah run_backward, jaco reach and point_mass_maze reach, four targets each.
Import this module only after `loading.import_dm_control`.
"""

import logging
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from dm_control import composer
from dm_control.composer import initializers
from dm_control.composer.variation import distributions
from dm_control.manipulation.shared import (
    arenas,
    cameras,
    constants,
    observations,
    robots,
    workspaces,
)
from dm_control.rl import control
from dm_control.suite import cheetah, common, point_mass
from dm_control.utils import rewards

from agentic_bpt.environments.targets import JACO_TARGET_RADIUS, JACO_TARGETS, MAZE_TARGETS

CHEETAH_SPEED = 10.0  # m/s, backwards, from which the reward is 1
CHEETAH_TIME_LIMIT = 10.0  # seconds

JACO_TIME_LIMIT = 10.0  # seconds: 250 control steps of 0.04 s
JACO_HAND_BOX = workspaces.BoundingBox(  # m, the box in which the hand starts
    lower=(-0.2, -0.2, 0.02), upper=(0.2, 0.2, 0.4)
)

MAZE_TIME_LIMIT = 20.0  # seconds: 1000 control steps of 0.02 s
MAZE_START_X = (-0.29, -0.15)  # m, the corner in which the mass starts
MAZE_START_Y = (0.15, 0.29)
_MAZE_WALLS = {  # name: axis of its thickness, half lengths in m; both through the middle
    "maze_y": ("0 1 0", "0.18 0.02 0.02"),
    "maze_x": ("1 0 0", "0.02 0.18 0.02"),
}


class RunBackward(cheetah.Cheetah):
    """Reward a cheetah for the speed at which it runs backwards."""

    def get_reward(self, physics: Any) -> float:
        """Grow linearly from 0 at rest to 1 at `CHEETAH_SPEED` backwards."""
        reward = rewards.tolerance(
            -physics.speed(),
            bounds=(CHEETAH_SPEED, float("inf")),
            margin=CHEETAH_SPEED,
            value_at_margin=0,
            sigmoid="linear",
        )
        return float(reward)


class JacoReach(composer.Task):
    """Reward a Jaco arm for holding the middle of its pinch at a fixed target."""

    def __init__(self, target: tuple[float, float, float]) -> None:
        self._target = np.asarray(target)
        self._arena: Any = arenas.Standard()
        self._arm = robots.make_arm(obs_settings=observations.PERFECT_FEATURES)
        self._hand = robots.make_hand(obs_settings=observations.PERFECT_FEATURES)
        self._arm.attach(self._hand)
        self._arena.attach_offset(self._arm, offset=robots.ARM_OFFSET)
        self.control_timestep = constants.CONTROL_TIMESTEP
        self._place_hand = initializers.ToolCenterPointInitializer(
            self._hand,
            self._arm,
            position=distributions.Uniform(*JACO_HAND_BOX),
            quaternion=workspaces.DOWN_QUATERNION,
        )
        self._camera = cameras.add_camera_observables(
            self._arena, observations.PERFECT_FEATURES, cameras.FRONT_CLOSE
        )
        workspaces.add_target_site(
            self._arena.mjcf_model.worldbody,
            radius=JACO_TARGET_RADIUS,
            visible=True,
            pos=target,
            rgba=constants.RED,
            name="target_site",
        )

    @property
    def root_entity(self) -> Any:
        """Give the arena that holds the arm."""
        return self._arena

    @property
    def task_observables(self) -> Any:
        """Give the (disabled) camera; the arm and the hand bring their own observables."""
        return self._camera

    def initialize_episode(self, physics: Any, random_state: np.random.RandomState) -> None:
        """Close the fingers by a random part and put the hand, pointing down, anywhere in its box.

        The order of the draws is ExoRL's.
        """
        self._hand.set_grasp(physics, close_factors=random_state.uniform())
        self._place_hand(physics, random_state)

    def get_reward(self, physics: Any) -> float:
        """Be 1 within the target's radius of the target, and fall to 0.1 one radius beyond."""
        pinch_position = physics.bind(self._hand.tool_center_point).xpos
        distance = np.linalg.norm(pinch_position - self._target)
        return float(
            rewards.tolerance(distance, bounds=(0, JACO_TARGET_RADIUS), margin=JACO_TARGET_RADIUS)
        )


class MazeReach(point_mass.PointMass):
    """Reward a point mass, started in a corner of four rooms, for reaching the target.

    The reward is that of dm_control's point mass: nearness to the target times small control.
    """

    def __init__(self) -> None:
        super().__init__(randomize_gains=False)

    def initialize_episode(self, physics: Any) -> None:
        """Start at rest anywhere in the corner of the top left room."""
        super().initialize_episode(physics)
        physics.data.qpos[0] = self.random.uniform(*MAZE_START_X)
        physics.data.qpos[1] = self.random.uniform(*MAZE_START_Y)


def _maze_model(target: tuple[float, float, float]) -> bytes:
    """Turn dm_control's point mass into a maze: contacts on, two crossing walls, target moved."""
    model = ElementTree.fromstring(common.read_model("point_mass.xml"))
    for option in model.findall("option"):
        for flag in option.findall("flag"):
            option.remove(flag)  # contact="disable"
    [world] = model.findall("worldbody")
    for name, (axis, half_lengths) in _MAZE_WALLS.items():
        ElementTree.SubElement(
            world,
            "geom",
            name=name,
            type="box",
            material="site",
            pos="0 0 0.02",
            zaxis=axis,
            size=half_lengths,
        )
    [target_geom] = world.findall("geom[@name='target']")
    target_geom.set("pos", " ".join(str(coordinate) for coordinate in target))
    target_geom.set("contype", "0")  # the mass passes through the target
    target_geom.set("conaffinity", "0")
    return ElementTree.tostring(model)


def _build_run_backward() -> Any:
    physics = cheetah.Physics.from_xml_string(*cheetah.get_model_and_assets())
    return control.Environment(physics, RunBackward(), time_limit=CHEETAH_TIME_LIMIT)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Pass over poses of the arm that inverse kinematics does not reach: others are tried."""
    return not record.getMessage().startswith("Failed to converge after")


logging.getLogger("absl").addFilter(_is_worth_saying)


def _build_jaco(target: tuple[float, float, float]) -> Any:
    # The model is the same in every episode: compiling it once saves 20 ms a reset.
    return composer.Environment(
        JacoReach(target), time_limit=JACO_TIME_LIMIT, recompile_mjcf_every_episode=False
    )


def _build_maze(target: tuple[float, float, float]) -> Any:
    physics = point_mass.Physics.from_xml_string(_maze_model(target), common.ASSETS)
    return control.Environment(physics, MazeReach(), time_limit=MAZE_TIME_LIMIT)


BUILDERS: dict[str, Callable[[], Any]] = {
    "cheetah_run_backward": _build_run_backward,
    **{f"jaco_{name}": partial(_build_jaco, target) for name, target in JACO_TARGETS.items()},
    **{
        f"point_mass_maze_{name}": partial(_build_maze, target)
        for name, target in MAZE_TARGETS.items()
    },
}
