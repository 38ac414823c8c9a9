"""A server on loopback that does what servers do to a download, and downloads from it."""

import hashlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentic_bpt.datasets import catalog
from agentic_bpt.datasets.download import download
from agentic_bpt.errors import InputError

STEPS = 6000  # an episode; makes the archive several chunks long


@dataclass
class Site:
    """What the server on loopback does, and what it was asked."""

    content: bytes = b""
    etag: str | None = '"one"'
    last_modified: str | None = None
    ranges: bool = True
    always_partial: bool = False
    says_length: bool = True
    closes_at: int | None = None
    """byte of the file after which it sends nothing"""
    closings: int = 10**9
    """how many answers are closed early"""
    codes: list[int] = field(default_factory=list)
    """answers before the real ones"""
    location: str = ""
    content_type: str = "application/zip"
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """path, Range, If-Range of each"""
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self):
        site = self.server.site
        asked, condition = self.headers["Range"], self.headers["If-Range"]
        site.requests.append((self.path, asked, condition))
        if site.codes:
            self.send_response(site.codes.pop(0))
            if site.location:
                self.send_header("Location", site.location)
            self.end_headers()
            return
        start = int(asked.split("=")[1][:-1]) if asked else 0
        same = condition in (None, site.etag, site.last_modified)
        if not (site.ranges and same) and not site.always_partial:
            start = 0
        end = len(site.content)
        if start >= end:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{end}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        if site.says_length:
            self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", site.content_type)
        if site.etag:
            self.send_header("ETag", site.etag)
        if site.last_modified:
            self.send_header("Last-Modified", site.last_modified)
        self.end_headers()
        if site.closes_at is not None and site.closings > 0:
            site.closings -= 1
            end = site.closes_at
        self.wfile.write(site.content[start:end])

    def log_message(self, format, *args):
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, site: Site):
        super().__init__(("127.0.0.1", 0), Handler)
        self.site = site


def fetch(root: Path, site: Site, *, expl_agent: str = "icm", **settings) -> Path:
    """Fetch an archive of which neither size nor checksum is known."""
    given = {"domain": "cartpole", "mirror": site.address, "out": root, **settings}
    return download(expl_agent=expl_agent, **given)


def publish(monkeypatch, content: bytes, sha256: str | None = None) -> None:
    """Let the size and the checksum of cartpole/proto be those of some bytes."""
    known = (len(content), sha256 or hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(catalog._KNOWN, ("cartpole", "proto"), known)


def beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def leave_part(root: Path, site: Site, at: int = 300_000) -> Path:
    """Stop a download at a byte of the file; give where the part lies."""
    site.closes_at = at
    with pytest.raises(InputError, match="the connection ended at byte"):
        fetch(root, site)
    site.closes_at = None
    site.requests.clear()
    part = root / "cartpole/icm.zip.part"
    assert part.stat().st_size == at
    return part
