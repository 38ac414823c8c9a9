"""A multi-layer perceptron from one observation to one action: the network of BC-10%."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from agentic_bpt.models.tokens import Array, Scales


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """Shape of the network."""

    width: int = 256
    """Width of the hidden layers."""
    layers: int = 2
    """Number of hidden layers."""


class MLPPolicy(nn.Module):
    """Predicts an action in [-1, 1] from an observation alone."""

    config: MLPConfig
    action_width: int

    @nn.compact
    def __call__(self, observations_BO: Array, scales: Scales) -> jax.Array:
        """Give the actions [B, A] of observations [B, O] in units of the data set."""
        x = (observations_BO - scales.observation_mean_O) / scales.observation_std_O
        for _ in range(self.config.layers):
            x = nn.relu(nn.Dense(self.config.width)(x))
        return jnp.tanh(nn.Dense(self.action_width)(x))
