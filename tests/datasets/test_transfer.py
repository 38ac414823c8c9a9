import errno
import re
import resource
import shutil
import socket
import time

import pytest

from agentic_bpt.datasets import transfer
from agentic_bpt.datasets.download import download
from agentic_bpt.errors import InputError
from tests.builders import make_folder, make_zip
from tests.loopback import STEPS, Handler, beside, fetch, leave_part


@pytest.mark.parametrize(
    ("etag", "last_modified", "condition"),
    [
        ('"one"', None, '"one"'),
        ('W/"one"', None, None),
        (None, "Tue, 01 Feb 2022 10:00:00 GMT", "Tue, 01 Feb 2022 10:00:00 GMT"),
        (None, None, None),
    ],
)
def test_a_stopped_download_goes_on_by_range(tmp_path, site, etag, last_modified, condition):
    site.etag, site.last_modified = etag, last_modified
    leave_part(tmp_path, site)
    seen = []
    path = fetch(tmp_path, site, progress=lambda done, _: seen.append(done))
    assert site.requests == [("/cartpole/icm.zip", "bytes=300000-", condition)]
    assert path.read_bytes() == site.content
    assert seen[0] > 300_000
    assert beside(path) == ["icm.zip"]


def test_a_download_killed_before_the_new_name_needs_no_byte(tmp_path, site):
    part = leave_part(tmp_path, site)
    part.write_bytes(site.content)
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert site.requests == []


@pytest.mark.parametrize("kept", ["icm.zip.part", "icm.zip.part.json"])
def test_half_of_what_a_stopped_download_leaves_is_no_start(tmp_path, site, kept):
    part = leave_part(tmp_path, site)
    for name in beside(part):
        if name != kept:
            (part.parent / name).unlink()
    path = fetch(tmp_path, site)
    assert [asked for _, asked, _ in site.requests] == [None]
    assert path.read_bytes() == site.content


def test_a_part_from_another_address_is_no_start(tmp_path, site):
    leave_part(tmp_path, site)
    path = fetch(tmp_path, site, mirror=f"{site.address}/mirror")
    assert site.requests == [("/mirror/cartpole/icm.zip", None, None)]
    assert path.read_bytes() == site.content


def test_a_server_without_ranges_gives_a_fresh_start(tmp_path, site):
    leave_part(tmp_path, site)
    site.ranges = False
    assert fetch(tmp_path, site).read_bytes() == site.content


@pytest.mark.parametrize(("always_partial", "requests"), [(False, 1), (True, 2)])
def test_a_changed_file_is_not_put_together_with_the_old(
    tmp_path, site, contents, always_partial, requests
):
    part = leave_part(tmp_path, site)
    assert part.read_bytes() != contents[1][:300_000]
    site.content, site.etag, site.always_partial = contents[1], '"two"', always_partial
    path = fetch(tmp_path, site)
    assert path.read_bytes() == contents[1]
    assert len(site.requests) == requests


def test_a_file_of_another_size_is_not_put_together_with_the_old(tmp_path, site):
    site.etag = None
    leave_part(tmp_path, site)
    folder = make_folder(tmp_path / "elsewhere", steps=STEPS, episodes=4)
    site.content = make_zip(folder, tmp_path / "changed.zip").read_bytes()
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert [asked for _, asked, _ in site.requests] == ["bytes=300000-", None]


def test_a_file_that_became_shorter_is_fetched_anew(tmp_path, site):
    leave_part(tmp_path, site)
    site.content = make_zip(make_folder(tmp_path / "b"), tmp_path / "short.zip").read_bytes()
    assert len(site.content) < 300_000
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert [asked for _, asked, _ in site.requests] == ["bytes=300000-", None]


def test_a_connection_closed_once_goes_on_by_itself(tmp_path, site):
    site.closes_at, site.closings = 300_000, 1
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert [asked for _, asked, _ in site.requests] == [None, "bytes=300000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_always_closes_ends_it_and_says_how_to_go_on(tmp_path, site, ranges):
    site.closes_at, site.ranges = 300_000, ranges
    size = f"{len(site.content):,}"
    with pytest.raises(
        InputError,
        match=rf"icm\.zip: the connection ended at byte 300,000 of {size}"
        r", also after 2 further tries; run this again to go on from byte 300,000$",
    ):
        fetch(tmp_path, site)
    assert len(site.requests) == 3  # the first brought something; two tries follow that
    assert beside(tmp_path / "cartpole/icm.zip") == ["icm.zip.part", "icm.zip.part.json"]


def test_each_try_that_brings_something_counts_as_the_first(tmp_path, site, monkeypatch):
    answers = iter(range(100_000, len(site.content), 100_000))
    write = Handler.do_GET

    def closes_further_on(handler):
        site.closes_at = next(answers, len(site.content))
        write(handler)

    monkeypatch.setattr(Handler, "do_GET", closes_further_on)
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert len(site.requests) > 3 + len(transfer.BACKOFF_SECONDS)


def test_a_pause_grows_with_each_try(tmp_path, site, monkeypatch):
    pauses = []
    monkeypatch.setattr(transfer, "BACKOFF_SECONDS", (1.0, 2.0, 4.0))
    monkeypatch.setattr(time, "sleep", pauses.append)
    site.codes = [503] * 4
    with pytest.raises(InputError, match=r"code 503, also after 3 further tries"):
        fetch(tmp_path, site)
    assert pauses == [1.0, 2.0, 4.0]


def test_a_server_that_is_busy_for_a_while_is_asked_again(tmp_path, site):
    site.codes = [503, 429]
    assert fetch(tmp_path, site).read_bytes() == site.content


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (403, r"refuses it \(code 403\)"),
        (404, r"no such file \(code 404\)"),
        (401, r"answers with code 401"),
        (204, r"answers with code 204"),
    ],
)
def test_a_code_that_will_not_pass_is_said_at_once(tmp_path, site, code, message):
    site.codes = [code] * 9
    place = re.escape(str(tmp_path / "cartpole/icm.zip"))
    with pytest.raises(
        InputError,
        match=rf"^{site.address}/cartpole/icm\.zip: .*{message}.*give a --mirror, or .* put it at "
        rf"{place}$",
    ):
        fetch(tmp_path, site)
    assert len(site.requests) == 1
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_a_refusal_keeps_the_part(tmp_path, site):
    part = leave_part(tmp_path, site)
    site.codes = [403]
    with pytest.raises(InputError, match="code 403"):
        fetch(tmp_path, site)
    assert part.stat().st_size == 300_000
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert site.requests[-1][1] == "bytes=300000-"


