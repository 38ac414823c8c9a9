import io
import re
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from agentic_bpt.datasets import archive
from agentic_bpt.datasets.exorl import (
    episode_files,
    read_episode,
    write_episode,
)
from agentic_bpt.errors import InputError
from tests.builders import (
    make_episode,
    make_folder,
    make_zip,
    read_only_episode,
    save_arrays,
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html>", r"web page \(HTML\).*download it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"", r"is empty \(0 bytes\)"),
        (b"\x89PNG", "is not a zip or npz file"),
    ],
)
def test_what_is_no_zip_is_named_for_what_it_is(tmp_path, content, message):
    zip_path = tmp_path / "rnd.zip"
    zip_path.write_bytes(content)
    with pytest.raises(InputError, match=rf"rnd\.zip: .*{message}"):
        episode_files(zip_path)
    npz_path = tmp_path / "buffer" / "episode_000000_5.npz"
    npz_path.parent.mkdir()
    npz_path.write_bytes(content)
    with pytest.raises(InputError, match=rf"episode_000000_5\.npz: .*{message}"):
        read_only_episode(npz_path.parent)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = write_episode(tmp_path, index=0, episode=make_episode())
    content = path.read_bytes()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"episode_000000_5.npz: .*(download|copy)"):
            read_only_episode(tmp_path)


def test_a_zip_cut_anywhere_is_refused(tmp_path):
    path = make_zip(make_folder(tmp_path), tmp_path / "rnd.zip")
    content = path.read_bytes()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"rnd\.zip: is (empty|cut short).*download or copy"):
            episode_files(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>503</html>", r"is a web page \(HTML\).*download it again"),
        (b"", r"is empty \(0 bytes\)"),
    ],
)
def test_a_member_that_is_no_episode_is_named_for_what_it_is(tmp_path, content, message):
    path = tmp_path / "rnd.zip"
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr("buffer/episode_000000_5.npz", content)
    with pytest.raises(InputError, match=rf"rnd\.zip:buffer/episode_000000_5\.npz: {message}"):
        read_episode(episode_files(path)[0], domain="cartpole")


def test_no_flipped_bit_changes_numbers_unseen(tmp_path):
    good = make_episode()
    path = write_episode(tmp_path, index=0, episode=good)
    content = path.read_bytes()
    messages = []
    for place in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            got = read_only_episode(tmp_path)
        except InputError as error:
            messages.append(str(error))
        else:
            for name in ("observation", "action", "reward", "discount"):
                np.testing.assert_array_equal(getattr(got, name), getattr(good, name))
    assert len(messages) > 150
    assert all(re.search(r"episode_000000_5\.npz: .", message) for message in messages)
    assert not any("\n" in message for message in messages)


def test_a_flipped_byte_of_an_array_is_found_by_its_checksum(tmp_path):
    path = save_arrays(tmp_path)  # not compressed: only the checksum can tell
    content = bytearray(path.read_bytes())
    place = content.find(make_episode().observation.tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"key 'observation': is damaged .*download or copy it again"
    ):
        read_only_episode(tmp_path)


def test_a_flipped_byte_in_a_zip_is_found(tmp_path):
    path = make_zip(make_folder(tmp_path), tmp_path / "rnd.zip")
    first = episode_files(path)[0]
    assert first.entry is not None
    content = bytearray(path.read_bytes())
    content[first.entry.header_offset + 30 + len(first.member) + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"rnd\.zip:buffer/episode_000000_5\.npz: is damaged"):
        read_episode(episode_files(path)[0], domain="cartpole")


class _Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickled_objects_are_refused_unread(tmp_path):
    sprung = tmp_path / "sprung"
    save_arrays(tmp_path / "buffer", observation=np.array([_Trap(str(sprung))], object))
    with pytest.raises(InputError, match=r"'observation': holds pickled Python objects.*float32"):
        read_only_episode(tmp_path / "buffer")
    assert not sprung.exists()


@pytest.mark.parametrize("header", [b"", b"\x93NUMPY\x03\x00", b"\x93NUMPY\x01\x00\x05\x00{bad}"])
def test_a_member_that_is_no_array_is_refused(tmp_path, header):
    path = tmp_path / "episode_000000_5.npz"
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr("observation.npy", header)
    with pytest.raises(InputError, match=r"'observation': is not a NumPy array.*numpy.savez"):
        read_only_episode(tmp_path)


def test_a_header_that_promises_more_than_there_is_reserves_no_memory(tmp_path):
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(tmp_path / "episode_000000_5.npz", "w") as archive_file:
        archive_file.writestr("observation.npy", stream.getvalue())
    with pytest.raises(InputError, match=r"'observation': holds 0 bytes where its header says"):
        read_only_episode(tmp_path)


def test_a_member_that_declares_too_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1000)
    save_arrays(tmp_path, observation=np.zeros((6, 50), "f4"))
    monkeypatch.setattr(archive, "_unpack", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(InputError, match=r"'observation': unpacks to 1,328 bytes.*download"):
        read_only_episode(tmp_path)


def test_a_member_that_holds_more_than_it_declares_is_not_unpacked_further(tmp_path):
    path = tmp_path / "rnd.zip"
    name = "buffer/episode_000000_5.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive_file:
        archive_file.writestr(name, bytes(32 * 2**20))
    content = bytearray(path.read_bytes())
    directory = content.rfind(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 1000)  # APPNOTE 4.3.12: its size
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"rnd\.zip:.*5\.npz: is damaged .*size is wrong"):
            read_episode(episode_files(path)[0], domain="cartpole")
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def test_encrypted_and_strangely_packed_members_are_refused(tmp_path):
    path = tmp_path / "episode_000000_5.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive_file:
        archive_file.writestr("observation.npy", bytes(100))
    with pytest.raises(InputError, match=r"'observation': is packed in a way .*\(method 14\)"):
        read_only_episode(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"'observation': is encrypted: unpack it"):
        read_only_episode(tmp_path)
