import json

import numpy as np
import pytest

from agentic_bpt.datasets.exorl import episode_files, read_episode
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.environments.tasks import TASKS, Environment
from agentic_bpt.errors import InputError
from tests.builders import make_episode

DOMAINS = sorted({spec.domain for spec in TASKS.values()})


def reference_of(folder, domain):
    """Pair each reference episode of a domain with what ExoRL's own code says of it."""
    said = json.loads((folder / "reference.json").read_text())
    for file in episode_files(folder / domain / "random"):
        key = f"{domain}/random/buffer/{file.name}"
        yield read_episode(file, domain=domain), said[key]


def close(got: float, expected: float) -> bool:
    return abs(got - expected) <= 1e-6 * max(1, abs(expected))


@pytest.mark.parametrize("domain", DOMAINS)
def test_exorl_mode_equals_exorls_own_relabelling(domain, reference_episodes):
    compared = 0
    for episode, said in reference_of(reference_episodes, domain):
        for task, expected in said["exorl_relabel"].items():
            rewards_T = relabel(episode, task=task, mode="exorl")
            assert close(rewards_T.sum(), expected["total_from_row_1"]), task
            assert close(rewards_T[0], expected["row_1"]), task
            assert close(rewards_T[-1], expected["last"]), task
            compared += 1
    assert compared == 2 * sum(spec.domain == domain for spec in TASKS.values())


@pytest.mark.parametrize("domain", DOMAINS)
def test_control_and_stored_modes_equal_the_reward_of_the_run(domain, reference_episodes):
    for episode, said in reference_of(reference_episodes, domain):
        task = said["online_task"]
        control_T = relabel(episode, task=task, mode="control")
        stored_T = relabel(episode, task=task, mode="stored")
        np.testing.assert_allclose(control_T, stored_T, rtol=0, atol=1e-6)
        assert close(control_T.sum(), said["online_return"])
        assert close(stored_T.sum(), said["online_return"])


def test_the_control_term_of_cartpole_counts_in_control_mode_only(reference_episodes):
    episode, _ = next(reference_of(reference_episodes, "cartpole"))
    control_T = relabel(episode, task="cartpole_swingup", mode="control")
    exorl_T = relabel(episode, task="cartpole_swingup", mode="exorl")
    # The control term lies in [0.8, 1] (dm_control suite/cartpole.py).
    assert (control_T <= exorl_T).all()
    assert 0.8 * exorl_T.sum() < control_T.sum() < 0.95 * exorl_T.sum()


def test_the_reset_row_is_dropped():
    episode = make_episode(steps=3, reward=np.array([9, 1, 2, 3], np.float32))
    rewards_T = relabel(episode, task="cartpole_swingup", mode="stored")
    assert rewards_T.dtype == np.float64
    assert rewards_T.tolist() == [1, 2, 3]


@pytest.mark.parametrize("mode", ["control", "exorl"])
def test_computing_needs_physics(mode):
    episode = make_episode(physics=None)
    message = "episode_000000_5.npz: key 'physics': .*--relabel stored"
    with pytest.raises(InputError, match=message):
        relabel(episode, task="cartpole_swingup", mode=mode)
    assert len(relabel(episode, task="cartpole_swingup", mode="stored")) == 5


@pytest.mark.parametrize(
    ("acted_in", "paid_by"), [("walker_walk", "walker_run"), ("cartpole_swingup",) * 2]
)
def test_repeated_actions_earn_what_the_environment_pays(acted_in, paid_by):
    environment, payer = (Environment(task, action_repeat=4) for task in (acted_in, paid_by))
    observations, actions, rewards = [environment.reset(seed=1)], [], [0.0]
    payer.reset_to(environment.physics_state())
    physics = [environment.physics_state()]
    generator = np.random.default_rng(0)
    for _ in range(30):
        width = environment.spec.action_width
        actions.append(generator.uniform(-1, 1, width).astype(np.float32))
        observations.append(environment.step(actions[-1]).observation)
        physics.append(environment.physics_state())
        rewards.append(payer.step(actions[-1]).reward)
    episode = make_episode(
        environment.spec.domain,
        steps=30,
        observation=np.array(observations),
        action=np.array([0 * actions[0], *actions]),
        physics=np.array(physics),
        action_repeat=4,
    )
    got_T = relabel(episode, task=paid_by, mode="control")
    np.testing.assert_allclose(got_T, rewards[1:], rtol=0, atol=1e-6)


def test_an_episode_of_more_decisions_than_fit_is_refused():
    episode = make_episode(steps=5, action_repeat=250)
    with pytest.raises(InputError, match=r"at most 4 decisions of 250 control steps.* got 5"):
        relabel(episode, task="cartpole_swingup", mode="control")


def test_four_stored_rewards_are_refused_for_their_unknown_order():
    episode = make_episode("point_mass_maze", reward=np.zeros((6, 4), np.float32))
    with pytest.raises(InputError, match=r"'reward': has 4 columns.*--relabel control"):
        relabel(episode, task="point_mass_maze_reach_top_left", mode="stored")


def test_an_unknown_mode_or_task_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"control, exorl, stored; got 'online'"):
        relabel(make_episode(), task="cartpole_swingup", mode="online")
    with pytest.raises(InputError, match=r"cartpole_swingup.*got 'cartpole_fly'"):
        relabel(make_episode(), task="cartpole_fly", mode="stored")
