"""Collect episodes in ExoRL's format with an explorer, and go on where a collection stopped."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode, write_episode
from agentic_bpt.environments.tasks import TaskSpec
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.replay import Experience
from agentic_bpt.exploration.seeding import Purpose, integer_seed
from agentic_bpt.exploration.state_file import CollectionState, load_state, save_state
from agentic_bpt.exploration.uniform import UniformExplorer
from agentic_bpt.exploration.vector import VectorEnvironment
from agentic_bpt.whole_file import held

EXPLORERS = ("random", "rnd", "td3")
STATE_NAME = "explorer_state.npz"


class CollectResult(NamedTuple):
    """What a collection left behind."""

    folder: Path
    """`<domain>/<name>` under the given root; its `buffer` holds the episodes."""
    episodes: int
    """Complete episodes in the folder, earlier ones included."""
    steps_per_second: float
    """Control steps of the physics a second over this call; 0 if there was nothing to do."""
    interrupted: bool
    """Whether Ctrl-C ended it early."""


class Explorer(Protocol):
    """What the loop asks of an explorer."""

    def start_round(self, first: int) -> None:
        """Prepare for a round of episodes, by the first one's place in the order of collection."""

    def act(self, observations_NO: np.ndarray) -> np.ndarray:
        """Give the next action in each environment, float32 [N, A] in [-1, 1]."""
        ...

    def end_round(self, experiences: Sequence[Experience]) -> None:
        """Take in the complete episodes of a round."""

    def state(self) -> dict[str, np.ndarray]:
        """Give what must be saved to go on after this round."""
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
    name: str = "",
    seed: int = 0,
    action_repeat: int = 1,
    environments: int = 1,
    workers: int = 1,
    config: Any = None,
    progress: bool = True,
) -> CollectResult:
    """Collect episodes until the folder holds as many as asked for.

    The episodes are a function of the task, the explorer, the seed, the action repeat, the number
    of environments and the settings: a collection that was killed and started again gives the same
    files as one that was not, and asking for more episodes later goes on where it ended.

    Args:
        task: full name of one of the ExoRL tasks.
        expl_agent: `random` (uniform actions), `rnd` (seeks novelty, sees no reward) or `td3`
            (learns the task).
        episodes: complete episodes wanted in all.
        out: root of the data; the episodes go to `<out>/<domain>/<name>/buffer`.
        name: of the folder; empty: that of the explorer.
        seed: not negative.
        action_repeat: control steps for which each decision is held.
        environments: episodes that run side by side; an explorer learns from a round of them when
            all are over, so many of them learn later but act and step faster.
        workers: processes that step the environments; the episodes do not depend on it.
        config: `RndConfig` for rnd, `LearnerConfig` for td3; None for the defaults.
        progress: show a bar with the speed and the last return on stderr.

    Raises:
        InputError: an argument is wrong, or the folder holds something else.
    """
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, got {episodes}")
    if environments < 1 or episodes % environments:
        raise InputError(
            f"environments must divide the {episodes} episodes, which run in rounds of so many; "
            f"got {environments}"
        )
    if expl_agent not in EXPLORERS:
        raise InputError(f"expl_agent: expected one of {', '.join(EXPLORERS)}, got {expl_agent!r}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    if name != Path(name).name or name == "..":
        raise InputError(f"name must be that of one folder, such as td3_walk; got {name!r}")
    vector = VectorEnvironment(
        task, action_repeat=action_repeat, environments=environments, workers=workers
    )
    with vector:
        explorer, settings = _explorer(expl_agent, config, vector, seed)
        request = {"task": task, "expl_agent": expl_agent, "seed": seed}
        request |= {"action_repeat": action_repeat, "environments": environments}
        request |= {"settings": settings}
        folder = Path(out) / vector.spec.domain / (name or expl_agent)
        with held(folder, refusal="another collection is at work here: wait for it"):
            done = _resume(folder, request, explorer, vector.spec)
            return _collect(vector, explorer, folder, request, done, episodes, progress)


def _collect(
    vector: VectorEnvironment,
    explorer: Explorer,
    folder: Path,
    request: dict[str, Any],
    done: int,
    episodes: int,
    progress: bool,
) -> CollectResult:
    """Run rounds from `done` episodes on, until there are `episodes`."""
    began, first = time.perf_counter(), done
    interrupted = False
    with _bar(progress) as bar:
        title = f"{request['task']} {request['expl_agent']}"
        job = bar.add_task(title, total=episodes, completed=done, note="")
        try:
            while done < episodes:
                batch = run_round(vector, explorer, seed=request["seed"], first=done)
                # Episodes before the state: killed in between, they are collected again, the same.
                for index, episode in enumerate(batch, start=done):
                    write_episode(folder / "buffer", index=index, episode=episode)
                explorer.end_round([_experience(episode) for episode in batch])
                done += len(batch)
                save_state(folder / STATE_NAME, CollectionState(request, done, explorer.state()))
                speed = _speed(vector, done - first, began)
                note = f"{speed:.0f} steps/s, return {batch[-1].reward.sum():.1f}"
                bar.update(job, completed=done, note=note)
        except KeyboardInterrupt:
            interrupted = True
    return CollectResult(folder, done, _speed(vector, done - first, began), interrupted)


def run_round(
    vector: VectorEnvironment, explorer: Explorer, *, seed: int, first: int
) -> list[Episode]:
    """Run one episode in each environment; rows as ExoRL has them, row 0 for the reset."""
    spec, steps = vector.spec, vector.episode_steps
    indices = range(first, first + vector.environments)
    rows = (vector.environments, steps + 1)
    observation_NTO = np.empty((*rows, spec.observation_width), np.float32)
    action_NTA = np.zeros((*rows, spec.action_width), np.float32)
    reward_NT = np.zeros(rows, np.float32)
    physics_NTP = np.empty((*rows, spec.physics_width), np.float64)
    explorer.start_round(first)
    step = vector.reset([integer_seed(seed, index, Purpose.RESET) for index in indices])
    observation_NTO[:, 0], physics_NTP[:, 0] = step.observations, step.physics
    for t in range(1, steps + 1):
        action_NTA[:, t] = explorer.act(step.observations)
        step = vector.step(action_NTA[:, t])
        observation_NTO[:, t], reward_NT[:, t] = step.observations, step.rewards
        physics_NTP[:, t] = step.physics
    return [
        Episode(
            observation=observation_NTO[place],
            action=action_NTA[place],
            reward=reward_NT[place],
            discount=np.ones(steps + 1, np.float32),
            physics=physics_NTP[place],
            action_repeat=vector.action_repeat,
            name=f"episode_{index:06d}_{steps}.npz",
        )
        for place, index in enumerate(indices)
    ]


def _explorer(
    expl_agent: str, config: Any, vector: VectorEnvironment, seed: int
) -> tuple[Explorer, dict[str, Any]]:
    """Make an explorer, and give its settings for the record."""
    sizes = {
        "episode_steps": vector.episode_steps,
        "action_width": vector.spec.action_width,
        "environments": vector.environments,
    }
    if expl_agent == "random":
        if config is not None:
            raise InputError(f"expl_agent random has no settings, got {config}")
        return UniformExplorer(seed=seed, **sizes), {}
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
        observation_width=vector.spec.observation_width,
        **sizes,
    )
    return explorer, dataclasses.asdict(config)


def _resume(folder: Path, request: dict[str, Any], explorer: Explorer, spec: TaskSpec) -> int:
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
        return _experience(read_episode(files[index], domain=spec.domain))

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


def _speed(vector: VectorEnvironment, episodes: int, began: float) -> float:
    """Give control steps a second since `began`."""
    steps = episodes * vector.episode_steps * vector.action_repeat
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
