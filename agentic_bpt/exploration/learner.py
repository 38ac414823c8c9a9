"""An explorer that learns while it acts: replay, updates in compiled calls, acting in NumPy."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from agentic_bpt.errors import InputError
from agentic_bpt.exploration.actor_critic import Batch, LearnerConfig
from agentic_bpt.exploration.networks import Actor, act_numpy
from agentic_bpt.exploration.replay import Experience, Replay
from agentic_bpt.exploration.seeding import Purpose, generator


class Agent(Protocol):
    """How an agent starts and how it is updated; frozen, so compiled calls are kept by it."""

    @property
    def config(self) -> LearnerConfig:
        """Give its settings."""
        ...

    def init(self, draws: np.random.Generator, *, observation_width: int, action_width: int) -> Any:
        """Draw a fresh state."""
        ...

    def update(self, state: Any, batch: Batch) -> Any:
        """Update once on one batch."""
        ...

    def actor(self, state: Any) -> Actor:
        """Give the policy."""
        ...


@functools.partial(jax.jit, static_argnames="agent")
def update_many(agent: Agent, state: Any, batches: Batch) -> Any:
    """Update once for each batch along the leading axis, in one compiled call."""

    def step(state: Any, batch: Batch) -> tuple[Any, None]:
        return agent.update(state, batch), None

    return jax.lax.scan(step, state, batches)[0]


class LearningExplorer:
    """Acts by an agent's policy with noise, and learns from the episodes that are complete.

    While a round of episodes runs, a compiled call learns beside the physics: the policy that
    acts is the one before the call under way. At the start of a round it is always the newest, so
    that going on after a stop is the same as never having stopped.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        seed: int,
        episode_steps: int,
        observation_width: int,
        action_width: int,
        environments: int,
    ) -> None:
        config = agent.config
        self._agent = agent
        self._seed = seed
        self._episode_steps = episode_steps
        self._action_width = action_width
        self._replay = Replay(
            episode_steps=episode_steps,
            observation_width=observation_width,
            action_width=action_width,
            capacity_steps=config.replay_steps,
            return_steps=config.return_steps,
            discount=config.discount,
        )
        self._state = agent.init(
            generator(seed, 0, Purpose.PARAMETERS),
            observation_width=observation_width,
            action_width=action_width,
        )
        self._actor: Any = None
        self._decisions = 0  # ever taken
        self._step = 0  # of the round's episodes
        self._uniform_NTA = self._noise_NTA = np.empty((environments, 0, action_width))

    def start_round(self, first: int) -> None:
        """Draw the noise of the episodes of a round and take the newest policy."""
        shape = (self._episode_steps, self._action_width)
        self._uniform_NTA = np.empty((len(self._noise_NTA), *shape))
        self._noise_NTA = np.empty_like(self._uniform_NTA)
        for place in range(len(self._noise_NTA)):
            draws = generator(self._seed, first + place, Purpose.ACTIONS)
            self._uniform_NTA[place] = draws.uniform(-1.0, 1.0, shape)
            self._noise_NTA[place] = self._agent.config.noise * draws.standard_normal(shape)
        self._step = 0
        self._decisions = first * self._episode_steps
        self._take_policy()

    def act(self, observations_NO: np.ndarray) -> np.ndarray:
        """Give the next actions [N, A], float32 in [-1, 1]; learn when it is time to."""
        config = self._agent.config
        every = config.updates_per_call * config.update_every_steps  # decisions
        after = self._decisions + len(observations_NO)
        # A call is due at each multiple of `every`; of many environments one step passes several.
        for due in range(-(-self._decisions // every) * every, after, every):
            self._learn(due)
        if self._decisions < config.uniform_steps:
            actions_NA = self._uniform_NTA[:, self._step]
        else:
            actions_NA = act_numpy(self._actor, observations_NO) + self._noise_NTA[:, self._step]
        self._decisions = after
        self._step += 1
        return np.clip(actions_NA, -1.0, 1.0).astype(np.float32)

    def end_round(self, experiences: Sequence[Experience]) -> None:
        """Take complete episodes into the replay."""
        for experience in experiences:
            self._replay.add(experience)

    def state(self) -> dict[str, np.ndarray]:
        """Give the learned state as named arrays; the replay is in the episode files."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(self._state))
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def restore(
        self, state: dict[str, np.ndarray], episodes: int, read: Callable[[int], Experience]
    ) -> None:
        """Go on after `episodes` episodes; `read` gives each that the replay still holds.

        Raises:
            InputError: the arrays are not those of this agent.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(self._state)
        expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        if {name: array.shape for name, array in state.items()} != {
            name: leaf.shape for name, leaf in expected.items()
        }:
            raise InputError(
                "the saved state has other arrays than this explorer: it is of another version, "
                f"collect into another folder, got {len(state)} arrays for {len(expected)}"
            )
        restored = [state[name].astype(leaf.dtype) for name, leaf in expected.items()]
        self._state = jax.device_put(jax.tree_util.tree_unflatten(structure, restored))
        first = max(0, episodes - self._replay.capacity)
        self._replay.skip(first)
        for index in range(first, episodes):
            self._replay.add(read(index))

    def _take_policy(self) -> None:
        """Copy the newest policy to NumPy; waits for the call under way."""
        self._actor = jax.device_get(self._agent.actor(self._state))

    def _learn(self, decisions: int) -> None:
        """Take the policy of the last call, and start the next call without waiting for it."""
        config = self._agent.config
        if len(self._replay) == 0 or decisions < config.uniform_steps:
            return
        self._take_policy()
        draws = generator(self._seed, decisions, Purpose.UPDATES)
        shape = (config.updates_per_call, config.batch_size)
        windows = self._replay.sample(draws, shape)
        noise = config.noise * draws.standard_normal((2, *shape, self._action_width), np.float32)
        noise = np.clip(noise, -config.noise_clip, config.noise_clip)
        batches = Batch(*map(jnp.asarray, (*windows, *noise)))
        self._state = update_many(self._agent, self._state, batches)
