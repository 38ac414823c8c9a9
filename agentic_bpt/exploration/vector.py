"""Several environments of one task in lock-step, in this process and in workers beside it."""

import contextlib
import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

import numpy as np

from agentic_bpt.environments.tasks import Environment, task_spec
from agentic_bpt.errors import InputError

_RESET, _STEP = b"r", b"s"  # first byte of a message to a worker
_END_SECONDS = 5.0  # that a worker gets to end by itself


class VectorStep(NamedTuple):
    """What follows one decision in each of N environments, or their resets."""

    observations: np.ndarray  # float32 [N, O]
    rewards: np.ndarray  # float64 [N], 0 at a reset
    physics: np.ndarray  # float64 [N, P]


class VectorEnvironment:
    """N environments that are reset and stepped together.

    What they do is a function of seeds and actions alone, however many workers step them. The
    first share of them is stepped in this process, so one worker starts no process.

    Args:
        task: full name of one of the ExoRL tasks.
        action_repeat: control steps for which each decision is held.
        environments: N.
        workers: processes, this one included, that share the environments.

    Raises:
        InputError: the action repeat or the number of workers cannot be.
    """

    def __init__(self, task: str, *, action_repeat: int, environments: int, workers: int) -> None:
        if not 1 <= workers <= environments:
            raise InputError(
                f"workers must lie in 1..{environments}, the number of environments, got {workers}"
            )
        self.spec = spec = task_spec(task)
        self.action_repeat = action_repeat
        self.environments = environments
        counts = [len(part) for part in np.array_split(np.arange(environments), workers)]
        self._share = _Share(task, action_repeat, counts[0])
        self._splits = np.cumsum(counts)[:-1]
        self._columns = np.cumsum([spec.observation_width, 1])
        self._connections: list[Connection] = []
        self._processes = []
        context = multiprocessing.get_context("spawn")  # a fork would copy running threads
        for count in counts[1:]:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, task, action_repeat, count), daemon=True
            )
            process.start()
            theirs.close()  # so that a worker's end is seen here
            self._connections.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.terminate()

    @property
    def episode_steps(self) -> int:
        """Decisions of an episode."""
        return self.spec.episode_steps // self.action_repeat

    def reset(self, seeds: Sequence[int]) -> VectorStep:
        """Start in each environment the episode that its seed determines."""
        return self._exchange(_RESET, np.array(seeds, np.int64))

    def step(self, actions_NA: np.ndarray) -> VectorStep:
        """Take one decision in each environment."""
        return self._exchange(_STEP, np.asarray(actions_NA, np.float32))

    def _exchange(self, kind: bytes, values_N: np.ndarray) -> VectorStep:
        """Hand out the work, do the own share of it, and gather the rest."""
        own, *others = np.split(values_N, self._splits)
        try:
            for connection, part in zip(self._connections, others, strict=True):
                connection.send_bytes(kind + part.tobytes())
            rows = [self._share.answer(kind, own)]
            for connection in self._connections:
                answer = np.frombuffer(connection.recv_bytes(), np.float64)
                rows.append(answer.reshape(-1, rows[0].shape[1]))
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise InputError(
                "a process that steps environments was ended, perhaps for lack of memory: run the "
                "same again to go on, with fewer workers"
            ) from error
        observations, rewards, physics = np.split(np.concatenate(rows), self._columns, axis=1)
        return VectorStep(observations.astype(np.float32), rewards[:, 0], physics)


class _Share:
    """The environments of one process."""

    def __init__(self, task: str, action_repeat: int, count: int) -> None:
        self._environments = [Environment(task, action_repeat=action_repeat) for _ in range(count)]

    def answer(self, kind: bytes, values_N: np.ndarray) -> np.ndarray:
        """Reset or step; gives float64 rows of observation, reward and physics state.

        float64 holds the observation's float32 exactly.
        """
        rows = []
        for environment, value in zip(self._environments, values_N, strict=True):
            if kind == _RESET:
                observation_O, reward = environment.reset(int(value)), 0.0
            else:
                observation_O, reward, _ = environment.step(value)
            rows.append(np.concatenate([observation_O, [reward], environment.physics_state()]))
        return np.stack(rows)


def _serve(connection: Connection, task: str, action_repeat: int, count: int) -> None:
    """Answer until the other end is closed, or gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that collects
    share = _Share(task, action_repeat, count)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            message = connection.recv_bytes()
            kind, body = message[:1], message[1:]
            dtype = np.int64 if kind == _RESET else np.float32
            values_N = np.frombuffer(body, dtype)
            if kind == _STEP:
                values_N = values_N.reshape(count, -1)
            connection.send_bytes(share.answer(kind, values_N).tobytes())
