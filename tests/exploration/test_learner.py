"""The explorer that learns: when it learns, how it acts, and going on from its state."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.exploration.actor_critic import Batch, LearnerConfig
from agentic_bpt.exploration.learner import LearningExplorer
from agentic_bpt.exploration.networks import Actor, act_numpy, init_actor
from agentic_bpt.exploration.replay import Experience

STEPS = 20
CONFIG = LearnerConfig(batch_size=4, uniform_steps=30, updates_per_call=4, noise=0.3)


class ToyState(NamedTuple):
    """A policy and how often it was updated."""

    actor: Actor
    updates: jax.Array


@dataclass(frozen=True)
class ToyAgent:
    """Shifts its policy by all that a batch holds, so that no draw is without effect."""

    config: LearnerConfig = CONFIG
    hidden: int = 8

    def init(
        self, draws: np.random.Generator, *, observation_width: int, action_width: int
    ) -> ToyState:
        widths = {"observation_width": observation_width, "action_width": action_width}
        actor = init_actor(draws, hidden=self.hidden, **widths)
        return ToyState(actor, jax.numpy.asarray(np.int32(0)))

    def update(self, state: ToyState, batch: Batch) -> ToyState:
        shift = sum(part.mean() for part in batch)
        output = state.actor.output
        output = output._replace(bias=output.bias + 0.1 * shift)
        return ToyState(state.actor._replace(output=output), state.updates + 1)

    def actor(self, state: ToyState) -> Actor:
        return state.actor


def explorer(hidden: int = 8, environments: int = 1, **changes) -> LearningExplorer:
    config = LearnerConfig(**{**vars(CONFIG), **changes})
    sizes = {"episode_steps": STEPS, "observation_width": 3, "action_width": 1}
    return LearningExplorer(ToyAgent(config, hidden), seed=0, environments=environments, **sizes)


def run_round(explorer: LearningExplorer, first: int, environments: int) -> list[Experience]:
    """Run episodes in a world whose next observation is made of the last and the action."""
    observations = [np.full((environments, 3), first, np.float32)]
    actions = []
    explorer.start_round(first)
    for t in range(STEPS):
        actions.append(explorer.act(observations[-1]))
        observations.append(np.sin(observations[-1] + actions[-1] + t).astype(np.float32))
    pay = np.ones(STEPS, np.float32)
    episodes = [
        Experience(np.array(observations)[:, place], np.array(actions)[:, place], pay)
        for place in range(environments)
    ]
    explorer.end_round(episodes)
    return episodes


def run(explorer: LearningExplorer, index: int) -> Experience:
    """Run a round of one episode."""
    return run_round(explorer, index, 1)[0]


def test_it_learns_once_in_two_decisions_from_when_the_uniform_ones_are_over():
    collector = explorer()
    counts = []
    for index in range(4):
        run(collector, index)
        counts.append(int(collector.state()[".updates"]))
    # Calls of 4 updates fall on decisions 32 (in episode 1), 40, 48, 56, 64, 72.
    assert counts == [0, 4, 16, 24]
    policies = [each.state()[".actor.output.bias"] for each in (collector, explorer())]
    assert policies[0] != policies[1]


@pytest.mark.parametrize(
    ("environments", "expected"),
    [
        # Decisions go up by 3: calls of 4 updates at 64 .. 112, then at 120 .. 176, then ..232.
        (3, [0, 28, 60, 88]),
        # Decisions go up by 20, of which each passes two or three multiples of 8.
        (20, [0, 200, 400]),
    ],
)
def test_it_learns_as_often_with_many_environments(environments, expected):
    collector = explorer(environments=environments)
    counts = []
    for number in range(len(expected)):
        run_round(collector, number * environments, environments)
        counts.append(int(collector.state()[".updates"]))
    assert counts == expected


def test_environments_of_a_round_act_on_their_own_observations_with_their_own_noise():
    collector = explorer(environments=2, uniform_steps=0)
    collector.start_round(0)
    alike = collector.act(np.zeros((2, 3), np.float32))
    assert alike.shape == (2, 1)
    assert alike[0] != alike[1]
    quiet = explorer(environments=2, uniform_steps=0, noise=0.0)
    quiet.start_round(0)
    one, other = quiet.act(np.array([[0.3, -0.2, 0.9], [0.8, 0.1, -0.5]], np.float32))
    alone = explorer(uniform_steps=0, noise=0.0)
    alone.start_round(0)
    np.testing.assert_allclose(other, alone.act(np.array([[0.8, 0.1, -0.5]]))[0], atol=1e-6)
    assert one != other


def test_it_acts_uniformly_first_then_by_its_newest_policy_with_noise():
    quiet = explorer(noise=0.0)
    episodes = [run(quiet, index) for index in range(2)]
    uniform = np.concatenate([episodes[0].actions, episodes[1].actions[:10]])
    assert np.ptp(uniform) > 1.5
    quiet.start_round(2)
    leaves = quiet.state()
    actor = init_actor(np.random.default_rng(0), observation_width=3, action_width=1, hidden=8)
    structure = jax.tree.structure(actor)
    actor = jax.tree.unflatten(structure, [leaves[name] for name in leaves if "actor" in name])
    assert actor.trunk.scale is leaves[".actor.trunk.scale"]
    observation = np.array([[0.3, -0.2, 0.9]], np.float32)
    np.testing.assert_array_equal(quiet.act(observation), act_numpy(actor, observation))
    loud = run(explorer(uniform_steps=0, noise=5.0), 0).actions
    assert loud.dtype == np.float32
    assert set(abs(loud[abs(loud) > 0.999].ravel())) == {1.0}


def test_going_on_from_its_state_is_never_having_stopped():
    straight = explorer(replay_steps=2 * STEPS)
    episodes = [run(straight, index) for index in range(5)]
    stopped = explorer(replay_steps=2 * STEPS)
    for index in range(3):
        run(stopped, index)
    again = explorer(replay_steps=2 * STEPS)
    read = []
    again.restore(stopped.state(), 3, lambda index: read.append(index) or episodes[index])
    assert read == [1, 2]
    for index in (3, 4):
        np.testing.assert_array_equal(run(again, index).actions, episodes[index].actions)
    assert again.state().keys() == straight.state().keys()
    for name, array in straight.state().items():
        np.testing.assert_array_equal(again.state()[name], array)


def test_the_state_of_another_explorer_is_refused():
    with pytest.raises(InputError, match="other arrays than this explorer"):
        explorer().restore(explorer(hidden=6).state(), 0, lambda index: run(explorer(), 0))
