"""Hidden tasks on stored episodes: rewards as acting pays them, and chains of one task each."""

import numpy as np
import pytest

from agentic_bpt.datasets.hidden import HiddenEpisodes
from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler
from agentic_bpt.datasets.store import Store
from agentic_bpt.environments.hidden_tasks import HiddenEnvironment, hidden_tasks
from agentic_bpt.errors import InputError
from tests.builders import make_store
from tests.physics_builders import physics_store

EPISODES, STEPS = 8, 12
FILE = """
DOMAIN = "cartpole"
PARAMETERS = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]
HELD_OUT = [[0.0, -1.0]]
def reward(physics_RP, parameter):
    return physics_RP[:, 0] * parameter[0] + physics_RP[:, 3] * parameter[1]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = physics_store(tmp_path_factory.mktemp("hidden"), episodes=EPISODES, steps=STEPS)
    with Store.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """Three tasks whose orders of the episodes differ: cart right, cart left, pole turning."""
    path = tmp_path_factory.mktemp("file") / "signed.py"
    path.write_text(FILE)
    return hidden_tasks(f"{path}:reward")


@pytest.mark.parametrize("action_repeat", [1, 4])
@pytest.mark.parametrize(
    ("name", "task", "parameter"),
    [
        ("walker_speed", "walker_run", [0.5]),
        ("cheetah_speed", "cheetah_run", [-0.2]),
        ("maze_goal", "point_mass_maze_reach_top_left", [-0.2, 0.215]),  # where episode 0 starts
        ("cartpole_position", "cartpole_balance", [0.1]),
    ],
)
def test_relabelled_episodes_earn_what_acting_was_paid(
    tmp_path, name, task, parameter, action_repeat
):
    tasks, parameter_D = hidden_tasks(name), np.array(parameter)
    environment = HiddenEnvironment(task, tasks, parameter_D, action_repeat=action_repeat)
    path = physics_store(tmp_path, environment=environment, episodes=2, steps=30)
    spread = []
    with Store.open(path) as store:
        relabelled = HiddenEpisodes(store, tasks).under(parameter_D)
        for episode in range(2):
            stored, got = store.trajectory(episode), relabelled.trajectory(episode)
            paid_T = stored.rewards
            np.testing.assert_allclose(got.rewards, paid_T, rtol=0, atol=3e-6 * action_repeat)
            np.testing.assert_array_equal(got.observations, stored.observations)
            spread.append(np.ptp(paid_T))
    assert max(spread) > 0.01


def test_returns_are_those_of_the_trajectories_however_little_is_held(store, signed):
    table_KE = HiddenEpisodes(store, signed).returns(range(EPISODES), signed.training_KD)
    frugal = HiddenEpisodes(store, signed, held_bytes=0)
    for parameter_D, returns_E in zip(signed.training_KD, table_KE, strict=True):
        source = frugal.under(parameter_D)
        expected_E = [source.trajectory(episode).total_reward for episode in range(EPISODES)]
        np.testing.assert_array_equal(returns_E, expected_E)
    np.testing.assert_allclose(table_KE[0], -table_KE[1], rtol=1e-6)
    assert not frugal._held


def sampler(store, tasks, *, told=False, batch=40, **options):
    source = HiddenEpisodes(store, tasks, told=told)
    settings = {"trajectories": 3, "trajectory_count": "fixed", **options}
    return ChainSampler(
        source.training_tasks(),
        store.training,
        returns=source.returns(store.training, tasks.training_KD),
        longest=STEPS,
        config=ChainConfig(completion="final", **settings),  # rewards are negative too
        batch=batch,
        seed=0,
    )


@pytest.mark.parametrize("sampling", ["uniform", "spread"])
def test_every_chain_is_of_one_task_and_ascends_in_its_returns(store, signed, sampling):
    batch = sampler(store, signed, sampling=sampling).batch(0)
    source = HiddenEpisodes(store, signed)
    rewards = {
        (task, episode): source.rewards(episode, parameter_D)
        for task, parameter_D in enumerate(signed.training_KD)
        for episode in store.training.tolist()
    }
    seen = set()
    for rewards_L, returns_to_go_L in zip(batch.rewards_BL, batch.returns_to_go_BL, strict=True):
        parts = rewards_L.reshape(3, STEPS)
        keys = [
            next(key for key, known_T in rewards.items() if np.array_equal(known_T, part))
            for part in parts
        ]
        assert len({task for task, _ in keys}) == 1
        assert len({episode for _, episode in keys}) == 3
        totals = parts.astype(np.float64).sum(axis=1)
        assert (np.diff(totals) >= 0).all()
        np.testing.assert_allclose(returns_to_go_L[::STEPS], totals[-1], rtol=1e-6)
        seen.add(keys[0][0])
    assert seen == {0, 1, 2}


def test_a_batch_is_a_function_of_seed_and_step(store, signed):
    one, two = sampler(store, signed).batch(7), sampler(store, signed).batch(7)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one.rewards_BL, sampler(store, signed).batch(8).rewards_BL)


def test_the_parameter_is_in_the_input_only_where_it_is_told(store, signed):
    hidden = sampler(store, signed).batch(0)
    told = sampler(store, signed, told=True).batch(0)
    np.testing.assert_array_equal(told.observations_BLO[..., :5], hidden.observations_BLO)
    for observations_LO in told.observations_BLO:
        assert len(np.unique(observations_LO[:, 5:], axis=0)) == 1
        assert observations_LO[0, 5:].tolist() in signed.training_KD.tolist()


def test_units_cover_the_family(store, signed):
    source = HiddenEpisodes(store, signed)
    returns_KE = source.returns(store.training, signed.training_KD)
    units = source.units(returns_KE, longest=STEPS)
    assert units.return_scale == np.abs(returns_KE).max()
    assert units.reward_scale == units.return_scale / STEPS
    np.testing.assert_array_equal(units.observation_mean, store.observation_mean)
    told = HiddenEpisodes(store, signed, told=True).units(returns_KE, longest=STEPS)
    np.testing.assert_allclose(told.observation_mean[5:], [0, 1 / 3], atol=1e-7)
    np.testing.assert_allclose(told.observation_std[5:], np.sqrt([2 / 3, 2 / 9]), rtol=1e-6)
    assert (source.units(0 * returns_KE, longest=STEPS).return_scale) == 1


def test_what_cannot_be_relabelled_is_refused(store, tmp_path):
    with pytest.raises(InputError, match=r"holds episodes of cartpole.*maze_goal need point_mass"):
        HiddenEpisodes(store, hidden_tasks("maze_goal"))
    with (
        Store.open(make_store(tmp_path)) as plain,
        pytest.raises(InputError, match="ingest the episodes again with --keep-physics"),
    ):
        HiddenEpisodes(plain, hidden_tasks("cartpole_position"))
