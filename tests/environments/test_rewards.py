"""Tests of the fast rewards: against dm_control, ExoRL's totals, and values from the formulas."""

import functools
import json
import time
from pathlib import Path

import numpy as np
import pytest
from dm_control.utils import inverse_kinematics

from agentic_bpt.environments.kinematics import JACO_PINCH_SITE, jaco_pinch_positions
from agentic_bpt.environments.rewards import physics_rewards, physics_rewards_oracle
from agentic_bpt.environments.targets import JACO_TARGETS, MAZE_TARGETS
from agentic_bpt.environments.tasks import TASKS, load_dm_environment, tasks_of_domain
from agentic_bpt.errors import InputError

DOMAINS = ("cartpole", "cheetah", "jaco", "point_mass_maze", "quadruped", "walker")
# dm_control's tolerance falls as a Gaussian to 0.1 at one margin beyond the bounds.
HALF_MARGIN, ONE_MARGIN, TWO_MARGINS = 0.1**0.25, 0.1, 0.1**4


def scattered_states(task: str, rows: int) -> np.ndarray:
    """Make states [R, P] that reach the interesting range of a reward, from a fixed seed."""
    spec = TASKS[task]
    generator = np.random.default_rng(3)
    states_RP = generator.normal(0, 1, (rows, spec.physics_width))
    if spec.domain == "walker":
        states_RP[:, 0] *= 0.3  # height over the standing one
        states_RP[:, 9:] *= 4
    if spec.domain == "cheetah":
        states_RP[:, 9:] *= 5
    if spec.domain == "cartpole":
        states_RP[:, :2] *= 0.2 if task.endswith("_sparse") else 1
    if spec.domain == "point_mass_maze":
        target_2 = MAZE_TARGETS[task.removeprefix("point_mass_maze_")][:2]
        states_RP[:, :2] = target_2 + 0.02 * states_RP[:, :2]
    if spec.domain == "jaco":
        states_RP[:, :6] = jaco_posture(task, height=0.05) + 0.1 * states_RP[:, :6]
    return states_RP


@functools.cache
def jaco_posture(task: str, height: float) -> np.ndarray:
    """Solve for arm joints [6] whose pinch is `height` metres above the task's target."""
    environment = load_dm_environment(task)  # its physics is a weak reference
    x, y, z = JACO_TARGETS[task.removeprefix("jaco_")]
    joints = [f"jaco_arm/joint_{number}" for number in range(1, 7)]
    solved = inverse_kinematics.qpos_from_site_pose(
        environment.physics,
        JACO_PINCH_SITE,
        np.array([x, y, z + height]),
        joint_names=joints,
        tol=1e-13,
        max_steps=1000,
    )
    assert solved.success
    return solved.qpos[:6]


def jaco_state(task: str, height: float) -> np.ndarray:
    return np.concatenate([jaco_posture(task, height), np.zeros(12)])


