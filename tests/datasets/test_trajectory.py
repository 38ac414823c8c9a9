import numpy as np
import pytest

from agentic_bpt.datasets.trajectory import Trajectory, check_trajectory
from agentic_bpt.errors import InputError


def make_trajectory(steps: int = 4) -> Trajectory:
    return Trajectory(
        observations=np.arange(steps * 3, dtype=np.float32).reshape(steps, 3),
        actions=np.full((steps, 2), 0.5, np.float32),
        rewards=np.full(steps, 0.1, np.float32),
        final_observation=np.zeros(3, np.float32),
    )


def check(trajectory: Trajectory) -> Trajectory:
    return check_trajectory(trajectory, where="a.npz", observation_width=3, action_width=2)


def test_a_right_trajectory_comes_back_as_it_is():
    trajectory = make_trajectory()
    assert check(trajectory) is trajectory


def test_total_reward_is_summed_in_float64():
    rewards = np.array([2**24, 1, 1], np.float32)  # float32 cannot count beyond 2^24
    trajectory = make_trajectory(3)._replace(rewards=rewards)
    assert trajectory.total_reward == 2**24 + 2


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        (
            "observations",
            np.zeros((4, 5), np.float32),
            r"observations must be .*\[4, 3\].*\[4, 5\]",
        ),
        (
            "observations",
            np.zeros((5, 3), np.float32),
            r"observations must be .*\[4, 3\].*\[5, 3\]",
        ),
        ("observations", np.zeros((4, 3)), "observations must be float32 .* got float64"),
        ("rewards", np.zeros((4, 1), np.float32), r"rewards must be float32 \[4\]"),
        ("final_observation", np.zeros(2, np.float32), "final_observation must be"),
        ("actions", np.zeros((0, 2), np.float32), "at least one step"),
    ],
)
def test_wrong_shapes_and_types_are_refused(field, values, message):
    with pytest.raises(InputError, match=rf"^a\.npz: .*{message}"):
        check(make_trajectory()._replace(**{field: values}))


@pytest.mark.parametrize("field", ["observations", "actions", "rewards"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_the_row_of_a_number_that_is_not_finite_is_named(field, number):
    trajectory = make_trajectory()
    getattr(trajectory, field)[2] = number
    with pytest.raises(InputError, match=rf"a\.npz: {field}: .*got {number} in row 2 \(1 such"):
        check(trajectory)


def test_opposite_infinities_do_not_hide_each_other():
    trajectory = make_trajectory()
    trajectory.observations[1, :2] = np.inf, -np.inf
    with pytest.raises(InputError, match="row 1"):
        check(trajectory)


def test_large_finite_numbers_are_not_taken_for_infinity():
    trajectory = make_trajectory()
    trajectory.observations[:] = np.finfo(np.float32).max
    assert check(trajectory) is trajectory


def test_actions_may_pass_their_bounds_by_rounding_only():
    trajectory = make_trajectory()
    trajectory.actions[1, 0] = 1 + 1e-6
    trajectory.actions[2, 0] = -1 - 1e-6
    check(trajectory)
    trajectory.actions[3, 1] = -1.00001
    with pytest.raises(
        InputError, match=r"a\.npz: actions: must lie in \[-1, 1\].*got -1.0000.* row 3"
    ):
        check(trajectory)
