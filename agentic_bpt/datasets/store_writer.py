"""The HDF5 file of a store: its layout, and writing it episode by episode.

Arrays of rows lie contiguous and uncompressed, one episode after the other, so an episode is one
read of the file: `observations` [sum of T + 1, O], `actions` [sum of T, A], `rewards` [sum of T].
Arrays of episodes: `lengths`, `returns`, `names`. `training` and `validation` hold episode numbers.
"""

import errno
import hashlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from agentic_bpt.datasets.trajectory import Trajectory

FORMAT_VERSION = 1
ROW_ARRAYS = ("observations", "actions", "rewards")
EPISODE_ARRAYS = ("lengths", "returns", "training", "validation")

# A number of the observation that varies less than this over all training data does not vary.
# Dividing by it would blow up a small change at test time, so it is only centred. (The least
# standard deviation seen in ExoRL data is 0.03, a velocity of the point mass.)
LEAST_STD = 1e-3

# The oldest format whose headers have checksums: in older ones a damaged header can send HDF5
# round in circles for ever. So can its texts of variable length: texts are fixed-length bytes here.
# Every HDF5 library since 2008 reads this.
_LIBRARY_VERSIONS = ("v108", "v108")

_HEADER_BYTES = 2**20  # more than HDF5 writes beside the arrays: 10 kB
_COPIED_BYTES = 2**22  # at once


