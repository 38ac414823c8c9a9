"""Collect episodes in ExoRL's format with an explorer, and go on where a collection stopped."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode, write_episode
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.replay import Experience
from agentic_bpt.exploration.seeding import Purpose, integer_seed
from agentic_bpt.exploration.state_file import CollectionState, load_state, save_state
from agentic_bpt.exploration.uniform import UniformExplorer

EXPLORERS = ("random", "rnd", "td3")
STATE_NAME = "explorer_state.npz"


class CollectResult(NamedTuple):
    """What a collection left behind."""

    folder: Path
    """`<domain>/<expl_agent>` under the given root; its `buffer` holds the episodes."""
    episodes: int
    """Complete episodes in the folder, earlier ones included."""
    steps_per_second: float
    """Control steps of the physics a second over this call; 0 if there was nothing to do."""
    interrupted: bool
    """Whether Ctrl-C ended it early."""


class Explorer(Protocol):
    """What the loop asks of an explorer."""

    def start_episode(self, index: int) -> None:
        """Prepare for an episode, by its place in the order of collection."""

    def act(self, observation_O: np.ndarray) -> np.ndarray:
        """Give the next action, float32 [A] in [-1, 1]."""
        ...

    def end_episode(self, experience: Experience) -> None:
        """Take in a complete episode."""

    def state(self) -> dict[str, np.ndarray]:
        """Give what must be saved to go on after this episode."""
        ...

    def restore(
        self, state: dict[str, np.ndarray], episodes: int, read: Callable[[int], Experience]
    ) -> None:
        """Go on from a saved state."""


def collect(
    task: str,
    *,
    expl_agent: str,
    episodes: int,
    out: Path,
    seed: int = 0,
    action_repeat: int = 1,
    config: Any = None,
    progress: bool = True,
) -> CollectResult:
    """Collect episodes until the folder holds as many as asked for.

    The episodes are a function of the task, the explorer, the seed, the action repeat and the
    settings: a collection that was killed and started again gives the same files as one that was
    not, and asking for more episodes later goes on where it ended.

    Args:
        task: full name of one of the ExoRL tasks.
        expl_agent: `random` (uniform actions), `rnd` (seeks novelty, sees no reward) or `td3`
            (learns the task).
        episodes: complete episodes wanted in all.
        out: root of the data; the episodes go to `<out>/<domain>/<expl_agent>/buffer`.
        seed: not negative.
        action_repeat: control steps for which each decision is held.
        config: `RndConfig` for rnd, `LearnerConfig` for td3; None for the defaults.
        progress: show a bar with the speed and the last return on stderr.

    Raises:
        InputError: an argument is wrong, or the folder holds something else.
    """
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, got {episodes}")
    if expl_agent not in EXPLORERS:
        raise InputError(f"expl_agent: expected one of {', '.join(EXPLORERS)}, got {expl_agent!r}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    environment = Environment(task, action_repeat=action_repeat)
    explorer, settings = _explorer(expl_agent, config, environment, seed)
    request = {"task": task, "expl_agent": expl_agent, "seed": seed}
    request |= {"action_repeat": action_repeat, "settings": settings}
    folder = Path(out) / environment.spec.domain / expl_agent
    done = _resume(folder, request, explorer, environment)
    began, first = time.perf_counter(), done
    interrupted = False
    with _bar(progress) as bar:
        job = bar.add_task(f"{task} {expl_agent}", total=episodes, completed=done, note="")
        try:
            while done < episodes:
                episode = run_episode(environment, explorer, seed=seed, index=done)
                # The episode before the state: killed in between, it is collected again, the same.
                write_episode(folder / "buffer", index=done, episode=episode)
                explorer.end_episode(_experience(episode))
                done += 1
                save_state(folder / STATE_NAME, CollectionState(request, done, explorer.state()))
                speed = _speed(environment, done - first, began)
                note = f"{speed:.0f} steps/s, return {episode.reward.sum():.1f}"
                bar.update(job, completed=done, note=note)
        except KeyboardInterrupt:
            interrupted = True
    return CollectResult(folder, done, _speed(environment, done - first, began), interrupted)


def run_episode(environment: Environment, explorer: Explorer, *, seed: int, index: int) -> Episode:
    """Run one episode with an explorer; rows as ExoRL has them, row 0 for the reset."""
    spec, steps = environment.spec, environment.episode_steps
    observation_TO = np.empty((steps + 1, spec.observation_width), np.float32)
    action_TA = np.zeros((steps + 1, spec.action_width), np.float32)
    reward_T = np.zeros(steps + 1, np.float32)
    physics_TP = np.empty((steps + 1, spec.physics_width), np.float64)
    explorer.start_episode(index)
    observation_TO[0] = environment.reset(integer_seed(seed, index, Purpose.RESET))
    physics_TP[0] = environment.physics_state()
    for t in range(1, steps + 1):
        action_TA[t] = explorer.act(observation_TO[t - 1])
        step = environment.step(action_TA[t])
        observation_TO[t], reward_T[t] = step.observation, step.reward
        physics_TP[t] = environment.physics_state()
    return Episode(
        observation=observation_TO,
        action=action_TA,
        reward=reward_T,
        discount=np.ones(steps + 1, np.float32),
        physics=physics_TP,
        action_repeat=environment.action_repeat,
        name=f"episode_{index:06d}_{steps}.npz",
    )


def _explorer(
    expl_agent: str, config: Any, environment: Environment, seed: int
) -> tuple[Explorer, dict[str, Any]]:
    """Make an explorer, and give its settings for the record."""
    spec, steps = environment.spec, environment.episode_steps
    if expl_agent == "random":
        if config is not None:
            raise InputError(f"expl_agent random has no settings, got {config}")
        return UniformExplorer(seed=seed, episode_steps=steps, action_width=spec.action_width), {}
    # Imported here, so that random episodes need no jax.
    from agentic_bpt.exploration.actor_critic import LearnerConfig
    from agentic_bpt.exploration.learner import LearningExplorer
    from agentic_bpt.exploration.rnd import Rnd, RndConfig
    from agentic_bpt.exploration.td3 import Td3

    agent_type, config_type = {"rnd": (Rnd, RndConfig), "td3": (Td3, LearnerConfig)}[expl_agent]
    config = config_type() if config is None else config
    if type(config) is not config_type:
        raise InputError(f"expl_agent {expl_agent} takes a {config_type.__name__}, got {config}")
    explorer = LearningExplorer(
        agent_type(config),
        seed=seed,
        episode_steps=steps,
        observation_width=spec.observation_width,
        action_width=spec.action_width,
    )
    return explorer, dataclasses.asdict(config)


def _resume(
    folder: Path, request: dict[str, Any], explorer: Explorer, environment: Environment
) -> int:
    """Bring an explorer to where the folder's collection stopped, and count its episodes."""
    buffer, path = folder / "buffer", folder / STATE_NAME
    if not path.exists():
        if buffer.exists() and any(buffer.glob("episode_*.npz")):
            raise InputError(
                f"{buffer}: holds episodes but {path.name} is not beside it, so they are not this "
                "collection's: give another output folder"
            )
        # Claimed before the first episode: killed during it, the folder is known again.
        buffer.mkdir(parents=True, exist_ok=True)
        save_state(path, CollectionState(request, 0, explorer.state()))
        return 0
    state = load_state(path)
    if state.request != request:
        unlike = _differences(state.request, request)
        raise InputError(
            f"{folder}: holds a collection with other settings: give another output folder or the "
            f"same settings, got {unlike}"
        )
    files = {file.index: file for file in episode_files(buffer)} if state.episodes else {}
    missing = [index for index in range(state.episodes) if index not in files]
    if missing:
        raise InputError(
            f"{buffer}: episode {missing[0]} of {state.episodes} is gone: put it back or give "
            "another output folder"
        )

    def read(index: int) -> Experience:
        return _experience(read_episode(files[index], domain=environment.spec.domain))

    explorer.restore(state.learned, state.episodes, read)
    return state.episodes


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Name each setting that differs, and both its values."""
    flat_old = {**old, **old.get("settings", {})}
    flat_new = {**new, **new.get("settings", {})}
    names = sorted((flat_old.keys() | flat_new.keys()) - {"settings"})
    unlike = [name for name in names if flat_old.get(name) != flat_new.get(name)]
    return ", ".join(
        f"{name} {flat_new.get(name)!r} where it has {flat_old.get(name)!r}" for name in unlike
    )


def _experience(episode: Episode) -> Experience:
    """Drop row 0, in which there is no action."""
    return Experience(episode.observation, episode.action[1:], episode.reward[1:])


def _speed(environment: Environment, episodes: int, began: float) -> float:
    """Give control steps a second since `began`."""
    steps = episodes * environment.episode_steps * environment.action_repeat
    return steps / (time.perf_counter() - began)


def _bar(show: bool) -> Progress:
    """Make the bar: episodes, time left, speed and last return."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        disable=not show,
    )
