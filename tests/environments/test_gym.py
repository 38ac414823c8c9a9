"""Tests of the Gymnasium face."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agentic_bpt.environments.gym
from agentic_bpt.environments.tasks import TASKS, Environment
from agentic_bpt.errors import InputError


def test_every_task_is_registered_once():
    agentic_bpt.environments.gym.register_environments()  # again: must change nothing, warn nothing
    names = {name for name in gymnasium.registry if name.startswith("agentic_bpt/")}
    assert names == {f"agentic_bpt/{task}-v0" for task in TASKS}


# Velocities have no bounds, and Gymnasium finds that worth a warning.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m")
@pytest.mark.parametrize("task", ["cartpole_swingup", "jaco_reach_top_left"])
def test_gymnasiums_own_checker_passes(task):
    environment = gymnasium.make(f"agentic_bpt/{task}-v0")
    check_env(environment.unwrapped, skip_render_check=True)


def test_the_time_limit_truncates_and_does_not_terminate():
    environment = gymnasium.make("agentic_bpt/point_mass_maze_reach_top_left-v0", action_repeat=50)
    environment.reset(seed=0)
    ends = [environment.step(np.zeros(2, np.float32))[2:4] for _ in range(20)]
    assert ends == [(False, False)] * 19 + [(False, True)]


def test_a_seed_starts_the_same_episode_as_the_plain_environment():
    environment = gymnasium.make("agentic_bpt/walker_walk-v0")
    first, info = environment.reset(seed=11)
    np.testing.assert_array_equal(first, Environment("walker_walk").reset(11))
    assert info == {}
    second, _ = environment.reset()
    third, _ = environment.reset()
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(second - third).max() > 1e-3
    environment.reset(seed=11)
    np.testing.assert_array_equal(environment.reset()[0], second)


def test_pictures_come_only_in_the_render_mode_that_asks_for_them():
    silent = gymnasium.make("agentic_bpt/cartpole_swingup-v0").unwrapped
    silent.reset(seed=0)
    assert silent.render() is None
    drawing = gymnasium.make("agentic_bpt/cartpole_swingup-v0", render_mode="rgb_array").unwrapped
    drawing.reset(seed=0)
    try:
        picture = drawing.render()
    except InputError as reason:
        pytest.skip(str(reason))
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (240, 320, 3)
    with pytest.raises(ValueError, match="render_mode must be None or 'rgb_array', got 'human'"):
        agentic_bpt.environments.gym.DmControlGym("cartpole_swingup", render_mode="human")