@pytest.mark.parametrize("content", [b"\n<!DOCTYPE html>sign in", b"<html>" * 10_000])
def test_a_web_page_is_no_archive_and_keeps_the_part(tmp_path, site, content):
    part = leave_part(tmp_path, site)
    site.content, site.content_type, site.ranges = content, "text/html", False
    with pytest.raises(InputError, match=r"sends a web page \(HTML\), not a zip; give a --mirror"):
        fetch(tmp_path, site)
    assert part.stat().st_size == 300_000


def test_other_bytes_are_no_archive(tmp_path, site):
    site.content = b"\x1f\x8b\x08 gzip"
    with pytest.raises(InputError, match=r"sends b'\\x1f.*not a zip"):
        fetch(tmp_path, site)
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_a_redirect_is_followed(tmp_path, site):
    site.codes, site.location = [302], "/moved/icm.zip"
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert site.requests[-1][0] == "/moved/icm.zip"


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/icm.zip"])
def test_a_redirect_to_another_protocol_is_refused(tmp_path, site, location):
    site.codes, site.location = [302], location
    with pytest.raises(InputError, match=rf"redirected where this does not follow .*{location}"):
        fetch(tmp_path, site)
    assert len(site.requests) == 1


def test_a_redirect_in_a_circle_is_refused_in_one_line(tmp_path, site):
    site.codes, site.location = [302] * 99, "/cartpole/icm.zip"
    with pytest.raises(InputError, match=r"^[^\n]*infinite loop[^\n]*$"):
        fetch(tmp_path, site)


def test_a_redirect_from_https_to_http_is_refused():
    request = transfer.urllib.request.Request("https://example.org/icm.zip")
    arguments = (None, 302, "Found", {}, "http://example.org/icm.zip")
    with pytest.raises(OSError, match=r"to http://example\.org"):
        transfer._Redirects().redirect_request(request, *arguments)


def test_a_refused_connection_says_the_address_and_the_place(tmp_path, site):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(
        InputError,
        match=rf"^{address}/cartpole/icm\.zip: cannot be reached \(.*refused.*put it at "
        rf"{tmp_path}/cartpole/icm\.zip$",
    ):
        fetch(tmp_path, site, mirror=address)
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_without_a_network_the_address_and_the_place_are_said(tmp_path, site, monkeypatch):
    def no_such_name(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("there is nothing to wait for"))
    with pytest.raises(
        InputError,
        match=r"^https://dl\.fbaipublicfiles\.com/exorl/walker/smm\.zip: cannot be reached "
        rf"\(.*not known\); .* put it at {tmp_path}/walker/smm\.zip$",
    ):
        download(domain="walker", expl_agent="smm", out=tmp_path)


def test_a_network_lost_on_the_way_is_waited_for(tmp_path, site, monkeypatch):
    site.closes_at, site.closings = 300_000, 1
    connect = socket.create_connection
    answers = iter([connect, None, connect])

    def sometimes(*given, **settings):
        answer = next(answers)
        if answer is None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return answer(*given, **settings)

    monkeypatch.setattr(socket, "create_connection", sometimes)
    assert fetch(tmp_path, site).read_bytes() == site.content


def test_a_server_that_stays_silent_is_given_up(tmp_path, site, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=r"gives no answer \(.*timed out\), also after 2"):
            fetch(tmp_path, site, mirror=address)


def test_too_little_room_is_said_before(tmp_path, site, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    needed = f"{len(site.content) / 1e6:,.1f}"
    with pytest.raises(InputError, match=rf"needs {needed} MB; make room.* got 0\.1 MB free"):
        fetch(tmp_path, site)
    assert list((tmp_path / "cartpole").iterdir()) == []


def test_a_disk_that_fills_on_the_way_keeps_what_came(tmp_path, site):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"the disk is full; make room, and run this again"):
            fetch(tmp_path, site)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    site.requests.clear()
    assert fetch(tmp_path, site).read_bytes() == site.content
    assert site.requests[0][1] == "bytes=300000-"
