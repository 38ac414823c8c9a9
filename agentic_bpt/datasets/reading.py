"""Episode files as trajectories of a task, in order: read, relabelled, checked, on all cores."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import Episode, read_episode, trajectory_of
from agentic_bpt.datasets.listing import EpisodeFile
from agentic_bpt.datasets.relabel import check_relabel, control_states, relabel
from agentic_bpt.datasets.trajectory import Trajectory, check_trajectory
from agentic_bpt.environments.tasks import TaskSpec
from agentic_bpt.errors import InputError

# Fewer steps are done in two seconds by this process, while others would still be starting.
PARALLEL_STEPS = 1_000_000
_WAITING_PER_WORKER = 4  # episodes read ahead; bounds memory to some MB a worker


class Labelled(NamedTuple):
    """An episode as a trajectory of a task."""

    trajectory: Trajectory
    """with the rewards of the task"""
    action_repeat: int
    """control steps for which each action was held"""
    physics_TKP: np.ndarray | None
    """float64, the state after each of the K = `action_repeat` control steps, if asked for"""


def worker_count(files: Sequence[EpisodeFile], workers: int | None) -> int:
    """Decide how many processes read; 1 stands for this one.

    Raises:
        InputError: fewer than 1 are asked for.
    """
    if workers is None:
        steps = sum(file.length for file in files)
        return len(os.sched_getaffinity(0)) if steps >= PARALLEL_STEPS else 1
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    return workers


def require_rewards(
    files: Sequence[EpisodeFile],
    *,
    spec: TaskSpec,
    mode: str,
    keep_physics: bool,
    skip_bad: bool,
) -> None:
    """Say before the work what would end it: rewards that cannot be had from these episodes.

    Looks at the first and the last episode of each source. What else is wrong with a file is said
    in its turn.

    Raises:
        InputError: one of them has no physics, say; with `skip_bad`, all of them.
    """
    first = {file.source: file for file in reversed(files)}
    last = {file.source: file for file in files}
    looked_at = {str(file): file for file in (*first.values(), *last.values())}
    faults = []
    for file in looked_at.values():
        with contextlib.suppress(InputError):
            episode = read_episode(file, domain=spec.domain)
            try:
                check_relabel(episode, task=spec.name, mode=mode)
                if keep_physics:
                    _require_physics(episode)
            except InputError as error:
                faults.append(error)
    if faults and (not skip_bad or len(faults) == len(looked_at)):
        raise faults[0]


def read_in_order(
    files: Sequence[EpisodeFile], *, spec: TaskSpec, mode: str, keep_physics: bool, workers: int
) -> Generator[Labelled | InputError, None, None]:
    """Read files as trajectories of a task, a few at a time.

    Close the generator where it may be left early. A script that asks for more than one worker
    needs `if __name__ == "__main__":`, as always with processes that are spawned.

    Args:
        files: in the order wanted.
        spec: the task.
        mode: where its rewards come from, one of `RELABEL_MODES`.
        keep_physics: give the physics as well.
        workers: processes; 1 reads in this one.

    Yields:
        For each file the trajectory, or what is wrong with it.

    Raises:
        BrokenProcessPool: a worker has been killed.
    """
    if workers == 1:
        for file in files:
            yield _attempt(file, spec, mode, keep_physics)
        return
    # Spawned, not forked: a fork copies the locks of threads that do not run in the copy.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    waiting: deque[Future[Labelled | InputError]] = deque()
    try:
        for file in files:
            with _interrupts_held():
                waiting.append(pool.submit(_attempt, file, spec, mode, keep_physics))
            if len(waiting) == _WAITING_PER_WORKER * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attempt(
    file: EpisodeFile, spec: TaskSpec, mode: str, keep_physics: bool
) -> Labelled | InputError:
    """Read one file; runs in a worker."""
    try:
        episode = read_episode(file, domain=spec.domain)
        physics_TKP = None
        if keep_physics:
            _require_physics(episode)
            physics_TKP = control_states(episode, task=spec.name)
        rewards_T = relabel(episode, task=spec.name, mode=mode, states_TKP=physics_TKP)
        trajectory = check_trajectory(
            trajectory_of(episode, rewards_T),
            where=str(file),
            observation_width=spec.observation_width,
            action_width=spec.action_width,
        )
    except InputError as error:
        return error
    return Labelled(trajectory, episode.action_repeat, physics_TKP)


def _require_physics(episode: Episode) -> None:
    """Refuse an episode whose physics cannot be kept."""
    if episode.physics is None:
        raise InputError(
            f"{episode.name}: key 'physics': is needed to keep the physics; ingest without "
            "--keep-physics, or other episodes; got no such key"
        )


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start workers that never see Ctrl-C: they inherit the mask, and their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this worker when its parent is gone, even killed; otherwise it would wait for ever."""
    parent = multiprocessing.parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()
