"""Families: parameters for training and evaluation do not meet; rewards as the formulas say."""

import numpy as np
import pytest

from agentic_bpt.environments.families import FAMILIES, Family
from agentic_bpt.environments.hidden_tasks import hidden_tasks
from agentic_bpt.environments.rewards import physics_rewards
from agentic_bpt.environments.tasks import domain_spec

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def cells_of(family: Family, parameters_KD: np.ndarray) -> set[tuple[int, ...]]:
    """Find the cell of each parameter: the number of the band it lies in, for each of its numbers.

    Fails on a parameter outside every band.
    """
    cells = set()
    for parameter_D in parameters_KD:
        cell = []
        for value, bands in zip(parameter_D, family.bands, strict=True):
            (band,) = [n for n, (low, high) in enumerate(bands) if low <= value < high]
            cell.append(band)
        cells.add(tuple(cell))
    return cells


@EVERY
def test_training_and_held_out_parameters_lie_in_different_cells(family):
    training = cells_of(family, family.parameters(held_out=False, count=500, seed=0))
    held_out = cells_of(family, family.parameters(held_out=True, count=500, seed=1))
    assert not training & held_out
    everything = int(np.prod([len(bands) for bands in family.bands]))
    assert len(training | held_out) == everything  # no cell is left out, none met more than others
    assert len(held_out) == everything / 5


@EVERY
def test_exorls_own_goals_lie_in_held_out_cells(family):
    held_out = cells_of(family, family.parameters(held_out=True, count=500, seed=0))
    assert cells_of(family, np.array(list(family.named.values()))) <= held_out
    assert len(family.named) == (4 if "goal" in family.name else 0)


def test_parameters_are_a_function_of_the_seed():
    family = FAMILIES["maze_goal"]
    draw = lambda seed: family.parameters(held_out=False, count=8, seed=seed)  # noqa: E731
    np.testing.assert_array_equal(draw(3), draw(3))
    assert (draw(3) != draw(4)).all()


@pytest.mark.parametrize("name", ["maze_goal", "jaco_goal"])
def test_goals_of_exorl_are_rewarded_as_exorl_does(name):
    tasks = hidden_tasks(name)
    spec = domain_spec(tasks.domain)
    generator = np.random.default_rng(0)
    actions_RA = generator.uniform(-1, 1, (200, spec.action_width))
    for task, parameter in tasks.named.items():
        states_RP = generator.normal(0, 0.4, (200, spec.physics_width))
        if name == "maze_goal":
            states_RP[:, :2] = parameter + 0.05 * states_RP[:, :2]
        expected_R = physics_rewards(task, states_RP, actions_RA)
        np.testing.assert_array_equal(
            tasks.reward(states_RP, actions_RA, np.array(parameter)), expected_R
        )
        assert expected_R.max() > (0.5 if name == "maze_goal" else 0)  # far off, and yet not 0


def reward(name: str, states_RP: np.ndarray, parameter: float) -> np.ndarray:
    tasks = hidden_tasks(name)
    actions_RA = np.zeros((len(states_RP), domain_spec(tasks.domain).action_width))
    return tasks.reward(states_RP, actions_RA, np.array([parameter]))


def test_a_walker_is_paid_for_standing_and_for_the_speed_asked_for():
    states_RP = np.zeros((7, 18))  # the zero pose stands upright, 1.3 m high
    states_RP[:, 10] = [1.0, 1.1, 0.9, 1.6, 2.1, 0.0, -1.0]  # m/s, the body moving as one
    near_R = np.array([1, 1, 1, 0.5, 0, 0.1, 0])  # band 0.1 m/s, then down over 1 m/s
    np.testing.assert_allclose(
        reward("walker_speed", states_RP, 1.0), (5 * near_R + 1) / 6, atol=1e-9
    )
    states_RP[:, 2] = np.pi / 2  # on its side: cosine 0
    lying_R = reward("walker_speed", states_RP, 1.0)
    stand = (3 * 1 + 0.5) / 4
    np.testing.assert_allclose(lying_R[0], stand, atol=1e-9)


def test_a_cheetah_is_paid_for_a_signed_speed():
    states_RP = np.zeros((4, 18))
    states_RP[:, 9] = [-2.0, 2.0, 0.0, -3.2]  # m/s
    expected_R = [1, 0, 0.1, 0.5]  # band 0.2 m/s, then down over 2 m/s
    np.testing.assert_allclose(reward("cheetah_speed", states_RP, -2.0), expected_R, atol=1e-9)


def test_a_cartpole_is_paid_for_being_upright_at_a_position():
    cart, angle = np.array([[0.5, 0], [0.6, 0], [-0.35, 0], [0.5, np.pi], [1.35, 0]]).T
    states_RP = np.stack([cart, angle, np.zeros(5), np.zeros(5)], axis=1)
    expected_R = [1, 1, 0.1, 0, 0.1]  # band 0.1 m, then a Gaussian with 0.1 at 0.75 m
    np.testing.assert_allclose(reward("cartpole_position", states_RP, 0.5), expected_R, atol=1e-9)
    tasks = hidden_tasks("cartpole_position")
    full = tasks.reward(states_RP[:1], np.ones((1, 1)), np.array([0.5]))
    np.testing.assert_allclose(full, 0.8)  # full control
