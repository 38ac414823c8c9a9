"""Acting step by step: B chains side by side, each with its running trajectories in context."""

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from agentic_bpt.blockwise.cache import init_cache, pretend_filled, require_room
from agentic_bpt.datasets.hindsight import is_complete, pack
from agentic_bpt.datasets.sampler import pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.errors import InputError
from agentic_bpt.models.tokens import Scales, Timesteps
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformer, timesteps_of

GROUP = 8
"""Chains that one call acts for, the last group padded. Matrix products of another number of rows
round differently, and physics makes much of little: with groups of one size a chain's returns do
not depend on how many others are evaluated beside it."""

PROMPT_CHUNK = 64
"""Timesteps of a prompt that are read in one call."""


class Policy(abc.ABC):
    """Acts in B chains at once.

    `start` once, `begin_trajectory` before each trajectory, `act` and `observe` at each step. What
    a policy has no use for does nothing.
    """

    def start(self, target_returns_B: np.ndarray, *, trajectories: int) -> None:  # noqa: B027
        """Begin B empty chains of at most `trajectories` rollouts, each with its target return."""

    def begin_trajectory(self) -> None:  # noqa: B027
        """Begin the next trajectory of every chain."""

    @abc.abstractmethod
    def act(self, observations_BO: np.ndarray) -> np.ndarray:
        """Choose actions [B, A] in [-1, 1] for observations [B, O]."""

    def observe(self, rewards_B: np.ndarray, *, last: bool) -> None:  # noqa: B027
        """Take in what the last actions earned; `last` ends the trajectory."""


class RandomPolicy(Policy):
    """Acts uniformly at random; chain b draws from its own generator, whatever the others do."""

    def __init__(self, action_width: int, *, seed: int):
        self._action_width, self._seed = action_width, seed

    def start(self, target_returns_B, *, trajectories):
        """Seed one generator a chain."""
        self._generators = [
            np.random.default_rng([self._seed, chain]) for chain in range(len(target_returns_B))
        ]

    def act(self, observations_BO):
        """Draw uniform actions."""
        return np.stack([g.uniform(-1, 1, self._action_width) for g in self._generators])


