"""Says in a result file what made it."""

import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def command_line() -> str:
    """Give the command of this process, as a shell takes it."""
    script = Path(sys.argv[0])
    of_package = script.suffix != ".py" or script.name == "__main__.py"
    program = ["agentic-bpt"] if of_package else ["python", str(script)]
    return shlex.join([*program, *sys.argv[1:]])


def made_by(*packages: str, command: str | None = None) -> dict[str, Any]:
    """Give the command, and the versions of this package and of those it stood on.

    `command` is another one than this process's, where a process works for it.
    """
    names = ("agentic-bpt", *packages)
    return {
        "command": command or command_line(),
        "versions": {name: version(name) for name in names},
    }
