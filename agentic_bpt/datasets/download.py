"""Fetching a published archive: found, gone on with, or fetched; whole or not at all."""

import contextlib
import hashlib
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from agentic_bpt.datasets.catalog import PUBLISHED_ADDRESS, Archive, published_archive
from agentic_bpt.datasets.listing import episode_files
from agentic_bpt.datasets.target import take_lock
from agentic_bpt.datasets.transfer import Transfer, unfinished_files, writing
from agentic_bpt.errors import InputError

DEFAULT_FOLDER = Path("data/exorl")


def download(
    *,
    domain: str,
    expl_agent: str,
    out: Path = DEFAULT_FOLDER,
    mirror: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Fetch a published archive to `out/<domain>/<expl_agent>.zip`, or find it there already.

    A run that was stopped, even killed, goes on with the same arguments from the `.part` file
    beside, if the server has the same file still.

    Args:
        domain: one of `DOMAINS`.
        expl_agent: one of `EXPL_AGENTS`.
        out: folder of data sets.
        mirror: http(s) address of a server that holds `<domain>/<expl_agent>.zip`; None takes the
            published one.
        progress: called with (bytes done, bytes in all, 0 where the server does not say) as they
            come.

    Returns:
        The zip file: of the published size and checksum where these are known, its directory read.

    Raises:
        InputError: a wrong argument, the file cannot be had or is not the archive, no room, or
            another download of it that is not done.
    """
    archive = published_archive(domain, expl_agent)
    address = f"{_base_address(mirror)}/{archive.name}"
    path = Path(out) / archive.name
    if path.exists():
        if fault := _fault(path, archive):
            raise InputError(
                f"{path}: is there already and is not the archive: {fault}; move it away, then "
                "run this again"
            )
        return path
    with _only_download(path) as part:
        # Another process may have finished it just now.
        if not path.exists():
            Transfer(
                address,
                path=path,
                part=part,
                published_bytes=archive.size_bytes,
                progress=progress,
            ).fetch()
            _finish(path, part, archive, address)
    return path


def _finish(path: Path, part: FileIO, archive: Archive, address: str) -> None:
    """Give the fetched file its name if it is the archive; otherwise empty it."""
    unfinished, version = unfinished_files(path)
    if fault := _fault(unfinished, archive):
        part.truncate(0)
        raise InputError(
            f"{address}: what came is not the archive: {fault}; nothing of it was kept; run this "
            "again, or give another --mirror"
        )
    with writing(path):
        os.fsync(part.fileno())
        os.replace(unfinished, path)
        version.unlink(missing_ok=True)


def _fault(path: Path, archive: Archive) -> str | None:
    """Say in what a file differs from the archive; None if in nothing that is known."""
    try:
        size_bytes = path.stat().st_size
        if archive.size_bytes not in (None, size_bytes):
            return f"it has {size_bytes:,} bytes, the published file {archive.size_bytes:,}"
        if archive.sha256 is not None:
            with open(path, "rb") as handle:
                sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
            if sha256 != archive.sha256:
                return f"its sha256 is {sha256}, that of the published file {archive.sha256}"
        episode_files(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except InputError as error:
        return str(error)
    return None


def _base_address(mirror: str | None) -> str:
    """Check the address of a mirror."""
    if mirror is None:
        return PUBLISHED_ADDRESS
    try:
        parts = urllib.parse.urlsplit(mirror)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    # What stands after ? or # would end up before the name of the file.
    if not sound or not re.fullmatch(r"[!-~]+", mirror) or re.search("[?#@]", mirror):
        raise InputError(
            "mirror must be the address under which <domain>/<expl_agent>.zip lies, such as "
            f"https://example.org/exorl, without user, query or spaces; got {mirror!r}"
        )
    return mirror.rstrip("/")


@contextlib.contextmanager
def _only_download(path: Path) -> Iterator[FileIO]:
    """Open the unfinished file under a lock that a killed process gives back by itself.

    Raises:
        InputError: another process holds it, or the folder cannot be written.
    """
    part, version = unfinished_files(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(part, "a+b", buffering=0)  # noqa: SIM115, closed below
    with handle:
        take_lock(handle, part, held=f"{path}: another download of this file is running")
        try:
            yield handle
        finally:
            if os.fstat(handle.fileno()).st_size == 0:
                version.unlink(missing_ok=True)
                part.unlink(missing_ok=True)
