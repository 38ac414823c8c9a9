"""The explorers' small networks: parameters as pytrees, passes in JAX, acting in NumPy."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LAYER_NORM_EPSILON = 1e-5  # torch's default, which the published agents use


class Linear(NamedTuple):
    """One affine map."""

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array  # [outputs]


class Trunk(NamedTuple):
    """First layer of actor and critic: affine map, layer normalisation, tanh."""

    linear: Linear
    scale: jax.Array  # [hidden]
    shift: jax.Array  # [hidden]


class Actor(NamedTuple):
    """Policy from observations to actions in (-1, 1)."""

    trunk: Trunk
    hidden: Linear
    output: Linear


class Critic(NamedTuple):
    """Two action values, on one trunk or on a trunk each."""

    trunk: Trunk | tuple[Trunk, Trunk]
    hidden: tuple[Linear, Linear]
    output: tuple[Linear, Linear]


def init_linear(draws: np.random.Generator, inputs: int, outputs: int) -> Linear:
    """Draw an orthogonal weight and a zero bias, as the published agents do.

    In NumPy: compiling the decomposition would take longer than a whole episode.
    """
    normal = draws.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    orthogonal, triangular = np.linalg.qr(normal)
    orthogonal *= np.sign(np.diag(triangular))  # without it the draw would not be uniform
    weight = orthogonal if inputs >= outputs else orthogonal.T
    return Linear(jnp.asarray(weight, jnp.float32), jnp.asarray(np.zeros(outputs, np.float32)))


def init_trunk(draws: np.random.Generator, inputs: int, hidden: int) -> Trunk:
    """Draw a trunk whose layer normalisation starts as the identity."""
    scale, shift = np.ones(hidden, np.float32), np.zeros(hidden, np.float32)
    return Trunk(init_linear(draws, inputs, hidden), jnp.asarray(scale), jnp.asarray(shift))


def init_actor(
    draws: np.random.Generator, *, observation_width: int, action_width: int, hidden: int
) -> Actor:
    """Draw the parameters of a policy."""
    return Actor(
        trunk=init_trunk(draws, observation_width, hidden),
        hidden=init_linear(draws, hidden, hidden),
        output=init_linear(draws, hidden, action_width),
    )


def init_critic(
    draws: np.random.Generator,
    *,
    observation_width: int,
    action_width: int,
    hidden: int,
    own_trunks: bool = False,
) -> Critic:
    """Draw the parameters of a pair of action values; with `own_trunks` they share nothing."""
    inputs = observation_width + action_width
    trunk = init_trunk(draws, inputs, hidden)
    return Critic(
        trunk=(trunk, init_trunk(draws, inputs, hidden)) if own_trunks else trunk,
        hidden=(init_linear(draws, hidden, hidden), init_linear(draws, hidden, hidden)),
        output=(init_linear(draws, hidden, 1), init_linear(draws, hidden, 1)),
    )


def init_mlp(draws: np.random.Generator, widths: tuple[int, ...]) -> tuple[Linear, ...]:
    """Draw a multilayer perceptron through the given widths, inputs first."""
    return tuple(init_linear(draws, *pair) for pair in itertools.pairwise(widths))


def apply_linear(layer: Linear, x: jax.Array) -> jax.Array:
    """Map the last axis."""
    return x @ layer.weight + layer.bias


def apply_trunk(trunk: Trunk, x: jax.Array) -> jax.Array:
    """Apply the affine map, layer normalisation, and tanh."""
    hidden = apply_linear(trunk.linear, x)
    centred = hidden - hidden.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    normalised = centred * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
    return jnp.tanh(normalised * trunk.scale + trunk.shift)


def apply_actor(actor: Actor, observations_BO: jax.Array) -> jax.Array:
    """Give the mean actions [B, A]."""
    features = apply_trunk(actor.trunk, observations_BO)
    features = jax.nn.relu(apply_linear(actor.hidden, features))
    return jnp.tanh(apply_linear(actor.output, features))


def apply_critic(
    critic: Critic, observations_BO: jax.Array, actions_BA: jax.Array, *, heads: int = 2
) -> tuple[jax.Array, ...]:
    """Give the first `heads` action values, each [B]."""
    inputs = jnp.concatenate([observations_BO, actions_BA], axis=-1)
    if isinstance(critic.trunk, Trunk):
        features = (apply_trunk(critic.trunk, inputs),) * heads
    else:
        features = tuple(apply_trunk(trunk, inputs) for trunk in critic.trunk[:heads])
    values = []
    for x, hidden, output in zip(
        features, critic.hidden[:heads], critic.output[:heads], strict=True
    ):
        values.append(apply_linear(output, jax.nn.relu(apply_linear(hidden, x)))[..., 0])
    return tuple(values)


def apply_mlp(layers: tuple[Linear, ...], x: jax.Array) -> jax.Array:
    """Apply a multilayer perceptron with ReLU between its layers."""
    for layer in layers[:-1]:
        x = jax.nn.relu(apply_linear(layer, x))
    return apply_linear(layers[-1], x)


def act_numpy(actor: Actor, observation: np.ndarray) -> np.ndarray:
    """Give the mean actions for a few observations [..., O], on parameters held as NumPy arrays.

    One small product a layer costs some 20 microseconds; a call into a compiled function costs
    several times that. `apply_actor` is the oracle.
    """
    linear, scale, shift = actor.trunk
    hidden = observation @ linear.weight + linear.bias
    centred = hidden - hidden.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    normalised = centred / np.sqrt(variance + LAYER_NORM_EPSILON)
    hidden = np.tanh(normalised * scale + shift)
    hidden = np.maximum(hidden @ actor.hidden.weight + actor.hidden.bias, 0.0)
    return np.tanh(hidden @ actor.output.weight + actor.output.bias)
