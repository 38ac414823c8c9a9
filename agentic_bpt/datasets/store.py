"""Ingesting: from ExoRL episodes to the store of a task, once."""

import contextlib
import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import read_episode
from agentic_bpt.datasets.listing import (
    EpisodeFile,
    episode_files,
    select_episodes,
    source_hash,
)
from agentic_bpt.datasets.reading import Labelled, read_in_order, require_rewards, worker_count
from agentic_bpt.datasets.relabel import check_mode
from agentic_bpt.datasets.store_layout import FORMAT_VERSION
from agentic_bpt.datasets.store_reader import Store
from agentic_bpt.datasets.store_writer import StoreWriter, discard_unfinished, part_of
from agentic_bpt.datasets.target import DISK_FULL, only_writer, require_space
from agentic_bpt.environments.tasks import TaskSpec, task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.made_by import command_line

__all__ = ["DEFAULT_FOLDER", "IngestResult", "Store", "ingest"]

DEFAULT_FOLDER = Path("data/stores")

_KEY_DIGITS = 12  # of 64, in the file name


class IngestResult(NamedTuple):
    """What `ingest` made or found."""

    path: Path
    """the store"""
    episodes: int
    """how many it holds"""
    skipped: list[str]
    """for each episode left out, what is wrong with it"""
    reused: bool
    """whether the store was there already"""


class _Options(NamedTuple):
    """What does not decide which rows are in a store, as `ingest` has it."""

    skip_bad: bool
    workers: int
    progress: Callable[[int, int], None] | None