class StoreWriter:
    """Append whole episodes to a new store, holding one at a time; complete it with `finish`.

    Rows go to the file past HDF5, at the places that it has given them: when a disk is full, HDF5
    can take the whole process down, where the system only reports it.

    Args:
        path: file to write; replaced if it is there.
        lengths: T of every episode that will come.
        observation_width: O.
        action_width: A.
    """

    def __init__(
        self, path: Path, *, lengths: Sequence[int], observation_width: int, action_width: int
    ) -> None:
        self._path = path
        self._widths = {
            "observations": (observation_width,),
            "actions": (action_width,),
            "rewards": (),
        }
        steps = sum(lengths)
        self._planned = {"observations": steps + len(lengths), "actions": steps, "rewards": steps}
        self._offsets = self._lay_out(path, self._planned)
        self._handle = open(path, "r+b", buffering=0)  # noqa: SIM115, closed by __exit__
        self._rows: dict[str, int] = dict.fromkeys(ROW_ARRAYS, 0)
        self._hashes = {name: hashlib.sha256() for name in ROW_ARRAYS}
        self._lengths: list[int] = []
        self._returns: list[float] = []
        self._names: list[str] = []
        self._moments: list[tuple[np.ndarray, np.ndarray]] = []

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()

    def append(self, trajectory: Trajectory, *, name: str) -> None:
        """Write the rows of one episode and note its statistics.

        Raises:
            OSError: the disk is full, or fails.
        """
        observations_RO = np.vstack([trajectory.observations, trajectory.final_observation])
        for key, values in zip(
            ROW_ARRAYS, (observations_RO, trajectory.actions, trajectory.rewards), strict=True
        ):
            values = np.ascontiguousarray(values, "<f4")
            start = self._offsets[key] + self._rows[key] * self._row_bytes(key)
            _write(self._handle, values.data.cast("B"), start)
            self._rows[key] += len(values)
            self._hashes[key].update(values.data)
        self._lengths.append(len(trajectory.actions))
        self._returns.append(trajectory.total_reward)
        self._names.append(name)
        observations_TO = trajectory.observations.astype(np.float64)
        self._moments.append((observations_TO.mean(axis=0), observations_TO.var(axis=0)))

    def finish(
        self,
        *,
        training: np.ndarray,
        validation: np.ndarray,
        skipped: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> None:
        """Write what describes the episodes, once all have been appended.

        Args:
            training: numbers of the training episodes; the statistics are theirs alone.
            validation: numbers of the other episodes.
            skipped: what was wrong with each episode that was expected and did not come.
            attributes: provenance, as HDF5 can hold it.

        Raises:
            OSError: the disk is full, or fails.
        """
        if self._rows != self._planned:
            self._close_gap()
        arrays = {
            "lengths": np.array(self._lengths, "<i8"),
            "returns": np.array(self._returns, "<f8"),
            "training": training.astype("<i8"),
            "validation": validation.astype("<i8"),
        }
        mean_O, std_O = self._observation_statistics(training)
        training_returns = arrays["returns"][training]
        digests = {name: self._hashes[name].digest() for name in ROW_ARRAYS}
        facts = {
            **attributes,
            "format_version": FORMAT_VERSION,
            "data_hash": data_hash(digests, arrays),
            "observation_mean": mean_O.astype(np.float32),
            "observation_std": std_O.astype(np.float32),
            "return_scale": float(np.abs(training_returns).max()) or 1.0,
            "best_return": float(training_returns.max()),
        }
        texts = {"names": self._names, "skipped": skipped}
        coded = {
            name: np.array([text.encode() for text in lines], "S") for name, lines in texts.items()
        }
        described_bytes = sum(values.nbytes for values in (arrays | coded).values())
        _reserve(self._path, sparse_bytes=0, header_bytes=described_bytes + _HEADER_BYTES)
        with h5py.File(self._path, "r+", libver=_LIBRARY_VERSIONS) as file:
            for name, values in (arrays | coded).items():
                file[name] = values
            for name, value in facts.items():
                file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value

    def _row_bytes(self, name: str) -> int:
        return 4 * math.prod(self._widths[name])

    def _lay_out(self, path: Path, rows: Mapping[str, int]) -> dict[str, int]:
        """Let HDF5 make a file with room for the rows, and say where in it they go."""
        data_bytes = sum(rows[name] * self._row_bytes(name) for name in ROW_ARRAYS)
        path.unlink(missing_ok=True)
        _reserve(path, sparse_bytes=data_bytes, header_bytes=_HEADER_BYTES)
        at_once = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        at_once.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        at_once.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        with h5py.File(path, "w", libver=_LIBRARY_VERSIONS) as file:
            return {
                name: file.create_dataset(
                    name, (rows[name], *self._widths[name]), "<f4", dcpl=at_once
                ).id.get_offset()
                for name in ROW_ARRAYS
            }

    def _close_gap(self) -> None:
        """Copy the rows to a file without the ones that did not come: HDF5 cannot shrink."""
        beside = self._path.with_name(f"{self._path.name}.gap.part")
        try:
            offsets = self._lay_out(beside, self._rows)
            with open(beside, "r+b", buffering=0) as exact:
                for name, rows in self._rows.items():
                    left = rows * self._row_bytes(name)
                    start, end = self._offsets[name], offsets[name]
                    while left:
                        block = os.pread(self._handle.fileno(), min(left, _COPIED_BYTES), start)
                        if not block:
                            raise OSError(errno.EIO, "lost rows that were written", self._path)
                        _write(exact, memoryview(block), end)
                        left -= len(block)
                        start += len(block)
                        end += len(block)
            os.replace(beside, self._path)
        finally:
            beside.unlink(missing_ok=True)

    def _observation_statistics(self, training: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Merge the moments of the training episodes (Chan et al. 1979), float64 [O] each."""
        steps_E = np.array(self._lengths, np.float64)[training]
        means_EO = np.array([self._moments[episode][0] for episode in training])
        variances_EO = np.array([self._moments[episode][1] for episode in training])
        mean_O = steps_E @ means_EO / steps_E.sum()
        variance_O = steps_E @ (variances_EO + (means_EO - mean_O) ** 2) / steps_E.sum()
        std_O = np.sqrt(variance_O)
        return mean_O, np.where(std_O < LEAST_STD, 1.0, std_O)


def _write(handle: io.FileIO, content: memoryview, offset: int) -> None:
    """Write all of it: the system writes less before it says that the disk is full."""
    while content:
        written = os.pwrite(handle.fileno(), content, offset)
        content = content[written:]
        offset += written


def _reserve(path: Path, *, sparse_bytes: int, header_bytes: int) -> None:
    """Grow a file to find out whether HDF5 will be able to write.

    Raises:
        OSError: the disk is full, or cannot hold so large a file.
    """
    with open(path, "ab") as handle:
        size = os.fstat(handle.fileno()).st_size + sparse_bytes
        os.ftruncate(handle.fileno(), size)
        os.posix_fallocate(handle.fileno(), size, header_bytes)


def data_hash(digests: Mapping[str, bytes], arrays: Mapping[str, np.ndarray]) -> str:
    """Hash the content of a store: 64 hexadecimal digits of SHA-256.

    Args:
        digests: SHA-256 of the bytes of each of `ROW_ARRAYS`, which are too large to hold.
        arrays: `EPISODE_ARRAYS`, little-endian.
    """
    total = hashlib.sha256()
    for name in ROW_ARRAYS:
        total.update(name.encode() + digests[name])
    for name in EPISODE_ARRAYS:
        total.update(
            name.encode() + hashlib.sha256(np.ascontiguousarray(arrays[name]).data).digest()
        )
    return total.hexdigest()
