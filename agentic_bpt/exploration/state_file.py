"""The file from which a stopped collection goes on: what it was asked for, and what it learned."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.errors import InputError
from agentic_bpt.whole_file import write_whole

FORMAT = 2
_HEADER = "header"
_LEARNED = "learned/"


class CollectionState(NamedTuple):
    """Where a collection stands after its last complete episode."""

    request: dict[str, Any]
    """What determines the episodes: task, explorer, seed, action repeat, environments, settings."""
    episodes: int
    """Complete episodes."""
    learned: dict[str, np.ndarray]
    """The explorer's arrays by name."""


def save_state(path: Path, state: CollectionState) -> None:
    """Write the state, whole or not at all."""
    header = {"format": FORMAT, "request": state.request, "episodes": state.episodes}
    arrays = {_HEADER: np.array(json.dumps(header))}
    arrays |= {_LEARNED + name: array for name, array in state.learned.items()}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_whole(path, content.getvalue())


def load_state(path: Path) -> CollectionState:
    """Read a state.

    Raises:
        InputError: the file is not one that `save_state` of this version wrote.
    """
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            header = json.loads(str(arrays[_HEADER]))
            learned = {
                name.removeprefix(_LEARNED): arrays[name]
                for name in arrays.files
                if name.startswith(_LEARNED)
            }
        version, request, episodes = header["format"], header["request"], header["episodes"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: cannot be read as the state of a collection: collect into another folder, "
            f"got {type(error).__name__}: {error}"
        ) from error
    if version != FORMAT:
        raise InputError(
            f"{path}: was written by another version: collect into another folder, "
            f"expected format {FORMAT}, got {version}"
        )
    return CollectionState(request, episodes, learned)
