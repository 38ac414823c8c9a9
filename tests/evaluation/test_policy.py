"""Acting with a cache gives what the full pass predicts, whatever the layout and the neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.datasets.hindsight import chain_of_hindsight, pack
from agentic_bpt.datasets.sampler import pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.policy import ContextPolicy, SinglePolicy
from agentic_bpt.models.tokens import LAYOUTS, Scales
from agentic_bpt.models.trajectory_transformer import (
    Sizes,
    TrajectoryTransformer,
    TrajectoryTransformerConfig,
    timesteps_of,
)

WIDTH, ACTIONS, STEPS = 3, 2, 5
SCALES = Scales(
    jnp.array([0.5, 0.0, -1.0]), jnp.array([1.0, 2.0, 0.5]), jnp.float32(8), jnp.float32(2)
)


def build(layout: str, **options):
    config = TrajectoryTransformerConfig(
        core=CoreConfig(layers=2, width=16, heads=2, feedforward=32), layout=layout, **options
    )
    model = TrajectoryTransformer(config, Sizes(ACTIONS, STEPS, 4))
    chain = chain_of_hindsight([random_trajectory(0)])
    batch = pad_chains([chain], length=STEPS)
    params = model.init(jax.random.key(0), timesteps_of(batch), batch.valid_BL, SCALES)
    return model, jax.tree.map(
        lambda w: w + 0.1 * jax.random.normal(jax.random.key(1), w.shape), params
    )


def random_trajectory(seed: int) -> Trajectory:
    generator = np.random.default_rng(seed)
    draw = lambda *shape: generator.uniform(-1, 1, shape).astype(np.float32)  # noqa: E731
    return Trajectory(draw(STEPS, WIDTH), draw(STEPS, ACTIONS), draw(STEPS) + 1, draw(WIDTH))


def act_out(policy, observations_CNTO, rewards_CNT, targets_C, **start):
    """Let a policy act in recorded observations; gives its actions [C, N, T, A]."""
    C, N, T, _ = observations_CNTO.shape
    policy.start(targets_C, trajectories=N, **start)
    actions = np.zeros((C, N, T, ACTIONS), np.float32)
    for n in range(N):
        policy.begin_trajectory()
        for t in range(T):
            actions[:, n, t] = policy.act(observations_CNTO[:, n, t])
            policy.observe(rewards_CNT[:, n, t], last=t == T - 1)
    return actions


def recorded(C: int, N: int):
    generator = np.random.default_rng(2)
    observations = generator.normal(size=(C, N, STEPS, WIDTH)).astype(np.float32)
    rewards = generator.uniform(-2, 4, (C, N, STEPS)).astype(np.float32)
    return observations, rewards, np.linspace(3.0, 9.0, C)


def full_pass(model, params, chains):
    batch = pad_chains(chains, length=max(len(chain.rewards_L) for chain in chains))
    return np.asarray(model.apply(params, timesteps_of(batch), batch.valid_BL, SCALES))


def as_chain(observations_NTO, actions_NTA, rewards_NT, target, completion, prompt=()):
    """The chain that a policy has lived through, in order of time (not of return)."""
    acted = zip(observations_NTO, actions_NTA, rewards_NT, strict=True)
    lived = [*prompt, *(Trajectory(o, a, r, o[0]) for o, a, r in acted)]
    return pack(lived, completion=completion, target_return=float(target))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prompt_trajectories", [0, 2])
def test_cached_acting_equals_the_full_pass_across_trajectories(layout, prompt_trajectories):
    model, params = build(layout, trajectory_index=True)
    prompt = [random_trajectory(10 + k) for k in range(prompt_trajectories)]
    prompt.sort(key=lambda trajectory: -trajectory.total_reward)  # they are read as they are given
    observations, rewards, targets = recorded(C=2, N=2)
    policy = ContextPolicy(model, params, SCALES, episode_steps=STEPS, completion="reached")
    actions = act_out(policy, observations, rewards, targets, prompts=[prompt] * 2)
    chains = [
        as_chain(observations[c], actions[c], rewards[c], targets[c], "reached", prompt)
        for c in range(2)
    ]
    assert any(chain.completions_L.any() for chain in chains)  # the token's path is taken
    predicted = full_pass(model, params, chains)[:, prompt_trajectories * STEPS :]
    assert np.abs(predicted.reshape(actions.shape) - actions).max() < 1e-5
    assert np.ptp(actions, axis=2).max() > 0.01  # they depend on what is seen


def test_one_trajectory_in_context_forgets_the_ones_before():
    model, params = build("joint", trajectory_index=True)  # none but the first is in a context
    observations, rewards, targets = recorded(C=2, N=5)
    policy = ContextPolicy(
        model, params, SCALES, episode_steps=STEPS, completion="reached", context_trajectories=1
    )
    actions = act_out(policy, observations, rewards, targets)
    for n in range(5):
        cut = slice(n, n + 1)
        chains = [
            as_chain(observations[c, cut], actions[c, cut], rewards[c, cut], targets[c], "reached")
            for c in range(2)
        ]
        assert np.abs(full_pass(model, params, chains) - actions[:, n]).max() < 1e-5


def test_neighbours_change_nothing_and_one_program_serves_every_step():
    model, params = build("return-state-action-reward")
    observations, rewards, targets = recorded(C=11, N=2)
    make = lambda: ContextPolicy(model, params, SCALES, episode_steps=STEPS, completion="final")  # noqa: E731
    together = make()
    all_actions = act_out(together, observations, rewards, targets)
    alone = act_out(make(), observations[:1], rewards[:1], targets[:1])
    assert np.array_equal(all_actions[:1], alone)
    assert together.compiled_programs() == 1


def test_refusals():
    model, params = build("joint", trajectory_index=True)
    policy = ContextPolicy(model, params, SCALES, episode_steps=STEPS, completion="reached")
    with pytest.raises(InputError, match="numbers its trajectories up to 4"):
        policy.start(np.ones(1), trajectories=5)
    policy.start(np.ones(1), trajectories=1)
    policy.begin_trajectory()
    with pytest.raises(InputError, match="observations of width 3, got 7"):
        policy.act(np.zeros((1, 7)))


def test_single_policy_runs_on_through_episodes():
    model, params = build("joint")
    observations, rewards, _ = recorded(C=1, N=2)
    policy = ContextPolicy(model, params, SCALES, episode_steps=STEPS, completion="reached")
    expected = act_out(policy, observations, rewards, np.array([6.0]))
    single = SinglePolicy(policy, target_return=6.0)
    single.reset(trajectories=2)
    for n in range(2):
        for t in range(STEPS):
            action = single.act(observations[0, n, t])
            assert np.array_equal(action, expected[0, n, t])
            single.observe(float(rewards[0, n, t]), done=t == STEPS - 1)


def test_each_chain_reads_its_own_prompt():
    model, params = build("return-state-action-reward", trajectory_index=True)
    prompts = [[random_trajectory(20 + 2 * c + k) for k in range(2)] for c in range(3)]
    observations, rewards, targets = recorded(C=3, N=2)
    policy = ContextPolicy(model, params, SCALES, episode_steps=STEPS, completion="reached")
    actions = act_out(policy, observations, rewards, targets, prompts=prompts)
    chains = [
        as_chain(observations[c], actions[c], rewards[c], targets[c], "reached", prompts[c])
        for c in range(3)
    ]
    predicted = full_pass(model, params, chains)[:, 2 * STEPS :]
    assert np.abs(predicted.reshape(actions.shape) - actions).max() < 1e-5
    with pytest.raises(
        InputError, match=r"as many trajectories and timesteps.*\(1, 5\), \(2, 10\)"
    ):
        policy.start(targets, trajectories=2, prompts=[*prompts[:2], prompts[2][:1]])
