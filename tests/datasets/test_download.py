import fcntl
import json
import os
import subprocess
import sys

import pytest

from agentic_bpt.datasets import transfer
from agentic_bpt.datasets.listing import episode_files
from agentic_bpt.errors import InputError
from tests.builders import make_zip
from tests.loopback import beside, fetch, leave_part, publish


def test_the_archive_is_written_whole_and_nothing_else(tmp_path, site):
    seen = []
    path = fetch(tmp_path, site, progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cartpole/icm.zip"
    assert path.read_bytes() == site.content
    assert beside(path) == ["icm.zip"]
    assert len(episode_files(path)) == 3
    assert site.requests == [("/cartpole/icm.zip", None, None)]
    size = len(site.content)
    assert seen[0] == (transfer._CHUNK_BYTES, size)
    assert seen[-1] == (size, size)
    assert seen == sorted(set(seen))


def test_the_published_address_is_the_default(tmp_path, site, monkeypatch):
    monkeypatch.setattr("agentic_bpt.datasets.download.PUBLISHED_ADDRESS", f"{site.address}/exorl")
    fetch(tmp_path, site, mirror=None)
    assert site.requests[0][0] == "/exorl/cartpole/icm.zip"


def test_a_mirror_may_end_in_a_slash(tmp_path, site):
    fetch(tmp_path, site, mirror=f"{site.address}/a/b/")
    assert site.requests[0][0] == "/a/b/cartpole/icm.zip"


def test_a_second_download_finds_the_first(tmp_path, site):
    path = fetch(tmp_path, site)
    site.requests.clear()
    assert fetch(tmp_path, site) == path
    assert site.requests == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"PK\x03\x04 cut short", "icm\\.zip: .* again"), (b"<html>", "web page")],
)
def test_what_is_there_and_is_not_the_archive_is_left_alone(tmp_path, site, content, message):
    path = tmp_path / "cartpole/icm.zip"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"is there already.*({message}).*move it away"):
        fetch(tmp_path, site)
    assert path.read_bytes() == content
    assert site.requests == []


def test_what_was_put_there_by_hand_is_checked_too(tmp_path, site, monkeypatch, contents):
    publish(monkeypatch, contents[0])
    path = fetch(tmp_path, site, expl_agent="proto")
    path.write_bytes(contents[1])
    with pytest.raises(InputError, match=r"is there already.*its sha256 is"):
        fetch(tmp_path, site, expl_agent="proto")


def test_a_zip_without_episodes_is_not_kept(tmp_path, site):
    folder = tmp_path / "empty/buffer"
    folder.mkdir(parents=True)
    site.content = make_zip(folder.parent, tmp_path / "empty.zip").read_bytes()
    with pytest.raises(InputError, match=r"not the archive: .*holds no episodes.*nothing of it"):
        fetch(tmp_path, site)
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_a_file_cut_short_by_a_server_that_says_no_length_is_not_kept(tmp_path, site):
    site.says_length, site.closes_at = False, 300_000
    with pytest.raises(InputError, match=r"not the archive: "):
        fetch(tmp_path, site)
    assert list((tmp_path / "cartpole").iterdir()) == []
    site.closes_at = None
    seen = []
    path = fetch(tmp_path, site, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == site.content
    assert seen[-1] == (len(site.content), 0)


def test_the_published_checksum_is_met(tmp_path, site, monkeypatch):
    publish(monkeypatch, site.content)
    path = fetch(tmp_path, site, expl_agent="proto")
    assert path.read_bytes() == site.content


def test_a_wrong_checksum_leaves_nothing(tmp_path, site, monkeypatch, contents):
    publish(monkeypatch, contents[0])
    site.content = contents[1]
    with pytest.raises(InputError, match=r"not the archive: its sha256 is [0-9a-f]{64}, that of"):
        fetch(tmp_path, site, expl_agent="proto")
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_a_request(tmp_path, site):
    (tmp_path / "cartpole").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot be written; choose another --out"):
        fetch(tmp_path, site)
    assert site.requests == []


def test_two_downloads_of_a_file_do_not_mix(tmp_path, site):
    part = leave_part(tmp_path, site)
    with open(part, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"another download of this file is running; wait"):
            fetch(tmp_path, site)
    assert part.stat().st_size == 300_000
    assert site.requests == []
    assert fetch(tmp_path, site).read_bytes() == site.content


def test_a_download_that_ends_while_another_begins_is_not_fetched_again(
    tmp_path, site, monkeypatch
):
    path = tmp_path / "cartpole/icm.zip"
    flock = fcntl.flock

    def late(handle, operation):
        path.write_bytes(site.content)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert fetch(tmp_path, site) == path
    assert site.requests == []
    assert beside(path) == ["icm.zip"]


def test_a_lock_on_a_file_that_was_renamed_meanwhile_counts_for_nothing(
    tmp_path, site, monkeypatch
):
    path = tmp_path / "cartpole/icm.zip"
    flock = fcntl.flock

    def late(handle, operation):
        os.replace(path.with_name("icm.zip.part"), path)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InputError, match="another download of this file is running"):
        fetch(tmp_path, site)
    assert path.exists()


