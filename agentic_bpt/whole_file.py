"""Writes files of which no half is ever seen: beside their place, then renamed."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or leave what was there; its folder is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
