import io
import json
import os
import random
import re
import shutil
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt.datasets import archive
from agentic_bpt.datasets.exorl import (
    episode_files,
    read_episode,
    source_hash,
    trajectory_of,
    write_episode,
)
from agentic_bpt.errors import InputError
from tests.builders import arrays_of, make_episode, make_folder, make_zip


def read_only_file(folder: Path, domain: str = "cartpole"):
    (file,) = episode_files(folder)
    return read_episode(file, domain=domain)


def saved(folder: Path, name: str = "episode_000000_5.npz", /, **arrays: np.ndarray) -> Path:
    """Save an episode whose arrays are the made-up ones, changed; None leaves one out."""
    kept = {**arrays_of(make_episode()), **arrays}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    np.savez(path, allow_pickle=True, **{k: v for k, v in kept.items() if v is not None})
    return path


# Reading and writing


def test_reference_episodes_are_read_as_numpy_reads_them(reference_episodes):
    said = json.loads((reference_episodes / "reference.json").read_text())
    assert len(said) == 12
    for key, facts in said.items():
        domain = key.split("/")[0]
        folder = reference_episodes / domain / "random"
        file = next(file for file in episode_files(folder) if key.endswith(file.name))
        episode = read_episode(file, domain=domain)
        with np.load(file.path) as stored:
            for name in ("observation", "action", "reward", "discount", "physics"):
                assert list(stored[name].shape) == facts["keys"][name][0]
                values = getattr(episode, name)
                assert values.dtype == (np.float64 if name == "physics" else np.float32)
                expected = stored[name].astype(values.dtype).reshape(values.shape)
                np.testing.assert_array_equal(values, expected)
        total = episode.reward[1:].sum(dtype=np.float64)
        assert abs(total - facts["online_return"]) <= 1e-6 * max(1, facts["online_return"])


@pytest.mark.parametrize("domain", ["cartpole", "quadruped"])
def test_what_is_written_is_read_again(tmp_path, domain):
    episode = make_episode(domain, steps=7)
    path = write_episode(tmp_path, index=12, episode=episode)
    assert path.name == "episode_000012_7.npz"
    again = read_only_file(tmp_path, domain)
    assert (again.name, again.action_repeat) == (path.name, 1)
    for name in ("observation", "action", "reward", "discount", "physics"):
        np.testing.assert_array_equal(getattr(again, name), getattr(episode, name))
        assert getattr(again, name).flags.writeable


def test_written_files_have_exorls_keys_and_types(tmp_path, reference_episodes):
    reference = next((reference_episodes / "walker/random/buffer").iterdir())
    path = write_episode(tmp_path, index=0, episode=make_episode("walker", steps=1000))
    with np.load(reference) as expected, np.load(path, allow_pickle=False) as written:
        assert set(written.files) == set(expected.files)
        for key in written.files:
            assert written[key].shape == expected[key].shape
            if key != "action":  # float64 in these references, float32 in the published archives
                assert written[key].dtype == expected[key].dtype
        assert written["action"].dtype == np.float32


def test_writing_is_deterministic_and_leaves_nothing_else(tmp_path):
    episode = make_episode(steps=7)
    first = write_episode(tmp_path / "a", index=0, episode=episode)
    second = write_episode(tmp_path / "b", index=0, episode=episode)
    assert first.read_bytes() == second.read_bytes()
    assert os.listdir(tmp_path / "a") == [first.name]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match=r"No space"):
        write_episode(tmp_path, index=0, episode=make_episode())
    assert os.listdir(tmp_path) == []


def test_action_repeat_is_kept_and_left_out_at_1(tmp_path):
    once = write_episode(tmp_path / "once", index=0, episode=make_episode())
    write_episode(tmp_path / "four", index=0, episode=make_episode(action_repeat=4))
    with np.load(once) as stored:
        assert "action_repeat" not in stored.files
    assert read_only_file(tmp_path / "four").action_repeat == 4


def test_four_maze_rewards_are_kept(tmp_path):
    rewards_R4 = np.arange(24, dtype=np.float32).reshape(6, 4)
    episode = make_episode("point_mass_maze", reward=rewards_R4)
    write_episode(tmp_path, index=0, episode=episode)
    again = read_only_file(tmp_path, "point_mass_maze")
    np.testing.assert_array_equal(again.reward, rewards_R4)


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", ">f8"])
def test_other_widths_of_floats_are_converted(tmp_path, dtype):
    arrays = {key: values.astype(dtype) for key, values in arrays_of(make_episode()).items()}
    saved(tmp_path, **arrays)
    episode = read_only_file(tmp_path)
    assert episode.observation.dtype == episode.action.dtype == np.dtype("float32")
    assert episode.physics is not None
    assert episode.physics.dtype == np.dtype("float64")
    expected = arrays["observation"].astype("float32")
    np.testing.assert_array_equal(episode.observation, expected)


