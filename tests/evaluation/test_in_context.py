"""Evaluation in context: the right prompts for each chain, and returns of the hidden reward."""

import jax
import numpy as np
import pytest

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.datasets.hidden import HiddenEpisodes
from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler
from agentic_bpt.datasets.store import Store
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.environments.hidden_tasks import HiddenEnvironment, hidden_tasks
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.in_context import (
    InContext,
    asked_returns,
    evaluate_in_context,
    evaluation_parameters,
    lines_of,
    shuffle_rewards,
)
from agentic_bpt.evaluation.policy import ContextPolicy
from agentic_bpt.evaluation.rollout import episode_seed
from agentic_bpt.models.tokens import Scales
from agentic_bpt.models.trajectory_transformer import (
    Sizes,
    TrajectoryTransformer,
    TrajectoryTransformerConfig,
    timesteps_of,
)
from tests.physics_builders import physics_store

REPEAT, STEPS = 10, 10  # decisions of 10 control steps, and only 10 of them an episode
OPTIONS = InContext(trajectories=2, chains=3, prompt_trajectories=2)


class NotingPolicy(ContextPolicy):
    """Keeps what it was started with, and the actions of its first chain."""

    def start(self, target_returns_B, **options):
        self.starts = [*getattr(self, "starts", []), options.get("prompts")]
        self.targets = [*getattr(self, "targets", []), target_returns_B.tolist()]
        super().start(target_returns_B, **options)

    def act(self, observations_BO):
        actions = super().act(observations_BO)
        self.first_actions = [*getattr(self, "first_actions", []), actions[0]]
        return actions


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    environment = Environment("cartpole_swingup", action_repeat=REPEAT)
    root = tmp_path_factory.mktemp("in_context")
    path = physics_store(root, environment=environment, episodes=6, steps=STEPS)
    with Store.open(path) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "episode_steps", STEPS)
        yield HiddenEpisodes(store, hidden_tasks("cartpole_position"), told=True)


@pytest.fixture(scope="module")
def policy(episodes):
    store, tasks = episodes.store, episodes.tasks
    returns_KE = episodes.returns(store.training, tasks.training_KD)
    batch = ChainSampler(
        episodes.training_tasks(),
        store.training,
        returns=returns_KE,
        longest=STEPS,
        config=ChainConfig(trajectories=2),
        batch=2,
        seed=0,
    ).batch(0)
    scales = Scales(*episodes.units(returns_KE, longest=STEPS))
    config = TrajectoryTransformerConfig(core=CoreConfig(layers=1, width=16), layout="joint")
    model = TrajectoryTransformer(config, Sizes(1, STEPS, 4))
    params = model.init(jax.random.key(0), timesteps_of(batch), batch.valid_BL, scales)
    return NotingPolicy(model, params, scales, episode_steps=STEPS, completion="reached")


@pytest.fixture(scope="module")
def document(episodes, policy):
    told = []
    result = evaluate_in_context(
        policy, episodes, OPTIONS, progress=lambda *numbers: told.append(numbers)
    )
    assert told[-1] == (6 * 3 * 2 * STEPS * REPEAT,) * 2  # five conditions and random acting
    return result


def test_conditions_have_returns_of_every_chain_and_trajectory(document, episodes):
    contexts = [condition["context"] for condition in document["conditions"]]
    assert contexts == ["right", "foreign", "relabelled", "shuffled", "none"]
    for condition in (*document["conditions"], document["random"]):
        assert np.shape(condition["returns"]) == (3, 2)
    assert document["parameters"] == episodes.tasks.held_out_KD[:3].tolist()
    assert document["tasks"] == [None] * 3
    assert document["protocol"]["told"] is True
    assert len(lines_of(document)) == 6


def test_targets_are_the_best_returns_of_the_data_under_each_parameter(document, episodes, policy):
    for best, parameter in zip(document["best_returns"], document["parameters"], strict=True):
        source = episodes.under(np.array(parameter))
        assert best == max(source.trajectory(e).total_reward for e in episodes.store.training)
    asked = [condition["target_returns"] for condition in document["conditions"]]
    assert asked == policy.targets[:5] == [document["best_returns"]] * 5


def test_who_never_saw_a_target_reached_is_asked_for_more_than_the_best_it_is_shown(
    document, episodes, policy
):
    found = evaluate_in_context(policy, episodes, OPTIONS, target_excess=0.2)
    best_C = np.array(document["best_returns"])
    for condition in found["conditions"]:
        np.testing.assert_allclose(condition["target_returns"], 1.1 * best_C)
    low, high = [
        episodes.under(np.zeros(1)).trajectory(0)._replace(rewards=np.array([r])) for r in (1, 9)
    ]
    prompts = [[low, high], [low]]
    assert asked_returns(np.array([4, 4]), prompts, 0.2).tolist() == pytest.approx([9.9, 4.4])
    assert asked_returns(np.array([4, 4]), prompts, 0.0).tolist() == [4, 4]


