"""What another context changes, for agents whose use of it is known."""

import numpy as np
import pytest

from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.context_use import arrange, measure_context, trajectories_of
from agentic_bpt.evaluation.imitation import unpadded


class Episodes:
    """Eight made-up episodes of unlike lengths."""

    def trajectory(self, episode: int) -> Trajectory:
        generator = np.random.default_rng(episode)
        steps = 3 + episode % 3
        draw = lambda *shape: generator.uniform(-1, 1, shape).astype(np.float32)  # noqa: E731
        return Trajectory(draw(steps, 2), draw(steps, 2), draw(steps) + 1, draw(2))


def chains(count: int, target_excess: float = 0.0):
    returns = np.array([Episodes().trajectory(k).total_reward for k in range(8)])
    config = ChainConfig(trajectories=count, trajectory_count="fixed", target_excess=target_excess)
    options = {"returns": returns, "longest": 5, "config": config, "batch": 1, "seed": 3}
    return ChainSampler(Episodes(), np.arange(8), **options).batch


def measure(predict, count: int):
    return measure_context(predict, chains(count), chains=4, completion="reached")


def test_trajectories_put_together_again_are_the_chain():
    batch = chains(3, target_excess=0.5)(0)
    own = trajectories_of(unpadded(batch))
    assert len(own) == 3
    target = float(batch.returns_to_go_BL[0, 0])
    assert target > own[-1].total_reward
    again = arrange(own, target_return=target, completion="reached", count=3, length=15)
    for name, values in batch._asdict().items():
        np.testing.assert_allclose(values, getattr(again, name), rtol=1e-6, err_msg=name)


def test_a_part_of_a_chain_keeps_its_target_and_the_number_of_its_last():
    own = trajectories_of(unpadded(chains(3)(0)))
    target = own[-1].total_reward
    dropped = unpadded(
        arrange(own[-1:], target_return=target, completion="reached", count=3, length=15)
    )
    assert set(dropped.trajectories_L) == {2}
    assert dropped.returns_to_go_L[0] == np.float32(target)
    assert dropped.completions_L[-1] == 1


def test_an_agent_that_looks_at_its_target_only_has_no_use_for_context():
    actions = lambda batch: np.repeat(batch.returns_to_go_BL[0, :, None] / 99, 2, axis=1)  # noqa: E731
    use = measure_context(actions, chains(3, target_excess=0.5), chains=4, completion="reached")
    assert all(change.action < 1e-6 for change in use.changes.values())  # of about 0.05 otherwise


def test_an_agent_that_looks_at_the_observation_only_has_no_use_for_context():
    use = measure(lambda batch: np.tanh(batch.observations_BLO[0]), 3)
    assert {change.action for change in use.changes.values()} == {0.0}
    assert {change.loss for change in use.changes.values()} == {0.0}
    assert set(use.changes) == {"dropped", "foreign", "reversed"}
    assert use.action_error > 0.1


def test_changes_are_those_of_an_agent_that_repeats_the_first_action_of_its_context():
    use = measure(lambda batch: np.broadcast_to(batch.actions_BLA[0, 0], (15, 2)), 3)
    first = lambda trajectory: trajectory.actions[0]  # noqa: E731
    expected = {"dropped": [], "foreign": [], "reversed": []}
    more = []
    for number in range(4):
        own, other = (trajectories_of(unpadded(chains(3)(number + k))) for k in (0, 1))
        stand_ins = {"dropped": own[2], "foreign": other[0], "reversed": own[1]}
        for name, stands_in in stand_ins.items():
            expected[name].append(np.abs(first(stands_in) - first(own[0])).mean())
        errors = [np.square(first(t) - own[2].actions).mean() for t in (own[2], own[0])]
        more.append(errors[0] - errors[1])
    for name, values in expected.items():
        assert use.changes[name].action == pytest.approx(np.mean(values), rel=1e-5), name
    dropped = use.changes["dropped"]
    assert dropped.loss == pytest.approx(np.mean(more), rel=1e-4)
    assert dropped.loss_low is not None
    assert dropped.loss_high is not None
    assert min(more) <= dropped.loss_low < dropped.loss < dropped.loss_high <= max(more) + 1e-6


def test_two_trajectories_cannot_be_reordered():
    use = measure(lambda batch: np.zeros((10, 2)), 2)
    assert set(use.changes) == {"dropped", "foreign"}
