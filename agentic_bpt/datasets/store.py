"""Ingesting: from ExoRL episodes to the store of a task, once."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import read_episode, trajectory_of
from agentic_bpt.datasets.listing import EpisodeFile, episode_files, source_hash
from agentic_bpt.datasets.relabel import check_mode
from agentic_bpt.datasets.relabel import relabel as relabelled
from agentic_bpt.datasets.store_reader import Store
from agentic_bpt.datasets.store_writer import FORMAT_VERSION, StoreWriter
from agentic_bpt.datasets.trajectory import Trajectory, check_trajectory
from agentic_bpt.environments.tasks import TaskSpec, task_spec
from agentic_bpt.errors import InputError

__all__ = ["DEFAULT_FOLDER", "IngestResult", "Store", "ingest"]

DEFAULT_FOLDER = Path("data/stores")

_KEY_DIGITS = 12  # of 64, in the file name
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def ingest(
    *sources: Path,
    task: str,
    relabel: str = "control",
    out: Path = DEFAULT_FOLDER,
    validation_fraction: float = 0.1,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> IngestResult:
    """Make the store of a task from ExoRL episodes, or find it made already.

    Holds one episode in memory at a time. The store appears whole or not at all.

    Args:
        sources: each a `<domain>/<expl_agent>`, its buffer folder, or the zip; their episodes are
            put one after another.
        task: full name of a task of that domain.
        relabel: where the rewards come from, one of `RELABEL_MODES`.
        out: folder of stores.
        validation_fraction: share of the episodes, drawn at random, kept out of training.
        seed: decides which episodes those are.
        skip_bad: leave bad episodes out and list them, where otherwise the first ends it.
        progress: called with (episodes done, episodes in all) after each.

    Raises:
        InputError: a wrong argument, a bad episode, a full disk, or another ingest of this store
            that is not done.
    """
    spec = task_spec(task)
    check_mode(relabel)
    if not 0 <= validation_fraction < 1:
        raise InputError(f"validation_fraction must lie in [0, 1), got {validation_fraction}")
    if not sources:
        raise InputError("name at least one folder or zip of episodes, got none")
    files = [file for source in sources for file in episode_files(Path(source))]
    settings: dict[str, Any] = {
        "task": task,
        "relabel": relabel,
        "source_hash": source_hash(files),
        "versions": {name: version(name) for name in ("dm_control", "mujoco")},
        "validation_fraction": float(validation_fraction),
        "seed": seed,
    }
    key = json.dumps({**settings, "format_version": FORMAT_VERSION}, sort_keys=True)
    digits = hashlib.sha256(key.encode()).hexdigest()[:_KEY_DIGITS]
    path = Path(out) / f"{task}-{_expl_agents(files)}-{relabel}-{digits}.h5"
    reused = True
    if not path.exists():
        with _only_writer(path):
            # Another process may have finished it while this one looked at the files.
            if not path.exists():
                reused = False
                _build(path, files, spec, settings, skip_bad=skip_bad, progress=progress)
    with Store.open(path) as store:
        if store.skipped and not skip_bad:
            raise InputError(
                f"{path}: was made without {len(store.skipped)} bad episodes; --skip-bad accepts "
                f"it; the first: {store.skipped[0]}"
            )
        return IngestResult(path, len(store), store.skipped, reused)


def _build(
    path: Path,
    files: Sequence[EpisodeFile],
    spec: TaskSpec,
    settings: Mapping[str, Any],
    *,
    skip_bad: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write a store beside its path, then give it its name."""
    skipped: list[str] = []
    action_repeat = 0
    beside = path.with_name(f"{path.name}.part")
    with _whole_or_nothing(beside):
        _require_space(beside, files, spec)
        with StoreWriter(
            beside,
            lengths=[file.length for file in files],
            observation_width=spec.observation_width,
            action_width=spec.action_width,
        ) as writer:
            for number, file in enumerate(files, start=1):
                try:
                    trajectory, action_repeat = _read(
                        file, spec, settings["relabel"], like=action_repeat
                    )
                    writer.append(trajectory, name=f"{_expl_agent(file)}/{file.name}")
                except InputError as error:
                    if not skip_bad:
                        raise InputError(f"{error}; --skip-bad leaves such files out") from error
                    skipped.append(str(error))
                if progress is not None:
                    progress(number, len(files))
            if len(skipped) == len(files):
                raise InputError(
                    f"{files[0].source}: none of its {len(files)} episodes can be used; the first: "
                    f"{skipped[0]}"
                )
            training, validation = _split(
                len(files) - len(skipped), settings["validation_fraction"], settings["seed"]
            )
            writer.finish(
                training=training,
                validation=validation,
                skipped=skipped,
                attributes=_provenance(files, spec, settings, action_repeat),
            )
        os.replace(beside, path)


def _provenance(
    files: Sequence[EpisodeFile], spec: TaskSpec, settings: Mapping[str, Any], action_repeat: int
) -> dict[str, Any]:
    """Note where a store is from, as HDF5 can hold it."""
    return {
        **settings,
        "versions": json.dumps(settings["versions"]),
        "action_repeat": action_repeat,
        "domain": spec.domain,
        "expl_agent": _expl_agents(files),
        "source": shlex.join(dict.fromkeys(str(file.source.absolute()) for file in files)),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _read(file: EpisodeFile, spec: TaskSpec, mode: str, *, like: int) -> tuple[Trajectory, int]:
    """Read an episode as a trajectory of the task, and its action repeat.

    Args:
        file: the episode.
        spec: the task.
        mode: where its rewards come from.
        like: the action repeat that it must have; 0 for any.
    """
    episode = read_episode(file, domain=spec.domain)
    if like not in (0, episode.action_repeat):
        raise InputError(
            f"{file}: key 'action_repeat': must be {like} as in the episodes before it; ingest the "
            f"others apart; got {episode.action_repeat}"
        )
    rewards_T = relabelled(episode, task=spec.name, mode=mode)
    trajectory = check_trajectory(
        trajectory_of(episode, rewards_T),
        where=str(file),
        observation_width=spec.observation_width,
        action_width=spec.action_width,
    )
    return trajectory, episode.action_repeat


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


@contextlib.contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Hold a lock that a killed process gives back by itself.

    Raises:
        InputError: another process holds it, or the folder cannot be written.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(lock, "ab")  # noqa: SIM115, closed below
    except OSError as error:
        raise InputError(
            f"{path.parent}: cannot be written; choose another --out; got {error.strerror}"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The writer before may have removed the file between open and flock, and a third may
            # have made a new one: then this lock keeps nobody out.
            if not os.path.samestat(os.fstat(handle.fileno()), os.stat(lock)):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            raise InputError(
                f"{path}: another ingest is making this store; wait until it is done, then run "
                "this again to use it"
            ) from error
        try:
            yield
        finally:
            lock.unlink()


@contextlib.contextmanager
def _whole_or_nothing(beside: Path) -> Iterator[None]:
    """Remove an unfinished file, and say a full disk in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise InputError(
            f"{beside.parent}: the disk is full; make room or choose another --out; nothing was "
            "left behind"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _require_space(beside: Path, files: Sequence[EpisodeFile], spec: TaskSpec) -> None:
    """Refuse at once what would fill the disk after an hour."""
    row_numbers = spec.observation_width + spec.action_width + 1
    needed = 4 * sum((file.length + 1) * row_numbers for file in files)
    free = shutil.disk_usage(beside.parent).free
    if needed > free:
        raise InputError(
            f"{beside.parent}: the store needs {needed / 1e6:,.1f} MB; make room or choose another "
            f"--out; got {free / 1e6:,.1f} MB free"
        )
