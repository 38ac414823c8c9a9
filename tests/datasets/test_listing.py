import os
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt.datasets.exorl import (
    episode_files,
    read_episode,
    source_hash,
    write_episode,
)
from agentic_bpt.datasets.listing import EpisodeFile, select_episodes
from agentic_bpt.errors import InputError
from tests.builders import make_episode, make_folder, make_zip, save_arrays


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
        save_arrays(tmp_path, name)
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
    twice = save_arrays(folder / "buffer", "episode_000001_6.npz")
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


def collection(episodes: int) -> list[EpisodeFile]:
    return [
        EpisodeFile(Path("rnd"), f"episode_{number:06d}_5.npz", number, 5)
        for number in range(episodes)
    ]


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [
        (10, 5, [1, 3, 5, 7, 9]),
        (10, 2, [2, 7]),
        (10, 1, [5]),
        (10, 3, [1, 5, 8]),
        (7, 7, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_stratified_choice_takes_the_middle_of_equal_spans(total, count, expected):
    chosen = select_episodes(collection(total), episodes=count, rule="stratified")
    assert [file.index for file in chosen] == expected


@pytest.mark.parametrize("total", [1, 2, 9, 10, 23])
def test_a_stratified_choice_has_one_of_each_span(total):
    for count in range(1, total + 1):
        chosen = select_episodes(collection(total), episodes=count, rule="stratified")
        assert sorted({file.index for file in chosen}) == [file.index for file in chosen]
        for span, file in enumerate(chosen):  # spans may begin and end within an episode
            assert span * total / count < file.index + 1
            assert file.index < (span + 1) * total / count


def test_the_first_and_all_are_in_order_of_collection():
    files = collection(9)
    assert select_episodes(files, episodes=4, rule="first") == files[:4]
    assert select_episodes(files, episodes=None, rule="first") == files
    assert select_episodes(files, episodes=None, rule="stratified") == files


@pytest.mark.parametrize("count", [0, -1, 10])
def test_more_episodes_than_there_are_or_none_are_refused(count):
    with pytest.raises(InputError, match=rf"rnd: episodes must lie in 1\.\.9, .*; got {count}$"):
        select_episodes(collection(9), episodes=count, rule="first")


def test_an_unknown_choice_is_named_with_the_known_ones():
    with pytest.raises(InputError, match="one of stratified, first; got 'last'"):
        select_episodes(collection(9), episodes=None, rule="last")
