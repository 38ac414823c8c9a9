"""What the tests of downloads share: two archives, and a server that offers one."""

import threading

import pytest

from agentic_bpt.datasets import transfer
from tests.builders import make_folder, make_zip
from tests.loopback import STEPS, Server, Site


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Two different archives of the same length."""
    root = tmp_path_factory.mktemp("published")
    path = make_zip(make_folder(root, steps=STEPS), root / "rnd.zip")
    first = path.read_bytes()
    assert len(first) > 3 * transfer._CHUNK_BYTES
    place = first.index(b"video/0.mp4")
    # The bytes of the video: not looked at by a check of the directory.
    other = first[: place + 11] + b"another vid" + first[place + 22 :]
    return first, other


@pytest.fixture
def site(contents, monkeypatch):
    monkeypatch.setattr(transfer, "BACKOFF_SECONDS", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    site = Site(content=contents[0])
    with Server(site) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield site
        server.shutdown()
        thread.join()
