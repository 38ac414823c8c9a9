"""The collector that learns the task: the actor-critic on the task's own reward."""

from dataclasses import dataclass

import numpy as np

from agentic_bpt.exploration.actor_critic import (
    ActorCritic,
    Batch,
    LearnerConfig,
    init_actor_critic,
    update_actor_critic,
)
from agentic_bpt.exploration.networks import Actor


@dataclass(frozen=True)
class Td3:
    """TD3 (arXiv 1802.09477) in the published collectors' form: no slow copy of the policy."""

    config: LearnerConfig
    """Its settings."""

    def init(
        self, draws: np.random.Generator, *, observation_width: int, action_width: int
    ) -> ActorCritic:
        """Draw a fresh state."""
        return init_actor_critic(
            draws, self.config, observation_width=observation_width, action_width=action_width
        )

    def update(self, state: ActorCritic, batch: Batch) -> ActorCritic:
        """Update once on one batch."""
        return update_actor_critic(state, batch, self.config)

    def actor(self, state: ActorCritic) -> Actor:
        """Give the policy."""
        return state.actor