@pytest.mark.parametrize("with_actions", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_fast_rewards_are_those_of_dm_control(task, with_actions):
    states_RP = scattered_states(task, 60)
    actions_RA = None
    if with_actions:
        actions_RA = np.random.default_rng(4).uniform(-1, 1, (60, TASKS[task].action_width))
    fast_R = physics_rewards(task, states_RP, actions_RA)
    slow_R = physics_rewards_oracle(task, states_RP, actions_RA)
    np.testing.assert_allclose(fast_R, slow_R, rtol=0, atol=1e-12)
    assert np.ptp(slow_R) > 0.3  # states whose rewards are all alike would show nothing


@pytest.mark.parametrize("domain", DOMAINS)
def test_totals_are_those_of_exorls_own_relabelling(domain, reference_episodes: Path):
    reference = json.loads((reference_episodes / "reference.json").read_text())
    compared = 0
    for name, facts in reference.items():
        if not name.startswith(f"{domain}/"):
            continue
        with np.load(reference_episodes / name, allow_pickle=False) as episode:
            physics_RP, actions_RA = episode["physics"], episode["action"][1:]
            stored_R = episode["reward"][1:, 0]
        for task, expected in facts["exorl_relabel"].items():
            rewards_R = physics_rewards(task, physics_RP, None)
            total = expected["total_from_row_1"]
            assert abs(rewards_R[1:].sum() - total) <= 1e-6 * max(1, abs(total))
            rows = [expected["row_0"], expected["row_1"], expected["last"]]
            np.testing.assert_allclose(rewards_R[[0, 1, -1]], rows, rtol=0, atol=6e-8)
            compared += 1
        online_R = physics_rewards(facts["online_task"], physics_RP[1:], actions_RA)
        np.testing.assert_allclose(online_R, stored_R, rtol=0, atol=6e-8)
        online = facts["online_return"]
        assert abs(online_R.sum() - online) <= 1e-6 * max(1, abs(online))
    assert compared == 2 * len(tasks_of_domain(domain))


def test_jaco_reward_by_distance_from_the_target():
    task = "jaco_reach_bottom_right"
    heights = (0.0, 0.04, 0.075, 0.1, 0.15)  # m; the radius and the margin are 0.05 m
    states_RP = np.array([jaco_state(task, height) for height in heights])
    distances = np.linalg.norm(jaco_pinch_positions(states_RP) - [0.09, -0.09, 0.001], axis=1)
    np.testing.assert_allclose(distances, heights, atol=1e-9)
    expected = [1, 1, HALF_MARGIN, ONE_MARGIN, TWO_MARGINS]
    np.testing.assert_allclose(physics_rewards(task, states_RP, None), expected, rtol=1e-6)


@pytest.mark.parametrize("task", tasks_of_domain("jaco"))
def test_jaco_targets_lie_at_the_corners_of_a_square(task):
    state_RP = jaco_state(task, 0.0)[None]
    rewards = {other: physics_rewards(other, state_RP, None)[0] for other in jaco_by_distance(task)}
    beyond = np.array([0.18, 0.18, np.hypot(0.18, 0.18)]) - 0.05  # m, past the radius
    assert rewards.pop(task) == 1
    expected = 0.1 ** ((beyond / 0.05) ** 2)
    np.testing.assert_allclose(list(rewards.values()), expected, rtol=1e-6)


def jaco_by_distance(task: str) -> list[str]:
    """Sort the jaco tasks by how many words of their corner (top/bottom, left/right) differ."""
    words = task.split("_")
    others = tasks_of_domain("jaco")
    return sorted(others, key=lambda other: sum(map(str.__ne__, words, other.split("_"))))


@pytest.mark.parametrize(
    ("task", "x", "y"),
    [
        ("point_mass_maze_reach_top_left", -0.15, 0.15),
        ("point_mass_maze_reach_top_right", 0.15, 0.15),
        ("point_mass_maze_reach_bottom_left", -0.15, -0.15),
        ("point_mass_maze_reach_bottom_right", 0.15, -0.15),
    ],
)
def test_maze_reward_by_distance_and_control(task, x, y):
    distances = (0.0, 0.0149, 0.0225, 0.03, 0.045)  # m; the radius and the margin are 0.015 m
    states_RP = np.array([[x + far, y, 0.3, -0.2] for far in distances])
    expected = np.array([1, 1, HALF_MARGIN, ONE_MARGIN, TWO_MARGINS])
    np.testing.assert_allclose(physics_rewards(task, states_RP, None), expected, rtol=1e-6)
    # 1 - control² is averaged over the two actuators, then mixed with 4 parts of 1.
    for action, factor in (([0, 0], 1.0), ([1, 0], 0.9), ([-1, 1], 0.8), ([0.5, 0.5], 0.95)):
        actions_RA = np.tile(np.array(action, float), (5, 1))
        rewards_R = physics_rewards(task, states_RP, actions_RA)
        np.testing.assert_allclose(rewards_R, factor * expected, rtol=1e-6)


@pytest.mark.parametrize("task", ["cartpole_balance_sparse", "cartpole_swingup_sparse"])
def test_sparse_cartpole_rewards_a_small_box_and_nothing_else(task):
    inside, outside = np.arccos(0.9951), np.arccos(0.9949)
    cases = [  # cart, angle, reward
        (0.0, 0.0, 1), (0.249, inside, 1), (-0.249, -inside, 1), (0.0, 2 * np.pi, 1),
        (0.251, 0.0, 0), (-0.251, 0.0, 0), (0.0, outside, 0), (0.0, -outside, 0), (0.0, np.pi, 0),
    ]  # fmt: skip
    states_RP = np.array([[cart, angle, 3.0, 9.0] for cart, angle, _ in cases])
    expected_R = [reward for *_, reward in cases]
    for actions_RA in (None, np.ones((len(cases), 1))):
        np.testing.assert_array_equal(physics_rewards(task, states_RP, actions_RA), expected_R)


@pytest.mark.parametrize("task", ["cartpole_balance", "cartpole_swingup"])
def test_dense_cartpole_reward_is_a_product_of_four_terms(task):
    cases = [  # cart, angle, angular velocity, action, reward
        (0, 0, 0, 0, 1.0),
        (0, np.pi / 2, 0, 0, 0.5),
        (0, np.pi, 0, 0, 0.0),
        (2, 0, 0, 0, 0.55),  # one margin: (1 + 0.1) / 2
        (0, 0, 5, 0, 0.55),
        (0, 0, 0, 1, 0.8),
        (2, np.pi / 2, -5, 0.5, 0.5 * 0.55 * 0.55 * 0.95),
    ]
    states_RP = np.array([[cart, angle, 7.0, rate] for cart, angle, rate, *_ in cases])
    actions_RA = np.array([[action] for *_, action, _ in cases], float)
    rewards_R = physics_rewards(task, states_RP, actions_RA)
    np.testing.assert_allclose(rewards_R, [reward for *_, reward in cases], atol=1e-12)


def test_cheetah_reward_is_a_tenth_of_the_speed_in_the_right_direction():
    states_RP = np.zeros((5, 18))
    states_RP[:, 9] = [0, 5, -5, 20, -20]  # m/s of the root, the body moving as one
    forward_R = physics_rewards("cheetah_run", states_RP, None)
    backward_R = physics_rewards("cheetah_run_backward", states_RP, None)
    np.testing.assert_allclose(forward_R, [0, 0.5, 0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(backward_R, [0, 0, 0.5, 0, 1], atol=1e-12)


def test_a_state_of_zeros_counts_as_an_upright_quadruped():
    zeros_RP = np.zeros((1, 57))  # MuJoCo reads the quaternion 0 as no rotation
    expected = physics_rewards_oracle("quadruped_walk", zeros_RP, None)
    np.testing.assert_allclose(physics_rewards("quadruped_walk", zeros_RP, None), expected)


def test_many_rows_give_what_few_rows_give():
    states_RP = scattered_states("walker_run", 5000)
    actions_RA = np.zeros((5000, 6))
    all_R = physics_rewards("walker_run", states_RP, actions_RA)
    one_R = [physics_rewards("walker_run", states_RP[[row]], None)[0] for row in (0, 4095, 4096)]
    np.testing.assert_allclose(all_R[[0, 4095, 4096]], one_R, rtol=1e-13)
    assert physics_rewards("walker_run", states_RP[:0], actions_RA[:0]).shape == (0,)


@pytest.mark.parametrize("rewards_of", [physics_rewards, physics_rewards_oracle])
def test_what_is_not_of_the_task_is_refused(rewards_of):
    states_RP, actions_RA = np.zeros((3, 4)), np.zeros((3, 1))
    with pytest.raises(InputError, match=r"unknown task.*got 'cartpole_fly'"):
        rewards_of("cartpole_fly", states_RP, None)
    with pytest.raises(InputError, match=r"walker_run have shape \(rows, 18\), got \(3, 4\)"):
        rewards_of("walker_run", states_RP, None)
    with pytest.raises(InputError, match=r"have shape \(3, 1\).*got \(2, 1\)"):
        rewards_of("cartpole_balance", states_RP, actions_RA[:2])
    actions_RA[1] = 1.001
    with pytest.raises(InputError, match=r"got \[1.001\] in row 1"):
        rewards_of("cartpole_balance", states_RP, actions_RA)
    states_RP[2, 0] = np.nan
    with pytest.raises(InputError, match="finite, got row 2"):
        rewards_of("cartpole_balance", states_RP, None)


@pytest.mark.parametrize(
    "task", ["cartpole_swingup", "cheetah_run", "jaco_reach_top_left", "walker_run"]
)
def test_the_fast_path_is_twenty_times_as_fast(task):
    states_RP = scattered_states(task, 2000)
    fast = min(_seconds(physics_rewards, task, states_RP) for _ in range(5)) / 2000
    slow = min(_seconds(physics_rewards_oracle, task, states_RP[:60]) for _ in range(3)) / 60
    assert slow / fast >= 20  # measured: 60 (cheetah) to 600 (cartpole)


def _seconds(rewards_of, task: str, states_RP: np.ndarray) -> float:
    start = time.perf_counter()
    rewards_of(task, states_RP, None)
    return time.perf_counter() - start
