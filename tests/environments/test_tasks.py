"""Contract tests of every task: sizes, lengths, determinism, actions, replay of stored episodes."""

import logging
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt.environments.tasks import (
    TASKS,
    Environment,
    load_dm_environment,
    task_spec,
    tasks_of_domain,
)
from agentic_bpt.errors import InputError

DOMAINS = ("cartpole", "cheetah", "jaco", "point_mass_maze", "quadruped", "walker")


def some_actions(task: str, count: int) -> np.ndarray:
    return np.random.default_rng(5).uniform(-1, 1, (count, TASKS[task].action_width))


def run(environment: Environment, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Give observations [count + 1, O] and rewards [count]."""
    observations, rewards = [environment.reset(seed)], []
    for action in some_actions(environment.spec.name, count):
        step = environment.step(action)
        observations.append(step.observation)
        rewards.append(step.reward)
    return np.stack(observations), np.array(rewards)


def test_tasks_are_exorls_nineteen():
    assert len(TASKS) == 19
    assert tuple(dict.fromkeys(spec.domain for spec in TASKS.values())) == DOMAINS
    assert tasks_of_domain("walker") == ("walker_stand", "walker_walk", "walker_run")
    assert task_spec("jaco_reach_top_left") == (
        "jaco_reach_top_left", "jaco", 250, 42, 9, 18,
    )  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_sizes_are_those_of_the_table(task):
    environment = Environment(task)
    spec = environment.spec
    observation = environment.reset(0)
    step = environment.step(np.zeros(spec.action_width))

    for seen in (observation, step.observation):
        assert seen.shape == (spec.observation_width,)
        assert seen.dtype == np.float32
    assert environment.physics_state().shape == (spec.physics_width,)
    assert isinstance(step.reward, float)
    assert 0 <= step.reward <= 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_episode_ends_at_the_time_limit_of_exorl(domain):
    task = tasks_of_domain(domain)[0]
    environment = Environment(task)
    environment.reset(0)
    action = np.zeros(environment.spec.action_width)
    # dm_control's own time limit must not come first: it would start a new episode unnoticed.
    physics = environment._environment.physics
    lasts, times = [], [physics.time()]
    for _ in range(environment.episode_steps):
        lasts.append(environment.step(action).last)
        times.append(physics.time())
    assert lasts == [False] * (environment.spec.episode_steps - 1) + [True]
    assert (np.diff(times) > 0).all()
    with pytest.raises(ValueError, match="call reset before step"):
        environment.step(action)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_seed_alone_determines_an_episode(domain):
    task = tasks_of_domain(domain)[-1]
    np.random.seed(1)  # a task that drew from the global generator would fail
    fresh_observations, fresh_rewards = run(Environment(task), seed=7, count=5)
    np.random.seed(2)
    used = Environment(task)
    other_observations, _ = run(used, seed=8, count=9)
    used_observations, used_rewards = run(used, seed=7, count=5)

    np.testing.assert_array_equal(used_observations, fresh_observations)
    np.testing.assert_array_equal(used_rewards, fresh_rewards)
    assert np.abs(other_observations[0] - fresh_observations[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        ("quadruped_walk", [-1, -1, -0.8] * 4, [1, 1.1, 0.8] * 4),
        (
            "jaco_reach_top_left",
            [-np.pi / 5] * 3 + [-np.pi * 4 / 15] * 3 + [-5] * 3,
            [np.pi / 5] * 3 + [np.pi * 4 / 15] * 3 + [5] * 3,
        ),
        ("walker_run", [-1] * 6, [1] * 6),
    ],
)
def test_actions_are_scaled_to_the_actuators(task, low, high):
    environment = Environment(task)
    environment.reset(0)
    low, high = np.array(low), np.array(high)
    for action, native in ((-1, low), (1, high), (0.5, low + 0.75 * (high - low))):
        action_A = np.full(environment.spec.action_width, action)
        np.testing.assert_allclose(environment.native_action(action_A), native, rtol=1e-6)
        environment.step(action_A)
        control_A = environment._environment.physics.data.ctrl
        np.testing.assert_allclose(control_A, native, rtol=1e-6)


def test_action_repeat_sums_the_rewards_of_the_steps():
    single, repeated = Environment("walker_run"), Environment("walker_run", action_repeat=4)
    single.reset(3)
    repeated.reset(3)
    assert repeated.episode_steps == 250
    for action in some_actions("walker_run", 10):
        steps = [single.step(action) for _ in range(4)]
        held = repeated.step(action)
        assert held.reward == pytest.approx(sum(step.reward for step in steps), abs=1e-12)
        np.testing.assert_array_equal(held.observation, steps[-1].observation)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0.0] * 5, r"shape \(6,\), got \(5,\)"),
        ([np.nan] + [0.0] * 5, r"in \[-1, 1\], got \[nan"),
        ([1.01] + [0.0] * 5, r"in \[-1, 1\], got \[1.01"),
    ],
)
def test_a_bad_action_is_refused(action, message):
    environment = Environment("walker_run")
    environment.reset(0)
    with pytest.raises(ValueError, match=message):
        environment.step(np.array(action))


def test_an_action_may_pass_the_bounds_by_rounding():
    environment = Environment("walker_run")
    over = environment.native_action(np.full(6, 1 + 5e-7))
    np.testing.assert_array_equal(over, np.ones(6))


def test_user_mistakes_say_what_is_known():
    with pytest.raises(InputError, match=r"walker_run.*got 'walker_jump'"):
        Environment("walker_jump")
    with pytest.raises(InputError, match="walker; got 'humanoid'"):
        tasks_of_domain("humanoid")
    with pytest.raises(InputError, match=r"action_repeat must lie in 1\.\.1000.*got 0"):
        Environment("walker_run", action_repeat=0)
    with pytest.raises(ValueError, match="call reset before step"):
        Environment("cartpole_swingup").step(np.zeros(1))


def test_loading_a_cheetah_logs_nothing(caplog):
    load_dm_environment("cheetah_run")
    load_dm_environment("cheetah_run_backward")
    assert caplog.messages == []
    logging.getLogger("absl").warning("something else")
    assert caplog.messages == ["something else"]


def test_render_gives_a_picture():
    environment = Environment("quadruped_walk")
    environment.reset(0)
    try:
        picture = environment.render(height=48, width=64)
    except InputError as reason:
        pytest.skip(str(reason))
    assert picture.shape == (48, 64, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 5


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_stored_episode_replays_to_its_observations_and_rewards(domain, reference_episodes: Path):
    path = sorted((reference_episodes / domain / "random" / "buffer").glob("*.npz"))[1]
    with np.load(path, allow_pickle=False) as episode:
        # `online_task` of reference.json is the first of each domain but for these two.
        online = {"cartpole": "cartpole_swingup", "cheetah": "cheetah_run"}
        environment = Environment(online.get(domain, tasks_of_domain(domain)[0]))
        environment.reset(0)
        physics = environment._environment.physics
        with physics.reset_context():
            physics.set_state(episode["physics"][0])
        actions, observations = episode["action"][1:], episode["observation"][1:]
        rewards = episode["reward"][1:, 0]
    # Measured: bit-equal observations over whole episodes. The bound is that of float32, and 200
    # steps are enough for a wrong rounding of the actions to show on quadruped and jaco.
    for row, action in enumerate(actions[:200]):
        step = environment.step(action)
        np.testing.assert_allclose(step.observation, observations[row], rtol=1e-6, atol=1e-6)
        assert step.reward == pytest.approx(rewards[row], abs=6e-8)