def test_columns_first_and_keys_of_skill_collectors_are_read(tmp_path):
    arrays = arrays_of(make_episode())
    in_columns = np.asfortranarray(arrays["observation"])
    saved(tmp_path, observation=in_columns, skill=np.array([{"a": 1}], object))
    np.testing.assert_array_equal(read_only_file(tmp_path).observation, arrays["observation"])


def test_physics_may_be_missing(tmp_path):
    write_episode(tmp_path, index=0, episode=make_episode(physics=None))
    assert read_only_file(tmp_path).physics is None


def test_an_action_stands_in_the_row_of_the_observation_it_was_taken_in():
    episode = make_episode(steps=3)
    trajectory = trajectory_of(episode, np.array([0.25, 0.5, 1]))
    for t in range(3):
        assert (trajectory.observations[t] == episode.observation[t]).all()
        assert (trajectory.actions[t] == episode.action[t + 1]).all()
    assert trajectory.rewards.tolist() == [0.25, 0.5, 1]
    assert (trajectory.final_observation == episode.observation[3]).all()


# Order and hash


def test_order_is_that_of_collection_whatever_the_file_system_gives(tmp_path, monkeypatch):
    folder = make_folder(tmp_path, episodes=12)
    # A long run grows the number: as text, 1000001 would come before 999999.
    shutil.copy(folder / "buffer/episode_000000_5.npz", folder / "buffer/episode_999999_5.npz")
    shutil.copy(folder / "buffer/episode_000000_5.npz", folder / "buffer/episode_1000001_5.npz")
    names = os.listdir(folder / "buffer")
    random.Random(1).shuffle(names)
    monkeypatch.setattr(os, "listdir", lambda _: names)
    assert [file.index for file in episode_files(folder)] == [*range(12), 999999, 1000001]


def test_urlb_names_are_ordered_by_time_then_number(tmp_path):
    names = [
        "20211105T103412_9_5.npz",
        "20211105T103412_10_5.npz",
        "20211106T000000_0_5.npz",
    ]
    for name in reversed(names):
        saved(tmp_path, name)
    files = episode_files(tmp_path)
    assert [file.member for file in files] == names
    assert files[1].length == 5
    assert read_episode(files[1], domain="cartpole").name == names[1]


def test_the_folder_its_buffer_and_its_zip_hold_the_same_episodes(tmp_path):
    folder = make_folder(tmp_path)
    sources = [folder, folder / "buffer", make_zip(folder, tmp_path / "rnd.zip")]
    by_source = [
        [read_episode(file, domain="cartpole") for file in episode_files(source)]
        for source in sources
    ]
    assert [episode.name for episode in by_source[0]] == [
        f"episode_00000{index}_5.npz" for index in range(3)
    ]
    for episodes in by_source[1:]:
        for got, expected in zip(episodes, by_source[0], strict=True):
            assert got.name == expected.name
            np.testing.assert_array_equal(got.observation, expected.observation)


def test_the_hash_changes_with_content_names_and_order_only(tmp_path):
    folder = make_folder(tmp_path / "a")
    original = source_hash(episode_files(folder))
    assert source_hash(episode_files(make_folder(tmp_path / "b"))) == original
    buffer = folder / "buffer"
    os.utime(buffer / "episode_000001_5.npz", (0, 0))
    assert source_hash(episode_files(folder)) == original
    write_episode(buffer, index=1, episode=make_episode(seed=99))
    changed = source_hash(episode_files(folder))
    (buffer / "episode_000002_5.npz").rename(buffer / "episode_000007_5.npz")  # same order
    assert len({original, changed, source_hash(episode_files(folder))}) == 3


def test_the_hash_of_a_zip_changes_with_content(tmp_path):
    folder = make_folder(tmp_path)
    first = source_hash(episode_files(make_zip(folder, tmp_path / "first.zip")))
    second = source_hash(episode_files(make_zip(folder, tmp_path / "second.zip")))
    write_episode(folder / "buffer", index=1, episode=make_episode(seed=99))
    third = source_hash(episode_files(make_zip(folder, tmp_path / "third.zip")))
    assert first == second != third


def test_the_hash_takes_broken_files_too(tmp_path):
    folder = make_folder(tmp_path)
    broken = folder / "buffer" / "episode_000002_5.npz"
    hashes = {source_hash(episode_files(folder))}
    for content in (b"<html>", b"<body>"):
        broken.write_bytes(content)
        hashes.add(source_hash(episode_files(folder)))
    assert len(hashes) == 3


# Bad sources


