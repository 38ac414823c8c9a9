"""Relabelling, ingest, reading and collecting beside their plain peers in one run."""

import multiprocessing
import os
import re
import resource
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from agentic_bpt.bench.collect import collector_table
from agentic_bpt.bench.layouts import reading_speeds
from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.datasets.store import ingest
from agentic_bpt.environments.tasks import TASKS, tasks_of_domain
from agentic_bpt.exploration.collect import collect
from agentic_bpt.made_by import made_by
from agentic_bpt.reports.results import write_json

ROUNDS = 3
"""Contenders are timed this often, in turns, and the fastest round counts."""
LOOP_STEPS = 100
"""Steps of the plain loop: at half a millisecond each, the most that a short run can take."""
WORK_SECONDS = 0.1
"""Relabelling at once, so that handing out work does not count."""
INGEST_TASK = "walker_run"
INGEST_EPISODES = 24
COPIES = 80
"""Times that each episode is ingested under another name: 1.92 million steps."""


def bench_data(*, out: Path | None) -> None:
    """Print, and write to `out`, how the work on data compares with its plain peers."""
    console = Console(width=120)
    document: dict[str, Any] = {
        **made_by("dm_control", "mujoco", "numpy", "h5py"),
        "cores": len(os.sched_getaffinity(0)),
        "rounds": ROUNDS,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document["relabelling"] = _relabelling(folder, console)
        document["ingest"], store = _ingesting(folder, console)
        document["reading"] = _reading(store, folder, console)
    document["collecting"] = collector_table(console)
    if out is not None:
        write_json(out, document)


def _relabelling(folder: Path, console: Console) -> list[dict[str, Any]]:
    """Time a random episode of each domain in each of its tasks, with the control set."""
    cores = len(os.sched_getaffinity(0))
    console.print(
        "Relabelling, microseconds a step (loop: set_state and get_reward, one state at a time):"
    )
    console.print(f"| task | loop | ours, 1 core | times | ours, {cores} cores | times | error |")
    console.print("|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        for task, spec in TASKS.items():
            source = folder / spec.domain / "random"
            if not source.exists():
                _collect_random(tasks_of_domain(spec.domain)[0], folder, episodes=1)
            episode = read_episode(episode_files(source)[0], domain=spec.domain)
            row = {"task": task, **_relabelling_of(task, episode, pool, cores)}
            rows.append(row)
            console.print(
                f"| {task} | {row['loop']:.1f} | {row['one_core']:.2f} "
                f"| {row['loop'] / row['one_core']:.0f} | {row['all_cores']:.2f} "
                f"| {row['loop'] / row['all_cores']:.0f} | {row['error']:.0e} |"
            )
    return rows


def _relabelling_of(
    task: str, episode: Episode, pool: ProcessPoolExecutor, cores: int
) -> dict[str, float]:
    from agentic_bpt.environments.rewards import physics_rewards_oracle

    if episode.physics is None:
        raise ValueError(f"{task}: collected episodes hold physics, got none")
    states_TP = episode.physics[1 : 1 + LOOP_STEPS]
    actions_TA = episode.action[1 : 1 + LOOP_STEPS]
    steps = len(episode.action) - 1
    _relabel_often(task, episode, 1)  # loads the model; then the second call is timed
    began = time.perf_counter()
    _relabel_often(task, episode, 1)
    repeats = max(1, round(WORK_SECONDS / (time.perf_counter() - began)))
    seconds = _best_seconds(
        {
            "loop": lambda: physics_rewards_oracle(task, states_TP, actions_TA),
            "one_core": lambda: _relabel_often(task, episode, repeats),
            "all_cores": lambda: list(
                pool.map(_relabel_often, *zip(*[(task, episode, repeats)] * cores, strict=True))
            ),
        }
    )
    expected_T = physics_rewards_oracle(task, states_TP, actions_TA)
    got_T = relabel(episode, task=task, mode="control")[:LOOP_STEPS]
    return {
        "loop": seconds["loop"] / len(states_TP) * 1e6,
        "one_core": seconds["one_core"] / (repeats * steps) * 1e6,
        "all_cores": seconds["all_cores"] / (cores * repeats * steps) * 1e6,
        "error": float(np.abs(got_T - expected_T).max()),
    }


def _relabel_often(task: str, episode: Episode, repeats: int) -> None:
    for _ in range(repeats):
        relabel(episode, task=task, mode="control")


def _best_seconds(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time contenders in turns; a round before, which loads models, does not count."""
    best = dict.fromkeys(contenders, float("inf"))
    for counts in [False] + [True] * ROUNDS:
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            if counts:
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def _ingesting(folder: Path, console: Console) -> tuple[list[dict[str, Any]], Path]:
    """Time whole ingests, each in a process of its own, and give the store that they made."""
    source, archive = _many_episodes(folder)
    files = episode_files(source)
    steps = sum(file.length for file in files)
    megabytes = _uncompressed_bytes(source) / 1e6
    cores = len(os.sched_getaffinity(0))
    console.print(
        f"Ingest of {steps / 1e6:.2f} million steps of {INGEST_TASK} ({megabytes:,.0f} MB "
        "uncompressed), starting processes and loading models included:"
    )
    console.print("| from | steps | processes | s | MB/s | peak MB | peak MB of a worker |")
    console.print("|---|---:|---:|---:|---:|---:|---:|")
    rows, stores = [], []
    runs = [(archive, 1, len(files) // 10), (archive, 1, len(files)), (source, 1, len(files))]
    runs += [(path, cores, len(files)) for path in (archive, source) if cores > 1]
    for number, (path, workers, episodes) in enumerate(runs):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as pool:
            row = pool.submit(_ingest, path, folder / f"out{number}", workers, episodes).result()
        stores.append(row.pop("store"))
        share = episodes / len(files)
        row |= {
            "source": "zip" if path == archive else "folder",
            "steps": share * steps,
            "workers": workers,
            "megabytes_per_second": share * megabytes / row["seconds"],
        }
        rows.append(row)
        console.print(
            f"| {row['source']} | {row['steps']:,.0f} | {workers} | {row['seconds']:.1f} "
            f"| {row['megabytes_per_second']:.0f} | {row['peak_bytes'] / 1e6:.0f} "
            f"| {row['worker_peak_bytes'] / 1e6:.0f} |"
        )
    return rows, stores[1]  # of all episodes


def _ingest(source: Path, out: Path, workers: int, episodes: int) -> dict[str, Any]:
    """Ingest and measure this process and its workers."""
    began = time.perf_counter()
    result = ingest(source, task=INGEST_TASK, out=out, workers=workers, episodes=episodes)
    seconds = time.perf_counter() - began
    # Not ru_maxrss, which starts with that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers > 1 else 0
    return {
        "seconds": seconds,
        "peak_bytes": int(peak[1]) * 1024 if peak else 0,
        "worker_peak_bytes": children * 1024,
        "store": result.path,
    }


def _many_episodes(folder: Path) -> tuple[Path, Path]:
    """Make a folder of many episodes, and a zip of it, from a few that are collected."""
    few = _collect_random(INGEST_TASK, folder / "few", episodes=INGEST_EPISODES)
    source = folder / "many"
    source.mkdir()
    for copy in range(COPIES):
        for file in episode_files(few):
            number = copy * INGEST_EPISODES + file.index
            os.link(file.path, source / f"episode_{number:06d}_{file.length}.npz")
    archive = folder / "many.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as handle:
        for file in episode_files(source):
            handle.write(file.path, f"buffer/{file.name}")
    return source, archive


def _collect_random(task: str, root: Path, *, episodes: int) -> Path:
    """Collect episodes with a uniform random policy."""
    return collect(task, expl_agent="random", episodes=episodes, out=root, progress=False).folder


def _uncompressed_bytes(source: Path) -> int:
    """Add up the arrays of all episodes."""
    files = episode_files(source)
    with zipfile.ZipFile(files[0].path) as archive:
        return len(files) * sum(entry.file_size for entry in archive.infolist())


def _reading(store: Path, folder: Path, console: Console) -> dict[str, dict[str, float]]:
    """Time random whole episodes, once for each layout that a store could have."""
    episodes = INGEST_EPISODES * COPIES // 4
    speeds = reading_speeds(store, folder, episodes=episodes)
    console.print(f"Random whole episodes ({episodes}), MB/s in one process:")
    console.print("| layout | cold | of memmap | warm | of memmap |")
    console.print("|---|---:|---:|---:|---:|")
    peer = speeds["numpy.memmap"]
    for name, speed in speeds.items():
        console.print(
            f"| {name} | {speed['cold']:,.0f} | {speed['cold'] / peer['cold']:.2f} "
            f"| {speed['warm']:,.0f} | {speed['warm'] / peer['warm']:.2f} |"
        )
    return speeds