def test_a_download_killed_in_the_middle_goes_on(tmp_path, site):
    site.closes_at = 300_000
    code = (
        "import os, signal, sys\n"
        "from agentic_bpt.datasets.download import download\n"
        "def kill(done, total):\n"
        "    if done >= 262144: os.kill(os.getpid(), signal.SIGKILL)\n"
        "download(domain='cartpole', expl_agent='icm', out=sys.argv[1], mirror=sys.argv[2],"
        " progress=kill)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), site.address]
    assert subprocess.run(command, check=False).returncode == -9
    assert json.loads((tmp_path / "cartpole/icm.zip.part.json").read_text())["etag"] == '"one"'
    site.closes_at = None
    site.requests.clear()
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert site.requests == [("/cartpole/icm.zip", "bytes=262144-", '"one"')]


@pytest.mark.parametrize(
    "mirror",
    [
        "ftp://example.org/exorl",
        "file:///tmp",
        "/tmp/exorl",
        "example.org/exorl",
        "http://",
        "http://[::1",
        "http://example.org:port/",
        "http://example.org/a b",
        "http://example.org/?key=1",
        "http://user:word@example.org/",
        "http://example.org/\nX: y",
    ],
)
def test_a_mirror_must_be_a_base_address(tmp_path, site, mirror):
    with pytest.raises(InputError, match=r"^mirror must be the address.*got [^\n]*$"):
        fetch(tmp_path, site, mirror=mirror)


def test_unknown_names_are_refused_before_a_request(tmp_path, site):
    with pytest.raises(InputError, match=r"unknown domain: choose one of cartpole"):
        fetch(tmp_path, site, domain="hopper")
    with pytest.raises(InputError, match=r"unknown expl_agent: choose one of aps"):
        fetch(tmp_path, site, expl_agent="td3")
    assert site.requests == []


def test_a_size_other_than_the_published_is_refused_before_it_is_fetched(
    tmp_path, site, monkeypatch
):
    publish(monkeypatch, site.content + b"1")
    seen = []
    size = len(site.content)
    with pytest.raises(InputError, match=rf"has {size:,} bytes, the published file {size + 1:,}"):
        fetch(tmp_path, site, expl_agent="proto", progress=lambda *done: seen.append(done))
    assert seen == []


def test_the_published_size_stands_in_for_one_not_said(tmp_path, site, monkeypatch):
    publish(monkeypatch, site.content)
    site.says_length = False
    site.closes_at, site.closings = 300_000, 1
    path = fetch(tmp_path, site, expl_agent="proto")
    assert path.read_bytes() == site.content
    assert site.requests[-1][1] == "bytes=300000-"
