"""The collector that seeks the new: random network distillation as the actor-critic's reward."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentic_bpt.errors import InputError
from agentic_bpt.exploration.actor_critic import (
    ActorCritic,
    Batch,
    LearnerConfig,
    init_actor_critic,
    update_actor_critic,
)
from agentic_bpt.exploration.networks import Actor, Linear, apply_mlp, init_mlp

BATCH_NORM_EPSILON = 1e-5  # torch's default, which the published agent uses
OBSERVATION_CLIP = 5.0  # standard deviations
FIRST_COUNT = 1e-4  # weight of the moments' first guess, in observations


@dataclass(frozen=True, kw_only=True)
class RndConfig(LearnerConfig):
    """Settings of random network distillation."""

    representation_width: int = 128
    """Outputs of the fixed and of the predicting network (published: 512)."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        if self.representation_width <= 0:
            raise InputError(
                f"representation_width must be positive, got {self.representation_width}"
            )


class Moments(NamedTuple):
    """Running mean and variance of a scalar."""

    mean: jax.Array  # float32 []
    variance: jax.Array  # float32 []
    count: jax.Array  # float32 []


class RndState(NamedTuple):
    """All that the explorer carries from update to update."""

    actor_critic: ActorCritic
    predictor: tuple[Linear, ...]
    fixed: tuple[Linear, ...]  # the random network, never trained
    predictor_optimizer: optax.OptState
    errors: Moments  # of the prediction error


def update_moments(moments: Moments, values_B: jax.Array) -> Moments:
    """Take a batch into the running mean and variance (Chan et al., parallel form)."""
    size = values_B.shape[0]
    total = moments.count + size
    difference = values_B.mean() - moments.mean
    spread = moments.variance * moments.count + values_B.var() * size
    spread += jnp.square(difference) * moments.count * size / total
    return Moments(moments.mean + difference * size / total, spread / total, total)


def prediction_errors(
    predictor: tuple[Linear, ...], fixed: tuple[Linear, ...], observations_BO: jax.Array
) -> jax.Array:
    """Give how badly the predictor knows each observation [B] (arXiv 1810.12894).

    Observations are normalised by the batch, as in the published collectors.
    """
    mean_O = observations_BO.mean(0)
    variance_O = observations_BO.var(0)
    normal_BO = (observations_BO - mean_O) * jax.lax.rsqrt(variance_O + BATCH_NORM_EPSILON)
    normal_BO = jnp.clip(normal_BO, -OBSERVATION_CLIP, OBSERVATION_CLIP)
    difference = apply_mlp(predictor, normal_BO) - apply_mlp(fixed, normal_BO)
    return jnp.square(difference).mean(-1)


@dataclass(frozen=True)
class Rnd:
    """Learns to go where a predictor of a fixed random network is still wrong; sees no reward."""

    config: RndConfig
    """Its settings."""

    def init(
        self, draws: np.random.Generator, *, observation_width: int, action_width: int
    ) -> RndState:
        """Draw a fresh state."""
        hidden = self.config.width
        widths = (observation_width, hidden, hidden, self.config.representation_width)
        predictor = init_mlp(draws, widths)
        return RndState(
            actor_critic=init_actor_critic(
                draws,
                self.config,
                observation_width=observation_width,
                action_width=action_width,
            ),
            predictor=predictor,
            fixed=init_mlp(draws, widths),
            predictor_optimizer=optax.adam(self.config.learning_rate).init(predictor),
            errors=Moments(*map(jnp.float32, (0.0, 1.0, FIRST_COUNT))),
        )

    def update(self, state: RndState, batch: Batch) -> RndState:
        """Update the predictor, then the actor-critic on the error it had before.

        A window is as new as where it ends. The published collectors take where it starts, which
        its action has no part in: the critic then learns of the action one bootstrap later.
        """

        def loss(predictor: tuple[Linear, ...]) -> tuple[jax.Array, jax.Array]:
            errors_B = prediction_errors(predictor, state.fixed, batch.next_observations)
            return errors_B.mean(), errors_B

        gradient, errors_B = jax.grad(loss, has_aux=True)(state.predictor)
        adam = optax.adam(self.config.learning_rate)
        change, optimizer = adam.update(gradient, state.predictor_optimizer)
        errors = update_moments(state.errors, errors_B)
        novelty_B = errors_B / (jnp.sqrt(errors.variance) + 1e-8)
        return state._replace(
            actor_critic=update_actor_critic(
                state.actor_critic, batch._replace(rewards=novelty_B), self.config
            ),
            predictor=optax.apply_updates(state.predictor, change),
            predictor_optimizer=optimizer,
            errors=errors,
        )

    def actor(self, state: RndState) -> Actor:
        """Give the policy."""
        return state.actor_critic.actor
