"""Examines a data set before it is used: every file, its returns, and what is there twice."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import Episode, EpisodeFile, episode_files, read_episode
from agentic_bpt.datasets.listing import spread_episodes
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.datasets.store import Store
from agentic_bpt.datasets.trajectory import require_action_range, require_finite
from agentic_bpt.environments.tasks import DOMAINS, tasks_of_domain
from agentic_bpt.errors import InputError

RELABELLED_EPISODES = 300
"""Returns of each task are computed for at most so many episodes, spread over the collection."""
HISTOGRAM_BINS = 24
SAME_RETURN = 1e-6  # times max(1, size): returns that differ by less do so by rounding
DOMAIN_VOTES = 9  # episodes that are asked for the domain: a few strays do not decide it
_BARS = " ▁▂▃▄▅▆▇█"

STORED = "stored reward"


class DataReport(NamedTuple):
    """What was found."""

    path: Path
    domain: str
    episodes: int
    """Files, or episodes of a store, that were looked at."""
    steps: int
    """Of the good ones."""
    bad: list[str]
    """For each bad one its name, what is wrong, and what to do; each once, in order."""
    duplicates: list[str]
    """Episodes equal to an earlier one: "<name> equals <name>"."""
    returns: dict[str, np.ndarray]
    """Stored reward, or task -> float64 [E] returns of the good episodes that were looked at."""


def check_data(path: Path, *, progress: Callable[[int, int], None] | None = None) -> DataReport:
    """Check every episode of an ExoRL folder, its buffer, a zip, or a store; one in memory.

    Checked are the checksums, keys, shapes, types, finite numbers, actions in [-1, 1], the length
    against the name, and that row 0 is a reset: it holds no action and no reward.

    Raises:
        InputError: there is nothing to check, or a store that is not whole.
    """
    path = Path(path)
    if path.suffix in (".h5", ".hdf5"):
        return _check_store(path, progress)
    files = episode_files(path)
    domain = _domain_of(files)
    sampled = {id(file) for file in spread_episodes(files, at_most=RELABELLED_EPISODES)}
    bad, seen, duplicates, steps = [], {}, [], 0
    returns: dict[str, list[float]] = {}
    for number, file in enumerate(files, start=1):
        try:
            episode = read_episode(file, domain=domain)
            _require_reset_row(episode, file)
        except InputError as error:
            bad.append(str(error))
        else:
            steps += file.length
            content = _content(episode.observation, episode.action, episode.reward)
            twin = seen.setdefault(content, file.name)
            if twin != file.name:
                duplicates.append(f"{file.name} equals {twin}")
            for name, value in _returns(episode, domain, relabelled=id(file) in sampled):
                returns.setdefault(name, []).append(value)
        if progress is not None:
            progress(number, len(files))
    kept = {name: np.array(values) for name, values in returns.items()}
    return DataReport(path, domain, len(files), steps, bad, duplicates, kept)


def histogram(values: np.ndarray) -> str:
    """Draw the distribution of returns from the smallest to the largest in one line.

    Returns that are all the same stand in the middle.
    """
    if np.ptp(values) <= SAME_RETURN * max(1, np.abs(values).max()):
        values = np.zeros(len(values))  # NumPy refuses to cut so small a range into bins
    counts = np.histogram(values, bins=HISTOGRAM_BINS)[0]
    # A bin that holds anything shows at least the lowest bar.
    heights = np.ceil(counts / counts.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[height] for height in heights)


def _domain_of(files: Sequence[EpisodeFile]) -> str:
    """Find the domain whose widths most of a few episodes have."""
    votes = Counter(
        domain for file in spread_episodes(files, at_most=DOMAIN_VOTES) for domain in _fits(file)
    )
    if votes:
        return votes.most_common(1)[0][0]
    # If none can be read in any, the errors of the domain that the path names say most.
    words = files[0].source.absolute().parts
    named = next((domain for domain in DOMAINS if domain in words), DOMAINS[0])
    return next((domain for file in files for domain in _fits(file)), named)


def _fits(file: EpisodeFile) -> Iterable[str]:
    """Name the domains in which a file can be read."""
    for domain in DOMAINS:
        with contextlib.suppress(InputError):
            read_episode(file, domain=domain)
            yield domain


def _require_reset_row(episode: Episode, file: EpisodeFile) -> None:
    for key, row in (("action", episode.action[0]), ("reward", episode.reward[0])):
        if np.any(row != 0):
            raise InputError(
                f"{file}: key {key!r}: row 0 is the reset and must be 0; the rows are shifted or "
                f"the file is not of ExoRL; write row t + 1 for step t; got {np.ravel(row)[:3]}"
            )


def _content(*arrays: np.ndarray) -> bytes:
    """Hash what makes two episodes the same."""
    return hashlib.sha256(b"".join(values.tobytes() for values in arrays)).digest()


def _returns(episode: Episode, domain: str, *, relabelled: bool) -> Iterable[tuple[str, float]]:
    if episode.reward.ndim == 1:
        yield STORED, float(episode.reward[1:].sum(dtype=np.float64))
    if not relabelled or episode.physics is None or episode.action_repeat != 1:
        return
    for task in tasks_of_domain(domain):
        yield task, float(relabel(episode, task=task, mode="control").sum())


def _check_store(path: Path, progress: Callable[[int, int], None] | None) -> DataReport:
    bad, seen, duplicates = [], {}, []
    with Store.open(path) as store:
        store.verify()
        for number in range(len(store)):
            # The number too: episodes of two sources can have the same name.
            trajectory, name = store.trajectory(number), f"episode {number} ({store.names[number]})"
            where = f"{path}: {name}"
            try:
                for key in ("observations", "actions", "rewards", "final_observation"):
                    require_finite(getattr(trajectory, key), where=f"{where}: {key}")
                require_action_range(trajectory.actions, where=f"{where}: actions")
            except InputError as error:
                bad.append(str(error))
            content = _content(trajectory.observations, trajectory.actions, trajectory.rewards)
            twin = seen.setdefault(content, name)
            if twin != name:
                duplicates.append(f"{name} equals {twin}")
            if progress is not None:
                progress(number + 1, len(store))
        domain, steps = str(store.attributes["domain"]), int(store.lengths.sum())
        returns = {store.task: store.returns}
        return DataReport(path, domain, len(store), steps, bad, duplicates, returns)
