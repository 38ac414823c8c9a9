"""Stored episodes replay to their own states and rewards; a change of one action is found."""

import numpy as np
import pytest

from agentic_bpt.datasets.audit import DRIFT, audit
from agentic_bpt.datasets.exorl import episode_files, read_episode, write_episode
from agentic_bpt.environments.tasks import TASKS, Environment
from agentic_bpt.exploration.collect import collect

TASK_OF = {spec.domain: name for name, spec in TASKS.items()}


@pytest.mark.parametrize("task", ["cartpole_balance", "walker_run", "jaco_reach_top_left"])
def test_what_the_product_collects_replays_exactly(tmp_path, task):
    collected = collect(task, expl_agent="random", episodes=1, out=tmp_path, seed=0)
    (replay,) = audit(collected.folder, task=task)
    assert replay.steps == TASKS[task].episode_steps
    assert replay.drift_step is None
    assert replay.state_error <= DRIFT
    assert max(replay.reward_error, replay.stored_error) <= 1e-6


@pytest.mark.parametrize("domain", TASK_OF)
def test_what_exorl_itself_wrote_replays_exactly(reference_episodes, domain):
    for replay in audit(reference_episodes / domain / "random", task=TASK_OF[domain]):
        assert replay.drift_step is None
        assert replay.reward_error <= 1e-6


def test_the_step_of_a_changed_action_is_named(tmp_path):
    collected = collect("cartpole_balance", expl_agent="random", episodes=1, out=tmp_path, seed=0)
    (file,) = episode_files(collected.folder)
    episode = read_episode(file, domain="cartpole")
    action = episode.action.copy()
    action[1 + 40] = -np.sign(action[1 + 40])
    folder = tmp_path / "changed" / "cartpole" / "random" / "buffer"
    write_episode(folder, index=0, episode=episode._replace(action=action))
    (replay,) = audit(folder, task="cartpole_balance")
    assert replay.drift_step == 40


def test_an_episode_starts_where_it_is_told():
    environment = Environment("walker_walk")
    environment.reset(0)
    state = environment.physics_state()
    environment.reset(1)
    environment.reset_to(state)
    np.testing.assert_array_equal(environment.physics_state(), state)
    action = np.full(environment.spec.action_width, 0.3)
    again = environment.step(action)
    environment.reset(0)
    np.testing.assert_array_equal(environment.step(action).observation, again.observation)
