"""Where ExoRL episodes lie: the files of a folder or zip in order of collection, and their hash."""

import contextlib
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from agentic_bpt.datasets.archive import zip_entries
from agentic_bpt.errors import InputError

MAX_STEPS = 100_000  # of one episode; 100 times the longest task
SELECTION_RULES = ("stratified", "first")

# ExoRL: episode_000000_1000.npz. URLB: 20211105T103412_0_1000.npz (time, index, length).
_EXORL_NAME = re.compile(r"(episode)_(\d+)_(\d+)\.npz", re.ASCII)
_URLB_NAME = re.compile(r"(\d{8}T\d{6})_(\d+)_(\d+)\.npz", re.ASCII)


@dataclass(frozen=True)
class EpisodeFile:
    """Where an episode lies; holds nothing open."""

    source: Path
    """the folder of the episodes, or the zip file"""
    member: str
    """name inside `source`"""
    index: int
    """number of the episode, as its name says it"""
    length: int
    """T, as its name says it"""
    entry: zipfile.ZipInfo | None = None
    """where the zip file holds it; None in a folder"""

    @property
    def name(self) -> str:
        """File name without folders."""
        return PurePosixPath(self.member).name

    @property
    def path(self) -> Path:
        """The file to open: the episode itself, or the zip that holds it."""
        return self.source / self.member if self.entry is None else self.source

    def __str__(self) -> str:
        return f"{self.source}{'/' if self.entry is None else ':'}{self.member}"


def episode_files(source: Path) -> list[EpisodeFile]:
    """List the episodes of `<domain>/<expl_agent>`, its buffer folder, or its zip read in place.

    Returns:
        The files in order of collection, whatever order the file system gives them in.

    Raises:
        InputError: there are none (saying where some lie nearby), or names that cannot be ordered.
    """
    source = Path(source)
    if source.is_file():
        files = _in_zip(source)
    elif source.is_dir():
        files = _in_folder(source)
    else:
        beside = source.with_name(f"{source.name}.zip")
        fix = f"give {beside}" if beside.is_file() else "check the path"
        raise InputError(f"{source}: does not exist; {fix}")
    if not files:
        raise InputError(f"{source}: holds no episodes; {_where_else(source)}")
    return _in_order(files)