def test_a_missing_source_is_named_with_the_zip_beside_it(tmp_path):
    with pytest.raises(InputError, match=r"cartpole/rnd: does not exist; check the path"):
        episode_files(tmp_path / "cartpole/rnd")
    make_zip(make_folder(tmp_path), tmp_path / "cartpole" / "icm.zip")
    with pytest.raises(InputError, match=r"icm: does not exist; give .*/cartpole/icm\.zip"):
        episode_files(tmp_path / "cartpole/icm")


def test_an_empty_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(InputError, match=rf"{tmp_path}: holds no episodes; unpack .*\.zip"):
        episode_files(tmp_path)


@pytest.mark.parametrize("given", [".", "cartpole", "cartpole/rnd/video"])
def test_a_folder_that_is_off_names_the_right_one(tmp_path, given):
    folder = make_folder(tmp_path)
    (folder / "video").mkdir()
    with pytest.raises(InputError, match=rf"holds no episodes; give {folder}$"):
        episode_files(tmp_path / given)


def test_a_folder_that_holds_a_zip_names_it(tmp_path):
    folder = make_folder(tmp_path / "elsewhere")
    path = make_zip(folder, tmp_path / "rnd.zip")
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=rf"give {path}$"):
        episode_files(tmp_path)


def test_one_episode_is_no_source(tmp_path):
    folder = make_folder(tmp_path)
    with pytest.raises(InputError, match=r"is a single file; give the folder"):
        episode_files(folder / "buffer/episode_000000_5.npz")


@pytest.mark.parametrize(
    "name", ["episode_0_0.npz", "episode_0_99999999.npz", "episode_0.npz", "data.npz"]
)
def test_names_that_do_not_say_number_and_length_are_refused(tmp_path, name):
    folder = make_folder(tmp_path)
    (folder / "buffer" / name).write_bytes(b"")
    with pytest.raises(
        InputError, match=f"episode_<number>_<length>.npz.*move it away; got '{name}"
    ):
        episode_files(folder)


def test_unfinished_and_hidden_files_are_passed_over(tmp_path):
    folder = make_folder(tmp_path)
    for name in (".episode_000009_5.npz.part", "._episode_000009_5.npz", "settings.json"):
        (folder / "buffer" / name).write_bytes(b"")
    assert len(episode_files(folder)) == 3


def test_an_order_that_is_not_known_is_refused(tmp_path):
    folder = make_folder(tmp_path)
    twice = saved(folder / "buffer", "episode_000001_6.npz")
    with pytest.raises(InputError, match=r"same number as .*remove one"):
        episode_files(folder)
    twice.rename(folder / "buffer" / "20211105T103412_9_5.npz")
    with pytest.raises(InputError, match=r"mixes the names of two writers"):
        episode_files(folder)


@pytest.mark.parametrize(
    "member", ["../episode_000000_5.npz", "/etc/episode_000000_5.npz", "a\\..\\b.npz", "a/../../b"]
)
def test_a_zip_that_points_outside_is_refused(tmp_path, member):
    path = tmp_path / "rnd.zip"
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr(member, b"")
    with pytest.raises(
        InputError, match=r"rnd\.zip: has a member that points outside.*do not unpack"
    ):
        episode_files(path)


def test_a_zip_of_several_collectors_is_refused(tmp_path):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr("rnd/buffer/episode_000000_5.npz", b"")
        archive_file.writestr("icm/buffer/episode_000001_5.npz", b"")
    with pytest.raises(InputError, match=r"one folder; unpack it.*got 2: icm/buffer, rnd/buffer"):
        episode_files(path)


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
        read_only_file(npz_path.parent)


# Bad episodes


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = write_episode(tmp_path, index=0, episode=make_episode())
    content = path.read_bytes()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"episode_000000_5.npz: .*(download|copy)"):
            read_only_file(tmp_path)


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
            got = read_only_file(tmp_path)
        except InputError as error:
            messages.append(str(error))
        else:
            for name in ("observation", "action", "reward", "discount"):
                np.testing.assert_array_equal(getattr(got, name), getattr(good, name))
    assert len(messages) > 150
    assert all(re.search(r"episode_000000_5\.npz: .", message) for message in messages)
    assert not any("\n" in message for message in messages)


def test_a_flipped_byte_of_an_array_is_found_by_its_checksum(tmp_path):
    path = saved(tmp_path)  # not compressed: only the checksum can tell
    content = bytearray(path.read_bytes())
    place = content.find(make_episode().observation.tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"key 'observation': is damaged .*download or copy it again"
    ):
        read_only_file(tmp_path)


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
    saved(tmp_path / "buffer", observation=np.array([_Trap(str(sprung))], object))
    with pytest.raises(InputError, match=r"'observation': holds pickled Python objects.*float32"):
        read_only_file(tmp_path / "buffer")
    assert not sprung.exists()


