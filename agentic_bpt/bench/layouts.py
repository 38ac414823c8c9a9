"""Random whole episodes from the layouts that a store could have, beside plain numpy.memmap."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from agentic_bpt.datasets.store import Store
from agentic_bpt.datasets.store_layout import ROW_ARRAYS

CHUNK_ROWS = 1000
"""Rows of a chunk: about an episode, the best case for reading whole ones."""
CHUNKED = {"chunked": None, "chunked, lzf": "lzf", "chunked, gzip": "gzip"}
"""Layouts read through h5py, and how each is packed."""
ROUNDS = 3
"""Every contender reads all episodes so often, in turns, and its fastest round counts."""

Read = Callable[[int], Any]
"""From the number of an episode to its rows in new arrays."""


class Contender(NamedTuple):
    """One layout."""

    path: Path
    """the file"""
    opened: Callable[[], contextlib.AbstractContextManager[Read]]
    """open it to read from"""


def reading_speeds(store_path: Path, folder: Path, *, episodes: int) -> dict[str, dict[str, float]]:
    """Measure MB/s of the first episodes of a store in random order, in one process.

    Args:
        store_path: made by ingest.
        folder: where the other layouts of the same rows are written.
        episodes: how many.

    Returns:
        For each layout `warm`, from the system's cache, and `cold`, once the system has been told
        to forget the file.
    """
    order = np.random.default_rng(0).permutation(episodes).tolist()
    with Store.open(store_path) as store:
        starts = starts_of(store, episodes)
    read_bytes = sum(4 * int(starts[name][-1]) * width for name, width in _widths(store_path))
    contenders: dict[str, Contender] = {
        "numpy.memmap": Contender(store_path, partial(memory_map, store_path, starts)),
        "contiguous (Store)": Contender(store_path, partial(store_reader, store_path)),
    }
    for number, (name, packing) in enumerate(CHUNKED.items()):
        path = folder / f"{number}.h5"
        write_chunked(path, store_path, starts, packing)
        contenders[name] = Contender(path, partial(chunked_reader, path, starts))
    seconds = _seconds_of(contenders, order)
    return {
        name: {state: read_bytes / took / 1e6 for state, took in states.items()}
        for name, states in seconds.items()
    }


def starts_of(store: Store, episodes: int) -> dict[str, np.ndarray]:
    """Give the row of each array at which each of the first episodes begins, and the end."""
    actions_E = np.concatenate([[0], np.cumsum(store.lengths[:episodes])])
    return {
        "observations": actions_E + np.arange(len(actions_E)),
        "actions": actions_E,
        "rewards": actions_E,
    }


@contextlib.contextmanager
def memory_map(path: Path, starts: Mapping[str, np.ndarray]) -> Iterator[Read]:
    """Read episodes of a store as copies of slices of plain memory maps."""
    with h5py.File(path) as file:
        rows = {name: _rows(file, name) for name in ROW_ARRAYS}
        maps = {
            name: np.memmap(path, "<f4", "r", dataset.id.get_offset(), dataset.shape)
            for name, dataset in rows.items()
        }
    yield lambda episode: [np.array(part) for part in _parts(maps, starts, episode)]


@contextlib.contextmanager
def store_reader(path: Path) -> Iterator[Read]:
    """Read episodes as training does."""
    with Store.open(path) as store:
        yield store.trajectory


def write_chunked(
    path: Path, store_path: Path, starts: Mapping[str, np.ndarray], packing: str | None
) -> None:
    """Write rows of a store in chunks."""
    with h5py.File(store_path) as source, h5py.File(path, "w") as file:
        for name in ROW_ARRAYS:
            values = _rows(source, name)[: starts[name][-1]]
            chunk = (min(CHUNK_ROWS, len(values)), *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunk, compression=packing)


@contextlib.contextmanager
def chunked_reader(path: Path, starts: Mapping[str, np.ndarray]) -> Iterator[Read]:
    """Read episodes through h5py."""
    with h5py.File(path) as file:
        rows = {name: _rows(file, name) for name in ROW_ARRAYS}
        yield lambda episode: _parts(rows, starts, episode)


def _parts(
    arrays: Mapping[str, Any], starts: Mapping[str, np.ndarray], episode: int
) -> list[np.ndarray]:
    return [arrays[name][starts[name][episode] : starts[name][episode + 1]] for name in ROW_ARRAYS]


def _seconds_of(
    contenders: Mapping[str, Contender], order: Sequence[int]
) -> dict[str, dict[str, float]]:
    best = {name: {"cold": float("inf"), "warm": float("inf")} for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            _forget(contender.path)
            for state, seconds in _one_round(contender, order).items():
                best[name][state] = min(best[name][state], seconds)
    return best


def _one_round(contender: Contender, order: Sequence[int]) -> dict[str, float]:
    """Read all twice; nothing of the file stays mapped."""
    seconds = {}
    with contender.opened() as read:
        for state in ("cold", "warm"):  # the first time warms the cache
            began = time.perf_counter()
            for episode in order:
                read(episode)
            seconds[state] = time.perf_counter() - began
    return seconds


def _forget(path: Path) -> None:
    """Ask the system to drop a file from its cache; what is mapped or unwritten would stay."""
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _widths(path: Path) -> list[tuple[str, int]]:
    with h5py.File(path) as file:
        return [(name, int(np.prod(_rows(file, name).shape[1:]))) for name in ROW_ARRAYS]


def _rows(file: h5py.File, name: str) -> h5py.Dataset:
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError(name)
    return dataset
