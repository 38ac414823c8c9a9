"""The HDF5 file of a store: its layout, and its rows written past HDF5.

Arrays of rows lie contiguous and uncompressed, one episode after the other, so an episode is one
read of the file: `observations` [sum of T + 1, O], `actions` [sum of T, A], `rewards` [sum of T],
and, where it was asked for, `physics` [sum of T, K, P] after each of K repeated control steps.
Arrays of episodes: `lengths`, `returns`, `names`. `training` and `validation` hold episode numbers.
"""

import errno
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

FORMAT_VERSION = 1
ROW_ARRAYS = ("observations", "actions", "rewards")
PHYSICS = "physics"  # one more array of rows, where it is kept
EPISODE_ARRAYS = ("lengths", "returns", "training", "validation")

# The oldest format whose headers have checksums: in older ones a damaged header can send HDF5
# round in circles for ever. So can its texts of variable length: texts are fixed-length bytes here.
# Every HDF5 library since 2008 reads this.
LIBRARY_VERSIONS = ("v108", "v108")

HEADER_BYTES = 2**20  # more than HDF5 writes beside the arrays: 10 kB
_COPIED_BYTES = 2**22  # at once


class RowFile:
    """Room for a number of rows of each array in an HDF5 file, written and read past HDF5.

    When a disk is full, HDF5 can take the whole process down, where the system only reports it.
    And since HDF5 has the file open only to lay it out, a kill while rows are written harms none
    of its structures.

    Args:
        path: file to make; replaced if it is there, unless it is taken over.
        rows: of each array of rows.
        widths: of the rows of each, () for numbers.
        taken_over: keep the rows of the file that is there, which had this very layout, and make
            anew what HDF5 keeps around them: a kill may have come while that was changed.

    Raises:
        OSError: the disk is full, or cannot hold so large a file.
    """

    def __init__(
        self,
        path: Path,
        *,
        rows: Mapping[str, int],
        widths: Mapping[str, tuple[int, ...]],
        taken_over: bool = False,
    ) -> None:
        self._rows = dict(rows)
        self._widths = dict(widths)
        self._row_bytes = {name: 4 * math.prod(widths[name]) for name in rows}
        empty = path.with_name(f"{path.name}.empty") if taken_over else path
        try:
            self._offsets = self._lay_out(empty)
            self._handle = open(path, "r+b", buffering=0)  # noqa: SIM115, closed by close()
            if taken_over:
                self._take_around_rows(empty)
        finally:
            if taken_over:
                empty.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def write(self, name: str, values: np.ndarray, *, row: int) -> None:
        """Write contiguous float32 rows from `row` on."""
        start = self._offsets[name] + row * self._row_bytes[name]
        self._write(values.data.cast("B"), start)

    def read(self, name: str, *, row: int, rows: int) -> np.ndarray:
        """Read float32 rows from `row` on."""
        values = np.empty((rows, *self._widths[name]), "<f4")
        start = self._offsets[name] + row * self._row_bytes[name]
        if os.preadv(self._handle.fileno(), [values.data], start) != values.nbytes:
            raise OSError(errno.EIO, "lost rows that were written", self._handle.name)
        return values

    def copy_to(self, other: "RowFile") -> None:
        """Copy the first rows of each array to a file that has room for fewer."""
        for name, rows in other._rows.items():
            rows_at_once = max(1, _COPIED_BYTES // self._row_bytes[name])
            for row in range(0, rows, rows_at_once):
                count = min(rows_at_once, rows - row)
                other.write(name, self.read(name, row=row, rows=count), row=row)

    def _write(self, content: memoryview, start: int) -> None:
        """Write all of it: the system writes less before it says that the disk is full."""
        while content:
            written = os.pwrite(self._handle.fileno(), content, start)
            content = content[written:]
            start += written

    def _lay_out(self, path: Path) -> dict[str, int]:
        """Let HDF5 make a file with room for the rows, and say where in it they go."""
        data_bytes = sum(rows * self._row_bytes[name] for name, rows in self._rows.items())
        path.unlink(missing_ok=True)
        reserve(path, sparse_bytes=data_bytes, header_bytes=HEADER_BYTES)
        at_once = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        at_once.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        at_once.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        with h5py.File(path, "w", libver=LIBRARY_VERSIONS) as file:
            return {
                name: file.create_dataset(
                    name, (rows, *self._widths[name]), "<f4", dcpl=at_once
                ).id.get_offset()
                for name, rows in self._rows.items()
            }

    def _take_around_rows(self, empty: Path) -> None:
        """Copy from a file of the same layout all that does not belong to rows."""
        size = empty.stat().st_size
        held = sorted(
            (self._offsets[name], rows * self._row_bytes[name]) for name, rows in self._rows.items()
        )
        position = 0
        with open(empty, "rb") as handle:
            for offset, row_bytes in [*held, (size, 0)]:
                handle.seek(position)
                self._write(memoryview(handle.read(offset - position)), position)
                position = offset + row_bytes
        os.ftruncate(self._handle.fileno(), size)


def reserve(path: Path, *, sparse_bytes: int, header_bytes: int) -> None:
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
        digests: SHA-256 of the bytes of each array of rows, which are too large to hold; those of
            `ROW_ARRAYS` first.
        arrays: `EPISODE_ARRAYS`, little-endian.
    """
    total = hashlib.sha256()
    for name, digest in digests.items():
        total.update(name.encode() + digest)
    for name in EPISODE_ARRAYS:
        total.update(
            name.encode() + hashlib.sha256(np.ascontiguousarray(arrays[name]).data).digest()
        )
    return total.hexdigest()
