"""Reads a store: whole episodes, at the speed of the file system, and what describes them."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from agentic_bpt.datasets.store_layout import (
    EPISODE_ARRAYS,
    FORMAT_VERSION,
    PHYSICS,
    ROW_ARRAYS,
    data_hash,
)
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.errors import InputError

_NOT_OPENED = (errno.EACCES, errno.EPERM, errno.EAGAIN, errno.ENOLCK)
"""Of a file that may well be whole: not ours to read, or locked by who writes it."""
_AGAIN = "delete it and ingest again"
_BLOCK_BYTES = 8 * 2**20


class Store:
    """The trajectories of one store, read from the file when asked for.

    Safe to read from several threads, and from processes forked after opening.

    Attributes:
        path: the file.
        task: full name, such as `walker_run`.
        relabel: where the rewards are from, one of `RELABEL_MODES`.
        action_repeat: control steps for which each action is held.
        attributes: provenance: domain, expl_agent, source, source_hash, selection (`all` or the
            rule), collected_episodes (there were so many), command, versions, created,
            validation_fraction, seed, format_version.
        data_hash: SHA-256 of the content; equal hashes mean equal data and split.
        lengths: int64 [E], T of each episode.
        returns: float64 [E], total reward of each episode.
        names: collector and file name of each episode, in order of collection.
        skipped: for each episode left out at ingest, what was wrong with it.
        training: int64, numbers of the training episodes, ascending.
        validation: int64, numbers of the others, ascending.
        observation_mean: float32 [O], over the T observations of each training episode.
        observation_std: float32 [O], the same; 1 where an observation does not vary.
        return_scale: largest absolute return of a training episode; 1 if all are 0.
        best_return: largest return of a training episode.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with _store_file(self.path) as file:
            self._read_attributes(file)
            self._read_arrays(file)
        self._handle = open(self.path, "rb", buffering=0)  # noqa: SIM115, closed by close()

    def _read_attributes(self, file: h5py.File) -> None:
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
        attributes["versions"] = json.loads(attributes["versions"])
        self.data_hash: str = attributes.pop("data_hash")
        self.task: str = attributes.pop("task")
        self.relabel: str = attributes.pop("relabel")
        self.action_repeat: int = attributes.pop("action_repeat")
        self.observation_mean: np.ndarray = attributes.pop("observation_mean")
        self.observation_std: np.ndarray = attributes.pop("observation_std")
        self.return_scale: float = attributes.pop("return_scale")
        self.best_return: float = attributes.pop("best_return")
        self.attributes: dict[str, Any] = attributes

    def _read_arrays(self, file: h5py.File) -> None:
        self.lengths: np.ndarray = _dataset(file, "lengths")[:]
        self.returns: np.ndarray = _dataset(file, "returns")[:]
        self.training: np.ndarray = _dataset(file, "training")[:]
        self.validation: np.ndarray = _dataset(file, "validation")[:]
        self.names: list[str] = [name.decode() for name in _dataset(file, "names")[:]]
        self.skipped: list[str] = [line.decode() for line in _dataset(file, "skipped")[:]]
        starts_E = np.concatenate([[0], np.cumsum(self.lengths)])
        # Each episode has one observation more than it has actions. Python's own numbers: NumPy's
        # take a tenth of the time of reading an episode.
        self._starts: dict[str, list[int]] = {
            "observations": (starts_E + np.arange(len(starts_E))).tolist(),
            "actions": starts_E.tolist(),
            "rewards": starts_E.tolist(),
        }
        if PHYSICS in file:
            self._starts[PHYSICS] = starts_E.tolist()
        self._offsets: dict[str, int] = {}  # in the file, bytes
        self._widths: dict[str, tuple[int, ...]] = {}
        for name in self._starts:
            dataset = _dataset(file, name)
            offset, rows = dataset.id.get_offset(), self._starts[name][-1]
            if offset is None or dataset.dtype != np.dtype("<f4") or len(dataset) != rows:
                raise InputError(
                    f"{self.path}: {name} must be contiguous float32 with {rows} rows; {_AGAIN}; "
                    f"got {dataset.dtype} {list(dataset.shape)}"
                )
            self._offsets[name] = offset
            self._widths[name] = dataset.shape[1:]

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store read-only.

        Raises:
            InputError: missing, not a store, cut short, or written by a newer version.
        """
        return cls(path)

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.lengths)

    def trajectory(self, episode: int) -> Trajectory:
        """Read one episode, and no other rows, into new arrays.

        Raises:
            IndexError: there is no such episode.
        """
        observations, actions, rewards = (self._episode(name, episode) for name in ROW_ARRAYS)
        return Trajectory(observations[:-1], actions, rewards, observations[-1])

    def physics(self, episode: int) -> np.ndarray:
        """Read the physics states of one episode, of which its rewards can be made anew.

        Returns:
            float32 [T, K, P], positions, velocities and activations after each of the K
            (`action_repeat`) control steps of each action.

        Raises:
            InputError: the store holds none.
            IndexError: there is no such episode.
        """
        if PHYSICS not in self._starts:
            raise InputError(
                f"{self.path}: holds no physics, of which rewards are computed; ingest the "
                "episodes again with --keep-physics"
            )
        return self._episode(PHYSICS, episode)

    def verify(self) -> None:
        """Read everything and compare it with `data_hash`.

        Raises:
            InputError: the content is not what was ingested.
        """
        digests = {}
        for name in self._starts:
            content = hashlib.sha256()
            rows = self._starts[name][-1]
            step = max(1, _BLOCK_BYTES // (4 * int(np.prod(self._widths[name], dtype=int))))
            for start in range(0, rows, step):
                content.update(self._rows(name, start, min(start + step, rows)).data)
            digests[name] = content.digest()
        found = data_hash(digests, {name: getattr(self, name) for name in EPISODE_ARRAYS})
        if found != self.data_hash:
            raise InputError(
                f"{self.path}: its content has changed since it was ingested; {_AGAIN}; got hash "
                f"{found[:12]} instead of {self.data_hash[:12]}"
            )

    def _episode(self, name: str, episode: int) -> np.ndarray:
        if not 0 <= episode < len(self):
            raise IndexError(f"{self.path}: episodes are 0 to {len(self) - 1}, got {episode}")
        return self._rows(name, self._starts[name][episode], self._starts[name][episode + 1])

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read rows through the file handle: h5py has a global lock, and must not be forked."""
        rows = np.empty((stop - start, *self._widths[name]), "<f4")
        place = self._offsets[name] + start * (rows.nbytes // len(rows))
        if os.preadv(self._handle.fileno(), [rows.data], place) != rows.nbytes:
            raise InputError(f"{self.path}: has been cut short since it was opened; {_AGAIN}")
        return rows


@contextlib.contextmanager
def _store_file(path: Path) -> Iterator[h5py.File]:
    """Open the HDF5 file of a store and turn what can be wrong with it into one line."""
    if not path.is_file():
        raise InputError(f"{path}: does not exist; make one with agentic-bpt ingest")
    try:
        with h5py.File(path, "r") as file:
            found = _plain(file.attrs["format_version"])
            if found > FORMAT_VERSION:
                raise InputError(
                    f"{path}: was written by a newer version of this program; update it; got "
                    f"format {found}, known up to {FORMAT_VERSION}"
                )
            yield file
    except InputError:
        raise
    except OSError as error:
        if error.errno in _NOT_OPENED:
            raise InputError(f"{path}: cannot be opened; got {error}") from error
        # HDF5 keeps the size of the file in its first bytes and compares.
        what = "is cut short" if "truncated" in str(error) else "is not a whole HDF5 file"
        raise InputError(f"{path}: {what}; {_AGAIN}; got {path.stat().st_size:,} bytes") from error
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path}: is HDF5 but not a store of this program; make one with agentic-bpt ingest; "
            f"got {error}"
        ) from error


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Look up an array of a store."""
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise KeyError(name)
    return dataset


def _plain(value: Any) -> Any:
    """Turn an HDF5 attribute into the Python value that was written."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