class ReactivePolicy(Policy):
    """Acts on the present observation alone: BC-10%, TD3.

    Args:
        choose: gives actions [B, A] in [-1, 1] for observations float32 [B, O]; is compiled here.
    """

    def __init__(self, choose: Callable[[np.ndarray], Any]):
        self._choose = jax.jit(choose)

    def act(self, observations_BO):
        """Apply the policy, group by group."""
        rows = -len(observations_BO) % GROUP
        padded = np.pad(np.asarray(observations_BO, np.float32), ((0, rows), (0, 0)))
        actions = [self._choose(group) for group in np.split(padded, len(padded) // GROUP)]
        return np.concatenate(actions)[: len(observations_BO)]


class ContextPolicy(Policy):
    """Acts with a trajectory transformer and a cache over the whole chain.

    Args:
        model: the transformer.
        params: its parameters.
        scales: units of the training split.
        episode_steps: timesteps of a trajectory at most.
        completion: what the completion token holds, as in training.
        context_trajectories: trajectories in the context; None: the whole chain; 1: each
            trajectory starts anew (DT).
        cache_dtype: float32 or bfloat16.
    """

    def __init__(
        self,
        model: TrajectoryTransformer,
        params,
        scales: Scales,
        *,
        episode_steps: int,
        completion: str,
        context_trajectories: int | None = None,
        cache_dtype: str = "float32",
    ):
        if context_trajectories not in (None, 1):
            raise ValueError(f"context_trajectories must be None or 1, got {context_trajectories}")
        self._model, self._scales = model, scales
        self._episode_steps, self._completion = episode_steps, completion
        self._context_trajectories, self._cache_dtype = context_trajectories, cache_dtype
        self._tokens = len(model.config.layout.split("-"))
        compiled = partial(jax.jit, donate_argnames="cache")
        self._act: Any = compiled(partial(model.apply, params, method="act", scales=scales))
        self._read: Any = compiled(partial(model.apply, params, method="read", scales=scales))

    def start(
        self,
        target_returns_B,
        *,
        trajectories,
        prompts: Sequence[Sequence[Trajectory]] = (),
    ):
        """Begin chains; each chain's `prompts`, of the data set, stand before its rollouts.

        They are read in the order given (in training: worst to best), are as many in each chain,
        and as long in all; no prompts: the chains begin empty.

        Raises:
            InputError: more trajectories than the model has numbers for, or prompts without room
                or of unlike lengths.
        """
        prompts = prompts or [()] * len(target_returns_B)
        sizes = {(len(each), sum(len(t.rewards) for t in each)) for each in prompts}
        if len(sizes) != 1:
            raise InputError(
                "the prompts of all chains must have as many trajectories and timesteps: choose "
                f"episodes of one length, got {sorted(sizes)}"
            )
        [(prompt_trajectories, prompt_steps)] = sizes
        chain_length = (self._context_trajectories or trajectories) + prompt_trajectories
        limit = self._model.sizes.trajectories
        if self._model.config.trajectory_index and chain_length > limit:
            raise InputError(
                f"this agent numbers its trajectories up to {limit}: ask for fewer, or train with "
                f"--trajectories {chain_length}; got {chain_length}"
            )
        if self._context_trajectories and prompt_trajectories:
            raise InputError("this agent has one trajectory in its context: no prompt is possible")
        self._targets_B = np.asarray(target_returns_B, np.float64)
        self._groups = -(-len(self._targets_B) // GROUP)
        self._rows = self._groups * GROUP
        steps = (self._context_trajectories or trajectories) * self._episode_steps
        self._capacity = (steps + prompt_steps + PROMPT_CHUNK + 1) * self._tokens
        self._trajectory = prompt_trajectories - 1
        self._has_before = False
        self._clear()
        self._last_known = self._nothing()
        if prompt_trajectories:
            self._read_prompts(prompts)

    def begin_trajectory(self):
        """Begin the next trajectory; with one in the context, forget the one before."""
        self._trajectory += 1
        self._timestep = 0
        self._received_B = np.zeros(len(self._targets_B))
        self._complete_B = np.zeros(len(self._targets_B), bool)
        if self._context_trajectories:
            self._trajectory = 0
            self._has_before = False
            self._clear()
            self._last_known = self._nothing()

    def act(self, observations_BO):
        """Choose the next actions."""
        if observations_BO.shape[1] != len(self._scales.observation_mean_O):
            raise InputError(
                f"this agent sees observations of width {len(self._scales.observation_mean_O)}, "
                f"got {observations_BO.shape[1]}: is this the task it was trained on?"
            )
        require_room(self._caches[0], filled=self._filled, new=self._tokens)
        before = self._last_known
        now = before._replace(
            observations_BTO=self._pad(observations_BO),
            returns_to_go_BT=self._pad(self._targets_B - self._received_B),
            timesteps_BT=self._whole(self._timestep),
            trajectories_BT=self._whole(self._trajectory),
            actions_before_BTA=before.actions_BTA,
            rewards_before_BT=before.rewards_BT,
            completions_before_BT=before.completions_BT,
        )
        has_before_B = np.full(GROUP, self._has_before)
        actions = []
        for group, cache in enumerate(self._caches):
            parts = (_rows_of(group, part) for part in (before, now))
            chosen, self._caches[group] = self._act(*parts, has_before_B, cache=cache)
            actions.append(chosen)
        self._filled += self._tokens
        self._now = now
        self._actions_BA = np.concatenate(actions)[: len(self._targets_B)]
        return self._actions_BA

    def observe(self, rewards_B, *, last):
        """Put action, reward and completion of this timestep into the running chain."""
        self._received_B = self._received_B + rewards_B
        self._complete_B |= is_complete(
            self._received_B, self._targets_B, np.asarray(last), completion=self._completion
        )
        self._last_known = self._now._replace(
            actions_BTA=self._pad(self._actions_BA),
            rewards_BT=self._pad(rewards_B),
            completions_BT=self._pad(self._complete_B),
        )
        self._has_before = True
        self._timestep += 1

    def fill(self, steps: int) -> None:
        """Pretend that the first timesteps of the chain have been acted (for benchmarks)."""
        self._filled = steps * self._tokens
        self._caches = [pretend_filled(cache, self._filled) for cache in self._caches]

    def compiled_programs(self) -> int:
        """Count the programs compiled for acting: one a shape, however long the chains."""
        return self._act._cache_size()

    def _clear(self) -> None:
        config = self._model.config.core
        self._caches = [
            init_cache(config, batch=GROUP, capacity=self._capacity, dtype=self._cache_dtype)
            for _ in range(self._groups)
        ]
        self._filled = 0

    def _pad(self, values: np.ndarray) -> np.ndarray:
        """Give [rows, T = 1, ...] float32."""
        values = np.asarray(values, np.float32)
        more = ((0, self._rows - len(values)),) + ((0, 0),) * (values.ndim - 1)
        return np.pad(values, more)[:, None]

    def _whole(self, number: int) -> np.ndarray:
        return np.full((self._rows, 1), number, np.int32)

    def _nothing(self) -> Timesteps:
        """Give the timestep before the first of a chain: zeros."""
        scalar = np.zeros((self._rows, 1), np.float32)
        number = np.zeros((self._rows, 1), np.int32)
        observation = np.zeros((self._rows, 1, len(self._scales.observation_mean_O)), np.float32)
        action = np.zeros((self._rows, 1, self._model.sizes.action_width), np.float32)
        return Timesteps(
            observation, scalar, number, number, action, scalar, scalar, action, scalar, scalar
        )

    def _read_prompts(self, prompts: Sequence[Sequence[Trajectory]]) -> None:
        """Write each chain's prompt into its cache, aimed at that chain's target return."""
        padding = self._rows - len(self._targets_B)
        targets = [*self._targets_B, *[0.0] * padding]
        chains = [
            pack(prompt, completion=self._completion, target_return=float(target))
            for prompt, target in zip([*prompts, *[prompts[0]] * padding], targets, strict=True)
        ]
        steps = len(chains[0].rewards_L)
        batch = pad_chains(chains, length=steps + -steps % PROMPT_CHUNK)
        timesteps = jax.tree.map(np.asarray, timesteps_of(batch))
        for first in range(0, batch.valid_BL.shape[1], PROMPT_CHUNK):
            cut = slice(first, first + PROMPT_CHUNK)
            part = jax.tree.map(lambda x: x[:, cut], (timesteps, batch.valid_BL))  # noqa: B023
            require_room(self._caches[0], filled=self._filled, new=PROMPT_CHUNK * self._tokens)
            for group, cache in enumerate(self._caches):
                self._caches[group] = self._read(*_rows_of(group, part), cache=cache)
            self._filled += PROMPT_CHUNK * self._tokens
        last = slice(steps - 1, steps)
        self._last_known = jax.tree.map(lambda x: x[:, last], timesteps)


def _rows_of(group: int, arrays):
    """Cut the rows of one group of chains out of a structure of arrays."""
    return jax.tree.map(lambda x: x[group * GROUP : (group + 1) * GROUP], arrays)


class SinglePolicy:
    """One chain in an environment of one's own: `reset`, then `act` and `observe` at every step."""

    def __init__(self, policy: Policy, *, target_return: float):
        self._policy, self._target_return = policy, target_return

    def reset(self, *, trajectories: int = 1, target_return: float | None = None) -> None:
        """Forget everything and begin a chain of at most `trajectories` episodes.

        `target_return` is by default the best return of the training split.
        """
        target = self._target_return if target_return is None else target_return
        self._policy.start(np.array([target]), trajectories=trajectories)
        self._policy.begin_trajectory()

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Choose an action [A] in [-1, 1] for an observation [O]."""
        return self._policy.act(np.asarray(observation, np.float32)[None])[0]

    def observe(self, reward: float, *, done: bool) -> None:
        """Take in the reward of the last action; `done` begins the next trajectory of the chain."""
        self._policy.observe(np.array([reward]), last=done)
        if done:
            self._policy.begin_trajectory()
