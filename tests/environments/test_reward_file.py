"""A user's own reward file: what it must hold, and one line for what it does not."""

import numpy as np
import pytest

from agentic_bpt.environments.hidden_tasks import hidden_tasks, reward_file_hash
from agentic_bpt.errors import InputError

GOOD = """
import numpy as np
DOMAIN = "cartpole"
PARAMETERS = np.linspace(-1, 1, 5)
HELD_OUT = [0.25, 0.75]
def reward(physics_RP, parameter):
    return np.exp(-((physics_RP[:, 0] - parameter[0]) ** 2))
"""


def tasks_of(tmp_path, text: str, function: str = "reward"):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return hidden_tasks(f"{path}:{function}")


def test_a_file_of_ones_own_gives_parameters_and_rewards(tmp_path):
    tasks = tasks_of(tmp_path, GOOD)
    assert tasks.domain == "cartpole"
    assert tasks.training_KD.tolist() == [[-1], [-0.5], [0], [0.5], [1]]
    assert tasks.held_out_KD.tolist() == [[0.25], [0.75]]
    states_RP = np.array([[0.25, 9, 9, 9], [1.25, 0, 0, 0]])
    rewards_R = tasks.reward(states_RP, np.zeros((2, 1)), tasks.held_out_KD[0])
    np.testing.assert_allclose(rewards_R, [1, np.exp(-1)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cartpole"', '"pole"', r"mine\.py: DOMAIN must be one of cartpole.*got 'pole'"),
        ("DOMAIN", "DOMAINS", "got None"),
        ("import numpy as np", "import nothing_such", "cannot be run; got ModuleNotFoundError"),
        ("[0.25, 0.75]", "[0.25, 0.5]", r"HELD_OUT must hold nothing of PARAMETERS, got \[0.5\]"),
        ("[0.25, 0.75]", "[[0.25, 0.75]]", "as wide as PARAMETERS, 1, got 2"),
        ("[0.25, 0.75]", "'half'", "HELD_OUT must be finite numbers"),
        ("[0.25, 0.75]", "[]", "HELD_OUT must be finite numbers"),
        ("def reward", "def price", "has no function 'reward'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message) as refused:
        tasks_of(tmp_path, GOOD.replace(old, new))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("physics_RP[:, 99]", r"mine\.py:reward: fails; got IndexError"),
        ("physics_RP", r"one finite number for each of 3 states, got shape \(3, 4\)"),
        ("physics_RP[:, 0] * np.nan", "one finite number for each of 3 states"),
    ],
)
def test_a_wrong_reward_is_refused_in_one_line(tmp_path, body, message):
    text = GOOD.replace("np.exp(-((physics_RP[:, 0] - parameter[0]) ** 2))", body)
    tasks = tasks_of(tmp_path, text)
    with pytest.raises(InputError, match=message) as refused:
        tasks.reward(np.zeros((3, 4)), np.zeros((3, 1)), tasks.training_KD[0])
    assert "\n" not in str(refused.value)


def test_a_file_is_known_by_its_content(tmp_path):
    tasks = tasks_of(tmp_path, GOOD)
    first = reward_file_hash(tasks.text)
    assert first == reward_file_hash(tasks.text) != ""
    tasks_of(tmp_path, GOOD.replace("0.75", "0.8"))
    assert reward_file_hash(tasks.text) not in (first, "")
    assert reward_file_hash("walker_speed") == ""


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.py: is not there"):
        hidden_tasks(f"{tmp_path}/none.py:reward")
    with pytest.raises(InputError, match=r"none\.py: is not there"):
        reward_file_hash(f"{tmp_path}/none.py:reward")
