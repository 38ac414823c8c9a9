"""Tokens -> core -> actions. AT and DT are this one model: DT has one trajectory in its context."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh

from agentic_bpt.blockwise.cache import Cache, extend_stack
from agentic_bpt.blockwise.core import CoreConfig, apply_stack, init_stack
from agentic_bpt.blockwise.parallel import apply_stack_parallel
from agentic_bpt.datasets.sampler import ChainBatch
from agentic_bpt.models.tokens import LAYOUTS, Array, Scales, Timesteps, shift, token_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryTransformerConfig:
    """How trajectories become tokens, and the core that reads them."""

    core: CoreConfig = dataclasses.field(default_factory=CoreConfig)
    """The transformer core."""
    layout: str = "return-state-action-reward"
    """Tokens of a timestep: "return-state-action-reward" (the paper's four),
    "return-state-action-reward-completion" (five), or "joint": one token that holds all that is
    known when the action is chosen, 4 times shorter, the practical choice on small machines."""
    trajectory_index: bool = False
    """Whether tokens also carry the number of their trajectory in the chain. Without it a chain
    may be longer at test than in training."""

    def __post_init__(self):
        """Refuse unknown choices."""
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {tuple(LAYOUTS)}, got {self.layout!r}")


class Sizes(NamedTuple):
    """Widths that the task and the data set fix."""

    action_width: int
    episode_steps: int
    """Timesteps of the longest episode: rows of the timestep embedding."""
    trajectories: int
    """Most trajectories in a chain: rows of the trajectory embedding, where there is one."""


class TrajectoryTransformer(nn.Module):
    """Predicts the action of every timestep of packed chains, causally."""

    config: TrajectoryTransformerConfig
    sizes: Sizes
    mesh: Mesh | None = None
    """Devices that training is spread over; timesteps are then in the order of `shard_sequence`."""

    def setup(self):
        """Declare the parameters."""
        width = self.config.core.width
        self.layout = LAYOUTS[self.config.layout]
        self.embedders = {kind: nn.Dense(width, name=f"{kind}_in") for kind in self.layout.tokens}
        embed = partial(nn.Embed, embedding_init=nn.initializers.normal(0.02))
        self.timestep_embedding = embed(self.sizes.episode_steps, width)
        if self.config.trajectory_index:
            self.trajectory_embedding = embed(self.sizes.trajectories, width)
        self.stack = self.param("stack", init_stack, self.config.core)
        self.norm = nn.LayerNorm()
        self.action_out = nn.Dense(self.sizes.action_width)

    def __call__(
        self, timesteps: Timesteps, valid_BT: Array, scales: Scales, dropout_seed=None
    ) -> jax.Array:
        """Predict the action of each timestep from the tokens before it: [B, T, A] in [-1, 1]."""
        B, T = valid_BT.shape
        M = len(self.layout.tokens)
        embedded = [self._embed(kind, timesteps, scales) for kind in self.layout.tokens]
        tokens_BLD = jnp.stack(embedded, axis=2).reshape(B, T * M, -1)
        apply: Any = apply_stack
        if self.mesh is not None:
            apply = partial(apply_stack_parallel, mesh=self.mesh, in_shard_order=True)
        out_BLD = apply(
            self.stack,
            tokens_BLD,
            config=self.config.core,
            valid_BL=jnp.repeat(valid_BT, M, axis=1),
            dropout_seed=dropout_seed,
        )
        return self._actions(out_BLD.reshape(B, T, M, -1)[:, :, self.layout.action_from])

    def act(
        self,
        before: Timesteps,
        now: Timesteps,
        has_before_B: Array,
        scales: Scales,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """Choose the next action [B, A] of B running chains.

        Writes the tokens of the timestep before that became known with its reward, then those of
        this timestep: always as many as the layout has. `before` and `now` have T = 1;
        `has_before_B` is False at the start of a chain, where the first are padding.
        """
        embedded = [self._embed(kind, before, scales) for kind in self.layout.known_after]
        embedded += [self._embed(kind, now, scales) for kind in self.layout.known_before]
        after = len(self.layout.known_after)
        valid_BM = (jnp.arange(len(embedded)) >= after)[None] | has_before_B[:, None]
        tokens_BMD = jnp.concatenate(embedded, axis=1)
        out_BMD, cache = extend_stack(
            self.stack, tokens_BMD, cache, config=self.config.core, valid_BM=valid_BM
        )
        return self._actions(out_BMD[:, -1]), cache

    def read(self, timesteps: Timesteps, valid_BT: Array, scales: Scales, cache: Cache) -> Cache:
        """Write whole timesteps of dataset trajectories into the cache, as a prompt."""
        B, T = valid_BT.shape
        M = len(self.layout.tokens)
        embedded = [self._embed(kind, timesteps, scales) for kind in self.layout.tokens]
        tokens_BLD = jnp.stack(embedded, axis=2).reshape(B, T * M, -1)
        valid_BL = jnp.repeat(valid_BT, M, axis=1)
        core = self.config.core
        return extend_stack(self.stack, tokens_BLD, cache, config=core, valid_BM=valid_BL)[1]

    def _embed(self, kind: str, timesteps: Timesteps, scales: Scales) -> jax.Array:
        embedded = self.embedders[kind](token_features(kind, timesteps, scales))
        embedded += self.timestep_embedding(timesteps.timesteps_BT)
        if self.config.trajectory_index:
            embedded += self.trajectory_embedding(timesteps.trajectories_BT)
        return embedded

    def _actions(self, out: jax.Array) -> jax.Array:
        return jnp.tanh(self.action_out(self.norm(out)))


def timesteps_of(batch: ChainBatch) -> Timesteps:
    """Give the model's view of a batch of chains."""
    return Timesteps(
        observations_BTO=batch.observations_BLO,
        returns_to_go_BT=batch.returns_to_go_BL,
        timesteps_BT=batch.timesteps_BL,
        trajectories_BT=batch.trajectories_BL,
        actions_BTA=batch.actions_BLA,
        rewards_BT=batch.rewards_BL,
        completions_BT=batch.completions_BL,
        actions_before_BTA=shift(batch.actions_BLA),
        rewards_before_BT=shift(batch.rewards_BL),
        completions_before_BT=shift(batch.completions_BL),
    )
