"""Writing a store episode by episode, so that a run which was killed can go on."""

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from agentic_bpt.datasets.store_journal import Journal
from agentic_bpt.datasets.store_layout import (
    FORMAT_VERSION,
    HEADER_BYTES,
    LIBRARY_VERSIONS,
    PHYSICS,
    RowFile,
    data_hash,
    reserve,
)
from agentic_bpt.datasets.trajectory import Trajectory

# A number of the observation that varies less than this over all training data does not vary.
# Dividing by it would blow up a small change at test time, so it is only centred. (The least
# standard deviation seen in ExoRL data is 0.03, a velocity of the point mass.)
LEAST_STD = 1e-3


class StoreWriter:
    """Append whole episodes to a new store, holding one at a time; complete it with `finish`.

    Until then rows lie in `<path>.part`, and `<path>.part.journal` says which episodes. A writer
    of the same store goes on after the last one whose rows are all there: `done` says how many.

    Args:
        path: file to make.
        names: of every episode that will come.
        lengths: T of each.
        observation_width: O.
        action_width: A.
        physics_shape: K and P of the physics states after each action; None if none are kept.
        skip_bad: go on after episodes that a run before left out; otherwise before the first.

    Raises:
        OSError: the disk is full, or fails.

    Attributes:
        done: episodes appended or skipped.
        skipped: what was wrong with each one skipped.
        action_repeat: of those appended; before the first as `physics_shape` has it, or 0.
    """

    def __init__(
        self,
        path: Path,
        *,
        names: Sequence[str],
        lengths: Sequence[int],
        observation_width: int,
        action_width: int,
        physics_shape: tuple[int, int] | None = None,
        skip_bad: bool = False,
    ) -> None:
        self._path = path
        self._part, self._gapless, self._noted, *_ = _unfinished_files(path)
        self._planned = (tuple(names), tuple(lengths))
        self._widths: dict[str, tuple[int, ...]] = {
            "observations": (observation_width,),
            "actions": (action_width,),
            "rewards": (),
        }
        steps = sum(lengths)
        rows = {"observations": steps + len(lengths), "actions": steps, "rewards": steps}
        if physics_shape is not None:
            self._widths[PHYSICS], rows[PHYSICS] = physics_shape, steps
        self._rows: dict[str, int] = dict.fromkeys(rows, 0)
        self._hashes = {name: hashlib.sha256() for name in rows}
        self._kept: list[int] = []  # of the planned episodes
        self._returns: list[float] = []
        self._moments: list[tuple[np.ndarray, np.ndarray]] = []
        self.done = 0
        self.skipped: list[str] = []
        self.action_repeat = 0 if physics_shape is None else physics_shape[0]
        # Another HDF5 library may lay out the file in another way.
        header = {"rows": rows, "widths": self._widths, "hdf5": h5py.version.hdf5_version}
        self._journal = Journal(self._noted, header=header)
        found = self._journal.found if self._part.exists() else None
        self._file = RowFile(
            self._part, rows=rows, widths=self._widths, taken_over=found is not None
        )
        self._take_over(found or [], skip_bad=skip_bad)
        self._journal.begin(kept=self.done)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._journal.close()

    def append(
        self, trajectory: Trajectory, *, action_repeat: int, physics_TKP: np.ndarray | None = None
    ) -> None:
        """Write the rows of the next episode and note its statistics.

        `physics_TKP` is there if and only if the store keeps physics.

        Raises:
            OSError: the disk is full, or fails.
        """
        observations_RO = np.vstack([trajectory.observations, trajectory.final_observation])
        values = [observations_RO, trajectory.actions, trajectory.rewards]
        if physics_TKP is not None:
            values.append(physics_TKP)
        arrays = {
            name: np.ascontiguousarray(array, "<f4")
            for name, array in zip(self._rows, values, strict=True)
        }
        for name, array in arrays.items():
            self._file.write(name, array, row=self._rows[name])
        self._count(arrays, action_repeat)
        self._journal.append({"checksum": _checksum(arrays), "action_repeat": action_repeat})

    def skip(self, reason: str) -> None:
        """Leave the next episode out."""
        self.skipped.append(reason)
        self.done += 1
        self._journal.append({"skipped": reason})

    def finish(
        self, *, training: np.ndarray, validation: np.ndarray, attributes: Mapping[str, Any]
    ) -> None:
        """Write what describes the episodes, once all are done, and give the store its name.

        Args:
            training: numbers of the training episodes; the statistics are theirs alone.
            validation: numbers of the other episodes.
            attributes: provenance, as HDF5 can hold it.

        Raises:
            OSError: the disk is full, or fails.
        """
        made = self._part
        if self.skipped:  # HDF5 cannot shrink: copy to a file without room for what did not come
            made = self._gapless
            exact = RowFile(made, rows=self._rows, widths=self._widths)
            try:
                self._file.copy_to(exact)
            finally:
                exact.close()
        names, lengths = self._planned
        arrays = {
            "lengths": np.array(lengths, "<i8")[self._kept],
            "returns": np.array(self._returns, "<f8"),
            "training": training.astype("<i8"),
            "validation": validation.astype("<i8"),
        }
        texts = {"names": [names[number] for number in self._kept], "skipped": self.skipped}
        coded = {
            name: np.array([text.encode() for text in lines], "S") for name, lines in texts.items()
        }
        facts = {
            **attributes,
            "action_repeat": self.action_repeat,
            "format_version": FORMAT_VERSION,
            "data_hash": data_hash(
                {name: rows.digest() for name, rows in self._hashes.items()}, arrays
            ),
            **self._statistics(arrays["lengths"], arrays["returns"], training),
        }
        described_bytes = sum(values.nbytes for values in (arrays | coded).values())
        reserve(made, sparse_bytes=0, header_bytes=described_bytes + HEADER_BYTES)
        with h5py.File(made, "r+", libver=LIBRARY_VERSIONS) as file:
            for name, values in (arrays | coded).items():
                file[name] = values
            for name, value in facts.items():
                file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
        with made.open("rb") as handle:
            os.fsync(handle.fileno())  # or a power loss could leave the new name on an empty file
        os.replace(made, self._path)
        discard_unfinished(self._path)

    def _take_over(self, entries: Sequence[Mapping[str, Any]], *, skip_bad: bool) -> None:
        """Count the episodes that a run before has written, up to the first that is not whole."""
        for entry in entries:
            if "skipped" in entry:
                if not skip_bad:
                    return
                self.skipped.append(entry["skipped"])
                self.done += 1
                continue
            steps = self._planned[1][self.done]
            arrays = {
                name: self._file.read(
                    name, row=self._rows[name], rows=steps + (name == "observations")
                )
                for name in self._rows
            }
            if _checksum(arrays) != entry["checksum"]:
                return
            self._count(arrays, entry["action_repeat"])

    def _count(self, arrays: Mapping[str, np.ndarray], action_repeat: int) -> None:
        """Take an episode that has been written into the statistics."""
        for name, array in arrays.items():
            self._rows[name] += len(array)
            self._hashes[name].update(array.data)
        self._kept.append(self.done)
        self.done += 1
        self.action_repeat = action_repeat
        self._returns.append(float(arrays["rewards"].sum(dtype=np.float64)))
        observations_TO = arrays["observations"][:-1].astype(np.float64)
        self._moments.append((observations_TO.mean(axis=0), observations_TO.var(axis=0)))

    def _statistics(
        self, lengths_E: np.ndarray, returns_E: np.ndarray, training: np.ndarray
    ) -> dict[str, Any]:
        """Describe the training episodes; their moments are merged (Chan et al. 1979)."""
        steps_E = lengths_E[training].astype(np.float64)
        means_EO = np.array([self._moments[episode][0] for episode in training])
        variances_EO = np.array([self._moments[episode][1] for episode in training])
        mean_O = steps_E @ means_EO / steps_E.sum()
        std_O = np.sqrt(steps_E @ (variances_EO + (means_EO - mean_O) ** 2) / steps_E.sum())
        return {
            "observation_mean": mean_O.astype(np.float32),
            "observation_std": np.where(std_O < LEAST_STD, 1.0, std_O).astype(np.float32),
            "return_scale": float(np.abs(returns_E[training]).max()) or 1.0,
            "best_return": float(returns_E[training].max()),
        }


def part_of(path: Path) -> Path:
    """Say where the rows of a store lie until it is finished."""
    return _unfinished_files(path)[0]


def discard_unfinished(path: Path) -> None:
    """Remove what a writer of this store has left."""
    for file in _unfinished_files(path):
        file.unlink(missing_ok=True)


def _unfinished_files(path: Path) -> tuple[Path, ...]:
    """Name the rows, the rows without gaps, the journal, and what is made beside these."""
    endings = ("part", "part.gapless", "part.journal", "part.journal.new", "part.empty")
    return tuple(path.with_name(f"{path.name}.{ending}") for ending in endings)


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """Sum up the rows of one episode, so that rows which never reached the disk are noticed."""
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(array.data, checksum)
    return checksum
