"""The place where a file is made: one writer at a time, and room enough."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from agentic_bpt.errors import InputError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
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
        take_lock(handle, lock, held=f"{path}: another ingest is making this store")
        try:
            yield
        finally:
            lock.unlink()


def take_lock(handle: IO[bytes], path: Path, *, held: str) -> None:
    """Lock the open file at `path` until it is closed; a killed process gives the lock back.

    Raises:
        InputError: another process has it, which `held` says.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process before may have removed or renamed the file between open and flock, and a
        # third may have made a new one: then this lock keeps nobody out.
        if not os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as error:
        raise InputError(f"{held}; wait until it is done, then run this again to use it") from error


def require_space(unfinished: Path, *, needed_bytes: int) -> None:
    """Refuse at once what would fill the disk after an hour.

    Args:
        unfinished: the file that will hold the bytes; what it has already is not needed again.
        needed_bytes: its size when done.

    Raises:
        InputError: there is not so much room.
    """
    if unfinished.exists():
        needed_bytes -= unfinished.stat().st_blocks * 512  # POSIX: in blocks of 512 bytes
    free_bytes = shutil.disk_usage(unfinished.parent).free
    if needed_bytes > free_bytes:
        raise InputError(
            f"{unfinished.parent}: the store needs {needed_bytes / 1e6:,.1f} MB; make room or "
            f"choose another --out; got {free_bytes / 1e6:,.1f} MB free"
        )