@pytest.mark.parametrize("header", [b"", b"\x93NUMPY\x03\x00", b"\x93NUMPY\x01\x00\x05\x00{bad}"])
def test_a_member_that_is_no_array_is_refused(tmp_path, header):
    path = tmp_path / "episode_000000_5.npz"
    with zipfile.ZipFile(path, "w") as archive_file:
        archive_file.writestr("observation.npy", header)
    with pytest.raises(InputError, match=r"'observation': is not a NumPy array.*numpy.savez"):
        read_only_file(tmp_path)


def test_a_header_that_promises_more_than_there_is_reserves_no_memory(tmp_path):
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(tmp_path / "episode_000000_5.npz", "w") as archive_file:
        archive_file.writestr("observation.npy", stream.getvalue())
    with pytest.raises(InputError, match=r"'observation': holds 0 bytes where its header says"):
        read_only_file(tmp_path)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("action", None, "got none named action"),
        (
            "observation",
            np.zeros((5, 5), "f4"),
            r"5 steps, so 6 rows.*rename it; got shape \[5, 5\]",
        ),
        ("action", np.zeros((7, 1), "f4"), r"5 steps, so 6 rows.*got shape \[7, 1\]"),
        ("reward", np.zeros((), "f4"), r"5 steps, so 6 rows.*got shape \[\]"),
        ("observation", np.zeros((6, 9), "f4"), "must have width 5 in domain cartpole; no domain"),
        ("reward", np.zeros((6, 4), "f4"), "must have width 1 in domain cartpole"),
        ("physics", np.zeros((6, 57)), "width 4 .* quadruped.* got width 57"),
        ("observation", np.full((6, 5), "x"), "must hold numbers.*got dtype <U1"),
        ("action_repeat", np.array(0), "whole number of at least 1, got int64 0"),
        ("action_repeat", np.array([2, 2]), "one whole number"),
        ("action_repeat", np.array(2.5), "whole number of at least 1, got float64 2.5"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, key, values, message):
    saved(tmp_path, **{key: values})
    with pytest.raises(InputError, match=rf"episode_000000_5\.npz: .*{key}.*{message}"):
        read_only_file(tmp_path)


def test_an_episode_of_another_domain_names_that_domain(tmp_path):
    folder = make_folder(tmp_path, domain="walker")
    file = episode_files(folder)[0]
    message = "'observation': must have width 17 in domain cheetah; it looks like walker: choose a"
    with pytest.raises(InputError, match=message):
        read_episode(file, domain="cheetah")


@pytest.mark.parametrize("key", ["observation", "action", "reward", "discount", "physics"])
def test_the_row_of_a_number_that_is_not_finite_is_named(tmp_path, key):
    values = arrays_of(make_episode())[key]
    values[4, 0] = np.nan
    saved(tmp_path, **{key: values})
    with pytest.raises(InputError, match=rf"5\.npz: key '{key}': .*leave.* got nan in row 4"):
        read_only_file(tmp_path)


def test_a_float64_too_large_for_float32_is_not_finite(tmp_path):
    observation_RO = arrays_of(make_episode())["observation"].astype(np.float64)
    observation_RO[3, 2] = 1e300
    saved(tmp_path, observation=observation_RO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"'observation': .*got inf in row 3"):
            read_only_file(tmp_path)


def test_actions_outside_their_range_are_refused_and_rounding_is_not(tmp_path):
    action_RA = arrays_of(make_episode())["action"].astype(np.float64)
    action_RA[2, 0] = 1 + 1e-6
    saved(tmp_path, action=action_RA)
    read_only_file(tmp_path)
    action_RA[3, 0] = -1.1
    saved(tmp_path, action=action_RA)
    with pytest.raises(
        InputError, match=r"'action': must lie in \[-1, 1\].* got -1\.1\d* in row 3"
    ):
        read_only_file(tmp_path)


def test_a_file_that_vanished_is_named(tmp_path):
    path = write_episode(tmp_path, index=0, episode=make_episode())
    (file,) = episode_files(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"episode_000000_5.npz: cannot be opened: No such file"):
        read_episode(file, domain="cartpole")


# Bombs


def test_a_member_that_declares_too_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1000)
    saved(tmp_path, observation=np.zeros((6, 50), "f4"))
    monkeypatch.setattr(archive, "_unpack", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(InputError, match=r"'observation': unpacks to 1,328 bytes.*download"):
        read_only_file(tmp_path)


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
        read_only_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"'observation': is encrypted: unpack it"):
        read_only_file(tmp_path)
