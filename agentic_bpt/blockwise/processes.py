"""Many processes, on one host or many, joined into one JAX runtime with one list of devices.

JAX's own coordinator aborts a process when another does not come, without saying which. So there
is a roll call before it, at the coordinator's address: every rank reports to rank 0, and hears
from it that all are there, or which are missing.
"""

import contextlib
import socket
import time

import jax

RETRY_SECONDS = 0.2


def join_processes(
    coordinator: str, processes: int, rank: int, *, timeout_seconds: float = 300.0
) -> None:
    """Join this process to the others, before anything else asks JAX for a device.

    After it `jax.devices()` are those of all processes. Every process runs the same program.

    Args:
        coordinator: "host:port" of rank 0, the same in every process.
        processes: how many there are.
        rank: of this process, 0 .. processes - 1.
        timeout_seconds: how long to wait for the others.

    Raises:
        ValueError: the coordinator is not host:port or its port is taken, or the rank is too large.
        TimeoutError: processes did not join in time; one line says which ranks.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"coordinator must be host:port of rank 0, got {coordinator!r}")
    if not 0 <= rank < processes:
        raise ValueError(f"rank must be in 0 .. {processes - 1}, got {rank}")
    deadline = time.monotonic() + timeout_seconds
    if rank == 0:
        missing = _call_roll(int(port), processes, deadline)
    else:
        missing = _report(host, int(port), rank, deadline, timeout_seconds)
    if missing:
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise TimeoutError(
            f"{names} of {processes} did not join at {coordinator} within {timeout_seconds:g} s: "
            f"start all ranks with this coordinator; got as far as rank {rank}"
        )
    # The only collectives between processes that a CPU has; other devices have their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator, processes, rank, initialization_timeout=max(1, round(timeout_seconds))
    )


def _call_roll(port: int, processes: int, deadline: float) -> list[int]:
    """Wait as rank 0 for all others and tell each of them who is missing; gives the same."""
    try:
        listener = socket.create_server(("", port), backlog=processes)
    except OSError as error:
        raise ValueError(f"coordinator: port {port} cannot be used here, got: {error}") from error
    present: dict[int, socket.socket] = {}
    with listener:
        while len(present) < processes - 1 and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
                connection.settimeout(max(left, RETRY_SECONDS))
                word = connection.recv(16).strip()
            except OSError:  # late, or gone again: it may come back
                continue
            if word.isdigit() and 0 < int(word) < processes:
                present[int(word)] = connection
    missing = [rank for rank in range(1, processes) if rank not in present]
    for connection in present.values():
        with connection, contextlib.suppress(OSError):  # it may be gone
            connection.sendall(" ".join(map(str, missing)).encode() + b"\n")
            connection.recv(1)  # it hangs up first, so that the port is free at once
    return missing


def _report(host: str, port: int, rank: int, deadline: float, timeout_seconds: float) -> list[int]:
    """Report to rank 0 and hear from it who is missing: rank 0 itself, if it does not answer."""
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=RETRY_SECONDS) as connection:
                # Rank 0 may have started later and waits as long as this process does.
                connection.settimeout(timeout_seconds + RETRY_SECONDS)
                connection.sendall(f"{rank}\n".encode())
                answer = connection.recv(4096)
        except OSError:
            answer = b""
        if answer:
            return [int(word) for word in answer.split()]
        time.sleep(RETRY_SECONDS)
    return [0]
