"""What an unfinished store holds, an episode a line, so that a killed ingest can go on."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines: first what the store will be, then an entry for each episode done.

    An entry is added once the rows that it speaks of are written, and carries their checksum: a
    kill can cut the last line short, and a crash of the machine can lose rows as well.

    Args:
        path: of the file.
        header: what the store will be; entries of any other are forgotten.
    """

    def __init__(self, path: Path, *, header: Mapping[str, Any]) -> None:
        self._path = path
        self._lines = [json.dumps(header)]
        self.found: list[dict[str, Any]] | None = None
        """Entries of an earlier run, in order; None if there was none for this store."""
        found = path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []
        if found[:1] == self._lines:
            self.found = []
            with contextlib.suppress(ValueError):  # a line that never reached the disk
                for line in found[1:]:
                    self.found.append(json.loads(line))
                    self._lines.append(line)

    def begin(self, *, kept: int) -> None:
        """Go on after so many of the entries found."""
        self._lines = self._lines[: 1 + kept]
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text("".join(f"{line}\n" for line in self._lines))
        os.replace(beside, self._path)
        self._handle = open(self._path, "ab", buffering=0)  # noqa: SIM115, closed by close()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Note that an episode is done."""
        self._handle.write(f"{json.dumps(entry)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._handle.close()
