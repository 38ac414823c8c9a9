"""Which tokens a timestep becomes, in which order, and which of them the action is read from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray
"""A NumPy array from the host becomes a device array inside a compiled call."""


class TokenLayout(NamedTuple):
    """The tokens of one timestep in order."""

    tokens: tuple[str, ...]
    """Kinds of token; "joint" holds everything known when the action is chosen."""
    action_from: int
    """Index of the token whose output predicts the action: the last one known before it."""

    @property
    def known_after(self) -> tuple[str, ...]:
        """Tokens that are known only once the action has been taken."""
        return self.tokens[self.action_from + 1 :]

    @property
    def known_before(self) -> tuple[str, ...]:
        """Tokens that are known when the action is chosen."""
        return self.tokens[: self.action_from + 1]


LAYOUTS = {
    "return-state-action-reward": TokenLayout(("return", "state", "action", "reward"), 1),
    "return-state-action-reward-completion": TokenLayout(
        ("return", "state", "action", "reward", "completion"), 1
    ),
    "joint": TokenLayout(("joint",), 0),
}


class Timesteps(NamedTuple):
    """T timesteps of B chains in units of the data set; `before` belongs to the action before.

    In a chain the action before a trajectory's first one is the last of the trajectory before it.
    """

    observations_BTO: Array
    returns_to_go_BT: Array
    timesteps_BT: Array
    trajectories_BT: Array
    actions_BTA: Array
    rewards_BT: Array
    completions_BT: Array
    actions_before_BTA: Array
    rewards_before_BT: Array
    completions_before_BT: Array


class Scales(NamedTuple):
    """What the training split says about units; kept in the checkpoint, used when acting."""

    observation_mean_O: Array
    observation_std_O: Array
    return_scale: Array
    """Largest |return|: returns-to-go are divided by it."""
    reward_scale: Array
    """Reward of a timestep that, kept up for an episode, makes `return_scale`."""


def token_features(kind: str, timesteps: Timesteps, scales: Scales) -> Array:
    """Give the numbers that a kind of token embeds, scaled to order 1: [B, T, features]."""
    state = (timesteps.observations_BTO - scales.observation_mean_O) / scales.observation_std_O
    returns = (timesteps.returns_to_go_BT / scales.return_scale)[..., None]
    if kind == "return":
        return returns
    if kind == "state":
        return state
    if kind == "action":
        return timesteps.actions_BTA
    if kind == "reward":
        return (timesteps.rewards_BT / scales.reward_scale)[..., None]
    if kind == "completion":
        return timesteps.completions_BT[..., None]
    if kind == "joint":
        before = (
            timesteps.actions_before_BTA,
            (timesteps.rewards_before_BT / scales.reward_scale)[..., None],
            timesteps.completions_before_BT[..., None],
        )
        return jnp.concatenate([returns, state, *before], axis=-1)
    raise ValueError(f"unknown kind of token, got {kind!r}")


def shift(x_BT: Array) -> jax.Array:
    """Give each timestep what stands one timestep earlier in the chain; zero for the first."""
    return jnp.concatenate([jnp.zeros_like(x_BT[:, :1]), x_BT[:, :-1]], axis=1)
