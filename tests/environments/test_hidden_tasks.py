"""What `--hidden-task` may name, and environments that pay the rewards of it."""

import numpy as np
import pytest

from agentic_bpt.environments.hidden_tasks import HiddenEnvironment, hidden_tasks, step_together
from agentic_bpt.environments.rewards import physics_rewards
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from tests.physics_builders import roll_out

SET = "walker_stand,walker_walk,walker_run"


def test_a_set_of_tasks_pays_their_own_rewards():
    tasks = hidden_tasks(SET)
    generator = np.random.default_rng(0)
    states_RP = generator.normal(0, 0.5, (100, 18))
    actions_RA = generator.uniform(-1, 1, (100, 6))
    assert tasks.domain == "walker"
    assert list(tasks.named) == SET.split(",")
    for parameter_D, (name, named) in zip(tasks.training_KD, tasks.named.items(), strict=True):
        assert tuple(parameter_D) == named
        expected_R = physics_rewards(name, states_RP, actions_RA)
        np.testing.assert_allclose(
            tasks.reward(states_RP, actions_RA, parameter_D), expected_R, atol=1e-15
        )
    assert tasks.held_out_KD.shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("walker_jump", r"walker_speed.*cartpole_position.*walker_run.*path\.py:f.*'walker_jump'"),
        ("walker_stand", "two or more different tasks"),
        ("walker_stand,walker_stand", "two or more different tasks"),
        ("walker_stand,cheetah_run", "of one domain.*cheetah_run,cheetah_run_backward"),
        ("", "got ''"),
    ],
)
def test_what_is_not_known_lists_what_is(text, message):
    with pytest.raises(InputError, match=message):
        hidden_tasks(text)


def test_a_hidden_environment_moves_as_the_task_and_pays_for_every_control_step():
    tasks = hidden_tasks("walker_speed")
    plain = Environment("walker_walk")
    hidden = HiddenEnvironment("walker_walk", tasks, np.array([0.5]), action_repeat=4, told=True)
    generator = np.random.default_rng(0)
    observation = plain.reset(3)
    np.testing.assert_array_equal(hidden.reset(3), [*observation, np.float32(0.5)])
    for _ in range(10):
        action = generator.uniform(-1, 1, 6)
        paid = 0.0
        for _ in range(4):
            observation = plain.step(action).observation
            state_RP = plain.physics_state()[None]
            paid += float(tasks.reward(state_RP, action[None], np.array([0.5]))[0])
        step = hidden.step(action)
        np.testing.assert_array_equal(step.observation, [*observation, np.float32(0.5)])
        assert step.reward == pytest.approx(paid, abs=1e-12)


@pytest.mark.parametrize("task", ["walker_stand", "jaco_reach_top_left"])
def test_a_hidden_task_that_is_exorls_own_pays_what_dm_control_pays(task):
    tasks = hidden_tasks(SET if task == "walker_stand" else "jaco_goal")
    hidden = HiddenEnvironment(task, tasks, np.array(tasks.named[task]))
    rewards_R = roll_out(hidden, steps=20, seed=0)[2]
    expected_R = roll_out(Environment(task), steps=20, seed=0)[2]
    np.testing.assert_allclose(rewards_R, expected_R, rtol=0, atol=1e-7)


def test_a_task_of_another_domain_is_refused():
    with pytest.raises(InputError, match=r"walker_speed: is of domain walker.*got cheetah_run"):
        HiddenEnvironment("cheetah_run", hidden_tasks("walker_speed"), np.array([1.0]))


def test_environments_stepped_together_are_paid_each_for_its_own_task():
    tasks = hidden_tasks("cheetah_speed")
    make = lambda value: HiddenEnvironment(  # noqa: E731
        "cheetah_run", tasks, np.array([value]), action_repeat=3
    )
    together, apart = ([make(value) for value in (-1.0, 0.0, 1.0)] for _ in range(2))
    for environment in (*together, *apart):
        environment.reset(0)
    actions_CA = np.random.default_rng(0).uniform(-1, 1, (3, 6))
    for _ in range(3):
        steps = step_together(together, actions_CA)
        for step, environment, action_A in zip(steps, apart, actions_CA, strict=True):
            alone = environment.step(action_A)
            assert step.reward == pytest.approx(alone.reward, abs=1e-12)
            np.testing.assert_array_equal(step.observation, alone.observation)
    assert len({round(step.reward, 3) for step in steps}) == 3
