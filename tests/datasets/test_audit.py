"""Stored episodes replay to their own states and rewards; a change of one action is found."""

import numpy as np
import pytest

from agentic_bpt.datasets.audit import DRIFT, audit
from agentic_bpt.datasets.exorl import episode_files, read_episode, write_episode
from agentic_bpt.environments.tasks import TASKS, Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import collect
from tests.builders import make_episode, make_folder

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
        assert max(replay.observation_error, replay.reward_error) <= 1e-6


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


def test_what_urlbs_own_agent_did_replays_exactly(rnd_episodes):
    replays = audit(rnd_episodes / "walker" / "rnd", task="walker_stand", episodes=2)
    assert [replay.name[:14] for replay in replays] == ["episode_000037", "episode_000112"]
    for replay in replays:
        assert replay.drift_step is None
        assert max(replay.observation_error, replay.stored_error) <= 1e-6


def test_stored_rewards_of_another_task_and_a_changed_observation_show(rnd_episodes, tmp_path):
    file = episode_files(rnd_episodes / "walker" / "rnd")[-1]
    episode = read_episode(file, domain="walker")
    episode.observation[500, 3] += 0.25
    write_episode(tmp_path, index=0, episode=episode)
    (replay,) = audit(tmp_path, task="walker_run")
    assert replay.drift_step is None
    expected = 0.25 / max(1, abs(episode.observation[500, 3]))
    assert replay.observation_error == pytest.approx(expected, rel=1e-3)
    assert replay.reward_error <= 1e-6
    assert replay.stored_error > 0.1


def test_of_several_stored_rewards_the_column_of_the_task_is_compared(reference_episodes, tmp_path):
    file = episode_files(reference_episodes / "point_mass_maze" / "random")[0]
    episode = read_episode(file, domain="point_mass_maze")
    # Each column is right in half of the steps, so none is the task's.
    right_R = np.arange(len(episode.reward)) % 2 == 0
    halves = [episode.reward + 0.5 * right_R, episode.reward + 0.5 * ~right_R]
    task = "point_mass_maze_reach_top_left"
    for name, last, expected in (("right", episode.reward, 0), ("wrong", halves[1], 0.5)):
        columns_R4 = np.stack([*halves, halves[0], last], axis=1)
        write_episode(tmp_path / name, index=0, episode=episode._replace(reward=columns_R4))
        (replay,) = audit(tmp_path / name, task=task)
        assert replay.stored_error == pytest.approx(expected, abs=1e-6)


def test_more_episodes_than_there_are_means_all(tmp_path):
    source = make_folder(tmp_path, episodes=2)
    assert len(audit(source, task="cartpole_balance", episodes=10)) == 2


@pytest.mark.parametrize(
    ("steps", "fields", "message"),
    [
        (1001, {}, r"_1001\.npz: an episode of cartpole_balance has at most 1000 steps.* got 1001"),
        (251, {"action_repeat": 4}, r"_251\.npz: .* at most 250 steps"),
        (5, {"physics": np.full((6, 4), 1e12)}, r"_5\.npz: key 'physics': .*cannot go on after"),
        (5, {"physics": None}, r"_5\.npz: key 'physics': is needed to replay"),
    ],
)
def test_what_cannot_be_replayed_is_named(tmp_path, steps, fields, message):
    write_episode(tmp_path, index=0, episode=make_episode(steps=steps, **fields))
    with pytest.raises(InputError, match=message):
        audit(tmp_path, task="cartpole_balance")


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
