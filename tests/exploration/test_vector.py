"""Environments in lock-step: the same as each alone, whoever steps them; workers that end."""

import numpy as np
import pytest

from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.vector import VectorEnvironment

TASK = "walker_walk"
SEEDS = (5, 6, 2**32 - 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_environment_does_what_it_does_alone(workers):
    actions_TNA = np.random.default_rng(0).uniform(-1, 1, (4, 3, 6)).astype(np.float32)
    options = {"action_repeat": 2, "environments": 3, "workers": workers}
    with VectorEnvironment(TASK, **options) as vector:
        assert (vector.environments, vector.episode_steps) == (3, 500)
        steps = [vector.reset(SEEDS)] + [vector.step(actions_NA) for actions_NA in actions_TNA]
        assert steps[0].observations.dtype == np.float32
    environment = Environment(TASK, action_repeat=2)
    for place, seed in enumerate(SEEDS):
        np.testing.assert_array_equal(steps[0].observations[place], environment.reset(seed))
        assert steps[0].rewards[place] == 0
        for step, action_A in zip(steps[1:], actions_TNA[:, place], strict=True):
            expected = environment.step(action_A)
            np.testing.assert_array_equal(step.observations[place], expected.observation)
            np.testing.assert_array_equal(step.physics[place], environment.physics_state())
            assert step.rewards[place] == expected.reward > 0


def test_workers_end_with_it_and_one_that_ended_is_reported():
    with VectorEnvironment(TASK, action_repeat=1, environments=2, workers=2) as vector:
        vector.reset(SEEDS[:2])
        (process,) = vector._processes
        assert process.is_alive()
        process.kill()
        process.join()
        with pytest.raises(InputError, match="a process that steps environments was ended"):
            vector.step(np.zeros((2, 6)))
    with VectorEnvironment(TASK, action_repeat=1, environments=2, workers=2) as vector:
        vector.reset(SEEDS[:2])
    assert [process.exitcode for process in vector._processes] == [0]
