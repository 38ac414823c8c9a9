"""Cells as tasks of a Ray cluster, all of whose machines see the same files."""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic_bpt.errors import REASON_LAST, InputError

DIED = -signal.SIGKILL
"""Return code of a cell whose worker is gone, as of a process that was killed."""
ANSWER_SECONDS = 5.0
"""In which a cluster must take a connection."""
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def connect(address: str) -> None:
    """Join a cluster: "auto" for the one of this machine, or its address.

    Raises:
        InputError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'agentic-bpt[ray]'") from None
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host:  # Ray itself waits for minutes
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--ray {address}: no cluster can be joined; got: {reason}") from None


class RayProcess:
    """A command that runs somewhere on the cluster, and looks like a process here.

    Args:
        command: to run, in the working directory of this process.
        log: file that gets what it says.
    """

    def __init__(self, command: Sequence[str], log: Path):
        import ray  # pyright: ignore[reportMissingImports]

        accelerators = 1 if ray.cluster_resources().get("GPU") else 0
        # Not retried by Ray: whoever waits tells a death from a failure, and says so.
        task: Any = ray.remote(num_cpus=1, num_gpus=accelerators, max_retries=0)(_run)
        self._result = task.remote(list(command), os.getcwd(), str(log.resolve()))
        self._log = log
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Give the return code, or None while it runs."""
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import (  # pyright: ignore[reportMissingImports]
            RayError,
            RayTaskError,
        )

        if self.returncode is None and ray.wait([self._result], timeout=0)[0]:
            try:
                self.returncode = ray.get(self._result)
            except RayTaskError as error:  # it was not even started, as without a log folder
                raise InputError(
                    f"--ray: a machine of the cluster cannot run {self._log}: all must see the "
                    f"same files; got: {str(error).strip().splitlines()[-1]}"
                ) from None
            except RayError:
                self.returncode = DIED
        return self.returncode

    def terminate(self) -> None:
        """End it."""
        import ray  # pyright: ignore[reportMissingImports]

        ray.cancel(self._result, force=True)

    def wait(self) -> None:
        """End it: on Ctrl-C nobody is left to whom it could report."""
        self.terminate()


def _run(command: list[str], where: str, log: str) -> int:
    """Be the task: run the command in a process that does not outlive this worker."""
    with open(log, "ab") as handle:
        return subprocess.Popen(
            command,
            cwd=where,
            stdout=handle,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
            env=os.environ | REASON_LAST,
        ).wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