def test_returns_are_those_of_the_hidden_reward(document, episodes, policy):
    parameter_D = np.array(document["parameters"][0])
    environment = HiddenEnvironment(
        "cartpole_swingup", episodes.tasks, parameter_D, action_repeat=REPEAT, told=True
    )
    environment.reset(episode_seed(0, 0, 0))
    total = sum(environment.step(action).reward for action in policy.first_actions[:STEPS])
    assert document["conditions"][0]["returns"][0][0] == pytest.approx(total, abs=1e-9)


def test_each_chain_reads_prompts_of_its_own_task_or_a_foreign_one(document, episodes, policy):
    right, foreign, relabelled, shuffled, none = policy.starts[:5]
    assert none == []
    for prompts, key in ((right, "parameters"), (foreign, "foreign_parameters")):
        for prompt, parameter in zip(prompts, document[key], strict=True):
            source = episodes.under(np.array(parameter))
            known = [source.trajectory(episode) for episode in episodes.store.training]
            for trajectory in prompt:
                assert any(equal(trajectory, other) for other in known)
            totals = [trajectory.total_reward for trajectory in prompt]
            every = [trajectory.total_reward for trajectory in known]
            middle = (max(every) + min(every)) / 2
            assert totals == [min(every, key=lambda total: abs(total - middle)), max(every)]
    assert all((np.array(a) != b).all() for a, b in zip(*two_parameters(document), strict=True))
    for prompt, other, parameter in zip(relabelled, foreign, document["parameters"], strict=True):
        source = episodes.under(np.array(parameter))
        known = [source.trajectory(episode) for episode in episodes.store.training]
        assert all(any(equal(trajectory, one) for one in known) for trajectory in prompt)
        assert prompt[0].total_reward <= prompt[1].total_reward
        assert {t.actions.tobytes() for t in prompt} == {t.actions.tobytes() for t in other}
    for mixed, prompt in zip(shuffled, right, strict=True):
        for k in range(2):
            np.testing.assert_array_equal(mixed[k].observations, prompt[k].observations)
            np.testing.assert_array_equal(mixed[k].rewards, prompt[1 - k].rewards)


def two_parameters(document):
    return document["parameters"], document["foreign_parameters"]


def equal(one: Trajectory, other: Trajectory) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_rewards_are_shuffled_so_that_none_stays_in_its_place():
    trajectories = [
        Trajectory(np.full((3, 1), k), np.full((3, 1), k), np.full(3, k, np.float32), np.full(1, k))
        for k in range(5)
    ]
    orders = set()
    for chain in range(20):
        shuffled = shuffle_rewards(trajectories, seed=0, chain=chain)
        assert [t.actions[0, 0] for t in shuffled] == [0, 1, 2, 3, 4]
        order = tuple(int(t.rewards[0]) for t in shuffled)
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert all(place != giver for place, giver in enumerate(order))
        orders.add(order)
    assert len(orders) > 5
    unlike = [*trajectories, Trajectory(*(values[:2] for values in trajectories[0]))]
    with pytest.raises(InputError, match=r"one length only.*\[2, 3\]"):
        shuffle_rewards(unlike, seed=0, chain=0)


def test_exorls_own_tasks_come_first_and_the_foreign_one_is_far():
    tasks = hidden_tasks("maze_goal")
    parameters = evaluation_parameters(tasks)
    assert parameters.names[:4] == list(tasks.named)
    assert len(parameters.values_KD) == 20
    assert parameters.foreign_K is not None
    farthest_2 = parameters.values_KD[parameters.foreign_K[0]]  # of the goal at the top left
    assert farthest_2[0] > 0
    assert farthest_2[1] < 0
    named = evaluation_parameters(hidden_tasks("walker_stand,walker_walk"))
    assert np.array_equal(named.foreign_K, [1, 0])


def test_what_cannot_be_evaluated_is_refused(episodes, policy):
    with pytest.raises(InputError, match="--chains must be at least 1, got 0"):
        evaluate_in_context(policy, episodes, InContext(chains=0))
    many = OPTIONS._replace(prompt_trajectories=6)
    with pytest.raises(InputError, match="at most 5, the training episodes"):
        evaluate_in_context(policy, episodes, many)
