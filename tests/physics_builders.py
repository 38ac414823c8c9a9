"""Short real episodes with physics, for tests of what is computed of it."""

from pathlib import Path

import numpy as np

from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import ingest
from agentic_bpt.environments.hidden_tasks import HiddenEnvironment
from agentic_bpt.environments.tasks import Environment
from tests.builders import make_episode

TASK = "cartpole_swingup"


def roll_out(environment: Environment, *, steps: int, seed: int) -> tuple[np.ndarray, ...]:
    """Act at random; gives observations, actions, rewards and physics, each [steps + 1, ...].

    Row 0 is the reset. An environment with a hidden reward gives the rewards of that.
    """
    generator = np.random.default_rng(seed)
    rows = [(environment.reset(seed), np.zeros(environment.spec.action_width), 0.0)]
    physics = [environment.physics_state()]
    for _ in range(steps):
        action = generator.uniform(-1, 1, environment.spec.action_width).astype(np.float32)
        step = environment.step(action)
        rows.append((step.observation, action, step.reward))
        physics.append(environment.physics_state())
    observations, actions, rewards = (np.array(part) for part in zip(*rows, strict=True))
    return observations, actions, rewards, np.array(physics)


def write_rolled_out(folder: Path, environment: Environment, *, index: int, steps: int) -> None:
    """Write one episode of random actions; its seed is its index."""
    observations, actions, rewards, physics = roll_out(environment, steps=steps, seed=index)
    width = environment.spec.observation_width
    episode = make_episode(
        environment.spec.domain,
        steps=steps,
        observation=observations[:, :width].astype(np.float32),
        action=actions.astype(np.float32),
        reward=rewards.astype(np.float32),
        physics=physics,
        action_repeat=environment.action_repeat,
    )
    write_episode(folder / "buffer", index=index, episode=episode)


def physics_store(
    root: Path,
    *,
    environment: HiddenEnvironment | Environment | None = None,
    episodes: int = 5,
    steps: int = 20,
    **settings,
) -> Path:
    """Make a store that keeps the physics of random episodes, with the rewards they were paid."""
    environment = environment or Environment(TASK)
    folder = root / environment.spec.domain / "random"
    for index in range(episodes):
        write_rolled_out(folder, environment, index=index, steps=steps)
    stored = {"task": environment.spec.name, "relabel": "stored", "out": root / "stores"}
    return ingest(folder, **{**stored, "keep_physics": True, **settings}).path
