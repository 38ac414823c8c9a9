"""The bytes of one file over HTTP, from any interrupted state to all of them."""

import contextlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from agentic_bpt.datasets.target import DISK_FULL
from agentic_bpt.errors import InputError

TIMEOUT_SECONDS = 60.0  # in which a server sends nothing
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0)  # before each further try that brings nothing new

_CHUNK_BYTES = 2**18
_ZIP_START = b"PK\x03\x04"  # APPNOTE 4.3.7: the header of the first member
_PASSING_CODES = (408, 429, 500, 502, 503, 504)  # RFC 9110: the same request may succeed later
_CODES = {
    403: "the server refuses it (code 403); it may be closed to your network",
    404: "there is no such file (code 404)",
}
_SIZE = re.compile(r"\d{1,18}", re.ASCII)  # what no disk holds is no size
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)


class _StoppedError(Exception):
    """A transfer stopped for a reason that may pass."""


class _Version(NamedTuple):
    """Which content a server sends, so that parts of two are never put together."""

    address: str
    etag: str
    """empty where the server gives none"""
    last_modified: str
    """empty where the server gives none"""
    size_bytes: int | None
    """of the whole file"""

    def may_be(self, other: "_Version") -> bool:
        """Say whether nothing known of both differs, and something is known of both."""
        pairs = [(mine, its) for mine, its in zip(self, other, strict=True) if mine and its]
        return len(pairs) > 1 and all(mine == its for mine, its in pairs)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows none to other protocols, nor from https to a connection that anyone can change."""

    def redirect_request(self, req: urllib.request.Request, *arguments: Any) -> Any:
        fp, code, _, headers, target = arguments
        if urllib.parse.urlsplit(target).scheme not in {"https", req.type}:
            raise urllib.error.HTTPError(req.full_url, code, f"to {target}", headers, fp)
        return super().redirect_request(req, *arguments)


class Transfer:
    """One zip on its way into an unfinished file, over as many requests as it takes.

    Args:
        address: where it lies, http(s).
        path: where it will lie; the unfinished file is beside.
        part: the unfinished file, open to read and append; no other process may have it so.
        published_bytes: its size, where that is known.
        progress: called with (bytes done, bytes in all, 0 where unknown) as they come.
    """

    def __init__(
        self,
        address: str,
        *,
        path: Path,
        part: FileIO,
        published_bytes: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._address = address
        self._path = path
        self._part = part
        self._published_bytes = published_bytes
        self._progress = progress
        self._opener = urllib.request.build_opener(_Redirects)
        self._version = _read_version(path)
        self._received = False

    @property
    def _done_bytes(self) -> int:
        return os.fstat(self._part.fileno()).st_size

    @property
    def _size_bytes(self) -> int | None:
        return self._version.size_bytes if self._version else None

    def fetch(self) -> None:
        """Ask until all bytes are there, or further tries bring nothing new.

        Raises:
            InputError: they cannot be had, or the disk is full.
        """
        furthest_bytes = self._done_bytes
        tries = 0
        while not self._complete():
            try:
                self._request()
            except _StoppedError as error:
                if self._done_bytes > furthest_bytes:
                    furthest_bytes = self._done_bytes
                    tries = 0
                if tries == len(BACKOFF_SECONDS):
                    raise InputError(
                        f"{self._address}: {_one_line(error)}, also after {tries} further tries; "
                        f"run this again to go on from byte {self._done_bytes:,}"
                    ) from error
                time.sleep(BACKOFF_SECONDS[tries])
                tries += 1
            else:
                return

    def _complete(self) -> bool:
        """Say whether a run before was stopped between the last byte and the new name."""
        return (
            self._version is not None
            and self._version.address == self._address
            and self._version.size_bytes == self._done_bytes
        )

    def _request(self) -> None:
        """Ask once for what is missing and take all that comes.

        Raises:
            _StoppedError: not all of it came.
        """
        before = self._version
        start = self._done_bytes if before and before.address == self._address else 0
        headers = {"User-Agent": "agentic-bpt"}
        if before and start:
            headers["Range"] = f"bytes={start}-"
            # RFC 9110, 13.1.5: a weak tag is not allowed here.
            strong_etag = "" if before.etag.startswith("W/") else before.etag
            if validator := strong_etag or before.last_modified:
                headers["If-Range"] = validator
        with self._open(headers) as response:
            if response.status == http.client.PARTIAL_CONTENT:
                self._require_continuation(response, start)
            elif response.status == http.client.OK:
                self._start_anew(response)
            else:
                raise InputError(self._in_vain(f"the server answers with code {response.status}"))
            while chunk := self._read(response):
                self._append(chunk)
        done_bytes, size_bytes = self._done_bytes, self._size_bytes
        if size_bytes is not None and done_bytes != size_bytes:
            if done_bytes > size_bytes:
                self._part.truncate(0)
            raise _StoppedError(f"the connection ended at byte {done_bytes:,} of {size_bytes:,}")

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._address, headers=headers)
        try:
            return self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
                self._part.truncate(0)
                raise _StoppedError("the file at the server changed") from error
            if error.code in _PASSING_CODES:
                raise _StoppedError(f"the server answers with code {error.code}") from error
            fault = _CODES.get(error.code, f"the server answers with code {error.code}")
            if 300 <= error.code < 400:
                fault = f"it is redirected where this does not follow ({error.msg})"
            raise InputError(self._in_vain(fault)) from error
        except urllib.error.URLError as error:
            if self._received:
                raise _StoppedError(f"the connection was lost ({error.reason})") from error
            raise InputError(self._in_vain(f"cannot be reached ({error.reason})")) from error
        except (OSError, http.client.HTTPException) as error:
            raise _StoppedError(f"the server gives no answer ({error})") from error
        except ValueError as error:
            # A redirect can name a host that no name can have.
            raise InputError(self._in_vain(f"cannot be reached ({error})")) from error

    def _require_continuation(self, response: http.client.HTTPResponse, start: int) -> None:
        """Refuse a part that does not continue the bytes that are there."""
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        size_bytes = int(match[2]) if match and match[2] != "*" else None
        offered = _version_of(response, self._address, size_bytes)
        fits = match and int(match[1]) == start > 0
        if not (fits and self._version and self._version.may_be(offered)):
            self._part.truncate(0)
            raise _StoppedError("the file at the server changed")

    def _start_anew(self, response: http.client.HTTPResponse) -> None:
        """Take the first bytes of a whole file in place of all that is there."""
        match = _SIZE.fullmatch(response.headers.get("Content-Length", ""))
        size_bytes, published_bytes = int(match[0]) if match else None, self._published_bytes
        first = self._read(response)
        if not first:
            raise _StoppedError("the server sends nothing")
        if not first.startswith(_ZIP_START[: len(first)]):
            kind = "a web page (HTML)" if first.lstrip().startswith(b"<") else f"{first[:16]!r}"
            raise InputError(self._in_vain(f"the server sends {kind}, not a zip"))
        if None not in (size_bytes, published_bytes) and size_bytes != published_bytes:
            fault = f"the server has {size_bytes:,} bytes, the published file {published_bytes:,}"
            raise InputError(self._in_vain(fault))
        self._version = _version_of(response, self._address, size_bytes or published_bytes)
        self._require_space()
        # Killed after this, the file is empty, and a version without bytes means nothing.
        self._part.truncate(0)
        with writing(self._path):
            unfinished_files(self._path)[1].write_text(json.dumps(self._version._asdict()))
        self._append(first)

    def _require_space(self) -> None:
        """Refuse at once what would fill the disk after an hour."""
        has_bytes = os.fstat(self._part.fileno()).st_blocks * 512  # POSIX: blocks of 512 bytes
        needed_bytes = (self._size_bytes or 0) - has_bytes
        free_bytes = shutil.disk_usage(self._path.parent).free
        if needed_bytes > free_bytes:
            raise InputError(
                f"{self._path.parent}: the archive needs {needed_bytes / 1e6:,.1f} MB; make room "
                f"or choose another --out; got {free_bytes / 1e6:,.1f} MB free"
            )

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            chunk = response.read(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _StoppedError(f"the connection was lost ({error})") from error
        self._received = True
        return chunk

    def _append(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        with writing(self._path):
            while left:
                left = left[self._part.write(left) :]
        if self._progress is not None:
            self._progress(self._done_bytes, self._size_bytes or 0)

    def _in_vain(self, fault: str) -> str:
        """Say in one line that the file cannot be had, and what else can be done."""
        return (
            f"{self._address}: {_one_line(fault)}; give a --mirror, or fetch it elsewhere and put "
            f"it at {self._path}"
        )


def unfinished_files(path: Path) -> tuple[Path, Path]:
    """Say where the bytes of an archive lie until it is whole, and what they are a part of."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line why the system refuses to write beside a file."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise InputError(
                f"{path.parent}: the disk is full; make room, and run this again to go on from here"
            ) from error
        raise InputError(
            f"{path.parent}: cannot be written; choose another --out; got {error.strerror}"
        ) from error


def _version_of(
    response: http.client.HTTPResponse, address: str, size_bytes: int | None
) -> _Version:
    """Read what the server says of the file, where it could be sent back in a header."""
    etag, last_modified = (
        value if value.isascii() and value.isprintable() else ""
        for value in (response.headers.get(name, "") for name in ("ETag", "Last-Modified"))
    )
    return _Version(address, etag, last_modified, size_bytes)


def _read_version(path: Path) -> _Version | None:
    """Read what a run before was fetching; None if that is not known."""
    try:
        return _Version(**json.loads(unfinished_files(path)[1].read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _one_line(text: object) -> str:
    """Leave out what a server could do to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))
