"""Files of which no half is ever seen, and folders that one process holds."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from agentic_bpt.errors import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or leave what was there; its folder is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())  # or a power loss could leave the new name on an empty file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path, *, refusal: str) -> Iterator[None]:
    """Hold a folder, which is made where it is missing; the lock goes with the process.

    Raises:
        InputError: another process holds it, which `refusal` says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: {refusal}") from None
        yield