def ingest(
    *sources: Path,
    task: str,
    relabel: str = "control",
    out: Path = DEFAULT_FOLDER,
    validation_fraction: float = 0.1,
    seed: int = 0,
    episodes: int | None = None,
    select: str = "stratified",
    keep_physics: bool = False,
    skip_bad: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IngestResult:
    """Make the store of a task from ExoRL episodes, or find it made already.

    Holds a few episodes a worker in memory. The store appears whole or not at all; a run that was
    stopped, even killed, goes on with the same arguments and ends with the same data.

    Args:
        sources: each a `<domain>/<expl_agent>`, its buffer folder, or the zip; their episodes are
            put one after another.
        task: full name of a task of that domain.
        relabel: where the rewards come from, one of `RELABEL_MODES`.
        out: folder of stores.
        validation_fraction: share of the episodes, drawn at random, kept out of training.
        seed: decides which episodes those are.
        episodes: take only so many of them; None takes all.
        select: which ones then, a rule of `select_episodes`: `stratified` or `first`.
        keep_physics: keep the physics states as well, so that rewards of hidden tasks can be had of
            the store (`Store.physics`).
        skip_bad: leave bad episodes out and list them, where otherwise the first ends it.
        workers: processes that read and relabel; None takes one for each core, or only this one
            where that is quicker. With others, a script needs `if __name__ == "__main__":`.
        progress: called with (episodes done, episodes in all) after each.

    Raises:
        InputError: a wrong argument, a bad episode, a full disk, or another ingest of this store
            that is not done.
    """
    spec = task_spec(task)
    check_mode(relabel)
    if not 0 <= validation_fraction < 1:
        raise InputError(f"validation_fraction must lie in [0, 1), got {validation_fraction}")
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    if not sources:
        raise InputError("name at least one folder or zip of episodes, got none")
    collected = [file for source in sources for file in episode_files(Path(source))]
    files = select_episodes(collected, episodes=episodes, rule=select)
    workers = worker_count(files, workers)
    settings: dict[str, Any] = {
        "task": task,
        "relabel": relabel,
        "source_hash": source_hash(files),
        "selection": "all" if len(files) == len(collected) else select,
        "collected_episodes": len(collected),
        "versions": {name: version(name) for name in ("dm_control", "mujoco")},
        "validation_fraction": float(validation_fraction),
        "seed": seed,
    }
    if keep_physics:  # said only where it is so: other stores have the name they always had
        settings["keep_physics"] = True
    path = _store_path(Path(out), files, settings)
    reused = True
    if not path.exists():
        with only_writer(path):
            # Another process may have finished it while this one looked at the files.
            reused = path.exists()
            if not reused:
                options = _Options(skip_bad, workers, progress)
                _build(path, files, spec, settings, options)
    with Store.open(path) as store:
        if store.skipped and not skip_bad:
            raise InputError(
                f"{path}: was made without {len(store.skipped)} bad episodes; --skip-bad accepts "
                f"it; the first: {store.skipped[0]}"
            )
        return IngestResult(path, len(store), store.skipped, reused)


def _store_path(out: Path, files: Sequence[EpisodeFile], settings: Mapping[str, Any]) -> Path:
    """Name a store after all that decides what is in it."""
    key = json.dumps({**settings, "format_version": FORMAT_VERSION}, sort_keys=True)
    digits = hashlib.sha256(key.encode()).hexdigest()[:_KEY_DIGITS]
    kept = "-physics" if "keep_physics" in settings else ""
    name = f"{settings['task']}-{_expl_agents(files)}-{settings['relabel']}{kept}-{digits}.h5"
    return out / name


def _build(
    path: Path,
    files: Sequence[EpisodeFile],
    spec: TaskSpec,
    settings: Mapping[str, Any],
    options: _Options,
) -> None:
    """Make a store, from where a run before was stopped; a run that fails leaves nothing."""
    mode, keep_physics = settings["relabel"], "keep_physics" in settings
    physics_shape = _physics_shape(files, spec) if keep_physics else None
    row_numbers = spec.observation_width + spec.action_width + 1 + math.prod(physics_shape or (0,))
    needed_bytes = 4 * sum((file.length + 1) * row_numbers for file in files)
    require_space(part_of(path), needed_bytes=needed_bytes)
    require_rewards(
        files, spec=spec, mode=mode, keep_physics=keep_physics, skip_bad=options.skip_bad
    )
    try:
        with StoreWriter(
            path,
            names=[f"{_expl_agent(file)}/{file.name}" for file in files],
            lengths=[file.length for file in files],
            observation_width=spec.observation_width,
            action_width=spec.action_width,
            physics_shape=physics_shape,
            skip_bad=options.skip_bad,
        ) as writer:
            left = files[writer.done :]
            with contextlib.closing(
                read_in_order(
                    left, spec=spec, mode=mode, keep_physics=keep_physics, workers=options.workers
                )
            ) as episodes:
                for file, episode in zip(left, episodes, strict=True):
                    _append(writer, file, episode, skip_bad=options.skip_bad)
                    if options.progress is not None:
                        options.progress(writer.done, len(files))
            _finish(writer, files, spec, settings)
    except KeyboardInterrupt:
        raise  # the next run goes on from here
    except BrokenProcessPool as error:
        raise InputError(
            f"{path}: a process that reads episodes was killed, perhaps for want of memory; the "
            "same command goes on from here, with fewer --workers if it happens again"
        ) from error
    except BaseException as error:
        discard_unfinished(path)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise InputError(
                f"{path.parent}: the disk is full; make room or choose another --out; nothing was "
                "left behind"
            ) from error
        raise


def _physics_shape(files: Sequence[EpisodeFile], spec: TaskSpec) -> tuple[int, int]:
    """Say how many states an action leads through, and how wide they are: as in the first episode.

    An episode with another action repeat is refused in its turn, a bad one as well.
    """
    for file in files:
        with contextlib.suppress(InputError):
            return read_episode(file, domain=spec.domain).action_repeat, spec.physics_width
    return 1, spec.physics_width


def _append(
    writer: StoreWriter, file: EpisodeFile, episode: Labelled | InputError, *, skip_bad: bool
) -> None:
    """Put the next episode into the store, or on the list of bad ones."""
    if isinstance(episode, Labelled) and writer.action_repeat not in (0, episode.action_repeat):
        episode = InputError(
            f"{file}: key 'action_repeat': must be {writer.action_repeat} as in the episodes "
            f"before it; ingest the others apart; got {episode.action_repeat}"
        )
    if isinstance(episode, Labelled):
        writer.append(
            episode.trajectory,
            action_repeat=episode.action_repeat,
            physics_TKP=episode.physics_TKP,
        )
    elif skip_bad:
        writer.skip(str(episode))
    else:
        raise InputError(f"{episode}; --skip-bad leaves such files out") from episode


def _finish(
    writer: StoreWriter,
    files: Sequence[EpisodeFile],
    spec: TaskSpec,
    settings: Mapping[str, Any],
) -> None:
    """Split the episodes and say where they are from."""
    if len(writer.skipped) == len(files):
        raise InputError(
            f"{files[0].source}: none of its {len(files)} episodes can be used; the first: "
            f"{writer.skipped[0]}"
        )
    training, validation = _split(
        len(files) - len(writer.skipped), settings["validation_fraction"], settings["seed"]
    )
    provenance = {
        **settings,
        "versions": json.dumps(settings["versions"]),
        "domain": spec.domain,
        "expl_agent": _expl_agents(files),
        "source": shlex.join(dict.fromkeys(str(file.source.absolute()) for file in files)),
        "command": command_line(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    writer.finish(training=training, validation=validation, attributes=provenance)


def _split(episodes: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the validation episodes: at least one if any are asked for, and never all."""
    count = round(fraction * episodes)
    if fraction > 0:
        count = max(count, 1)
    shuffled_E = np.random.default_rng(seed).permutation(episodes)
    count = min(count, episodes - 1)
    return np.sort(shuffled_E[count:]), np.sort(shuffled_E[:count])


def _expl_agents(files: Sequence[EpisodeFile]) -> str:
    """Name the collectors of a store, each once."""
    return "+".join(dict.fromkeys(_expl_agent(file) for file in files))


def _expl_agent(file: EpisodeFile) -> str:
    """Name the collector after its folder or zip, in letters that a file name can have."""
    source = Path(os.path.abspath(file.source))
    if file.entry is not None:
        name = source.stem
    else:
        name = source.parent.name if source.name == "buffer" else source.name
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name) or "unnamed"
