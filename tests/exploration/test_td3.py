"""TD3 finds the action that the task rewards."""

import jax.numpy as jnp
import numpy as np

from agentic_bpt.exploration.actor_critic import Batch
from agentic_bpt.exploration.learner import update_many
from agentic_bpt.exploration.networks import act_numpy
from agentic_bpt.exploration.td3 import Td3


def test_policy_goes_to_the_rewarded_action(small_td3):
    agent = Td3(small_td3)
    generator = np.random.default_rng(0)
    shape = (small_td3.updates_per_call, small_td3.batch_size)
    state = agent.init(np.random.default_rng(1), observation_width=5, action_width=1)
    for _ in range(200):
        observations = generator.normal(size=(*shape, 5)).astype(np.float32)
        actions = generator.uniform(-1, 1, (*shape, 1)).astype(np.float32)
        wanted = np.where(observations[..., :1] > 0, 0.6, -0.4)
        rewards = -np.square(actions - wanted)[..., 0].astype(np.float32)
        noise = np.zeros((*shape, 1), np.float32)
        parts = (observations, actions, rewards, observations, noise, noise)
        state = update_many(agent, state, Batch(*map(jnp.asarray, parts)))
    policy = agent.actor(state)
    for side, wanted in ((1.5, 0.6), (-1.5, -0.4)):
        observation = np.array([side, 0.0, 0.0, 0.0, 0.0], np.float32)
        np.testing.assert_allclose(act_numpy(policy, observation), wanted, atol=0.2)