def select_episodes(
    files: Sequence[EpisodeFile], *, episodes: int | None, rule: str
) -> list[EpisodeFile]:
    """Choose so many episodes of a collection; the order of collection alone decides which.

    Args:
        files: in order of collection, from one source or several.
        episodes: how many; None for all.
        rule: `stratified` takes the middle one of each of as many equal spans, so early and late
            exploration count alike; `first` takes the earliest.

    Raises:
        InputError: unknown rule, or not so many episodes.
    """
    if rule not in SELECTION_RULES:
        raise InputError(f"select must be one of {', '.join(SELECTION_RULES)}; got {rule!r}")
    if episodes is None:
        return list(files)
    if not 1 <= episodes <= len(files):
        raise InputError(
            f"{files[0].source}: episodes must lie in 1..{len(files)}, as many as there are; got "
            f"{episodes}"
        )
    if rule == "first":
        return list(files[:episodes])
    return [files[(2 * span + 1) * len(files) // (2 * episodes)] for span in range(episodes)]


def spread_episodes(files: Sequence[EpisodeFile], *, at_most: int) -> list[EpisodeFile]:
    """Choose at most so many episodes, spread over the collection."""
    return select_episodes(files, episodes=min(at_most, len(files)), rule="stratified")


def source_hash(files: Sequence[EpisodeFile]) -> str:
    """Hash the names, sizes and checksums of episodes without unpacking any.

    A folder and a zip of it differ: one has checksums of arrays, the other of npz files.

    Returns:
        64 hexadecimal digits of SHA-256.
    """
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name} {_fingerprint(file)}\n".encode())
    return total.hexdigest()


@contextlib.contextmanager
def opened(file: EpisodeFile) -> Iterator[BinaryIO]:
    """Open the file that holds an episode.

    Raises:
        InputError: the system refuses.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(open(file.path, "rb"))
        except OSError as error:
            raise InputError(f"{file}: cannot be opened: {error.strerror}") from error
        yield handle


def _in_folder(folder: Path) -> list[EpisodeFile]:
    holder = folder / "buffer" if (folder / "buffer").is_dir() else folder
    return _episodes(holder, dict.fromkeys(os.listdir(holder)))


def _in_zip(path: Path) -> list[EpisodeFile]:
    if path.suffix == ".npz":
        raise InputError(f"{path}: is a single file; give the folder that holds the episodes")
    with open(path, "rb") as handle:
        entries = {entry.filename: entry for entry in zip_entries(handle, where=str(path))}
    for name in entries:
        if "\\" in name or name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise InputError(
                f"{path}: has a member that points outside of it; do not unpack it, download it "
                f"again; got {name!r}"
            )
    files = _episodes(path, entries)
    folders = sorted({str(PurePosixPath(file.member).parent) for file in files})
    if len(folders) > 1:
        raise InputError(
            f"{path}: must hold the episodes of one folder; unpack it and give one of them; got "
            f"{len(folders)}: {', '.join(folders[:3])}"
        )
    return files


def _episodes(source: Path, entries: Mapping[str, zipfile.ZipInfo | None]) -> list[EpisodeFile]:
    """Read the number and length of each episode from its name."""
    files = []
    for member, entry in entries.items():
        name = PurePosixPath(member).name
        # Unfinished files of write_episode and the shadows of macOS in zips start with a dot.
        if not name.endswith(".npz") or name.startswith("."):
            continue
        match = _matched(name)
        if not match or not 0 < int(match[3]) <= MAX_STEPS:
            raise InputError(
                f"{source}: an episode is named episode_<number>_<length>.npz with a length of "
                f"1 to {MAX_STEPS}; rename it or move it away; got {member!r}"
            )
        files.append(EpisodeFile(source, member, int(match[2]), int(match[3]), entry))
    return files


def _matched(name: str) -> re.Match[str] | None:
    return _EXORL_NAME.fullmatch(name) or _URLB_NAME.fullmatch(name)


def _in_order(files: list[EpisodeFile]) -> list[EpisodeFile]:
    """Sort by the time, if names have one, then by the number: 2 comes before 10."""
    placed: dict[tuple[str, int], EpisodeFile] = {}
    for file in files:
        place = (file.name.split("_")[0], file.index)
        if place in placed:
            raise InputError(
                f"{file}: has the same number as {placed[place].name}, so their order is not "
                "known; remove one of them"
            )
        placed[place] = file
    first, last = min(placed), max(placed)
    if (first[0] == "episode") != (last[0] == "episode"):
        raise InputError(
            f"{files[0].source}: mixes the names of two writers, so the order is not known; keep "
            f"one kind; got {placed[first].name} and {placed[last].name}"
        )
    return [placed[place] for place in sorted(placed)]


def _where_else(source: Path) -> str:
    """Say where episodes lie one or two levels away, or how to get some."""
    nearby: list[Path] = []
    if source.is_dir():
        below = [*source.glob("*"), *source.glob("*/*")]
        nearby = sorted(path for path in below if path.name != "buffer" and _is_source(path))
        # Someone may stand in <domain>/<expl_agent>/video.
        nearby += [path for path in (source.absolute().parent,) if _is_source(path)]
    if nearby:
        more = f" (or one of {len(nearby) - 1} more)" if len(nearby) > 1 else ""
        return f"give {nearby[0]}{more}"
    return (
        "unpack <domain>/<expl_agent>.zip there or give the zip itself, which hold "
        "buffer/episode_000000_1000.npz and so on (data/README.md)"
    )


def _is_source(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".zip"
    holder = path / "buffer" if (path / "buffer").is_dir() else path
    return holder.is_dir() and any(map(_matched, os.listdir(holder)))


def _fingerprint(file: EpisodeFile) -> str:
    """Describe the content by checksums that are already in the file."""
    if file.entry is not None:
        return f"{file.entry.file_size} {file.entry.CRC}"
    with opened(file) as handle:
        try:
            entries = zip_entries(handle, where=str(file))
        except InputError:
            # Reading it will say what is wrong; here it only must differ from a whole file.
            handle.seek(0)
            checksum = 0
            while block := handle.read(2**20):
                checksum = zlib.crc32(block, checksum)
            return f"unreadable {checksum}"
    return " ".join(f"{entry.filename} {entry.file_size} {entry.CRC}" for entry in entries)
