"""The main job on embedded episodes: from data to a table and a picture, resumable at any point."""

import dataclasses
import time
from pathlib import Path

from rich.console import Console

from agentic_bpt.datasets.store import ingest
from agentic_bpt.evaluating import Evaluation, evaluate_run, is_evaluated
from agentic_bpt.exploration.collect import collect
from agentic_bpt.methods import preset_of
from agentic_bpt.progress import counting
from agentic_bpt.reports.results import read_results, write_report
from agentic_bpt.reports.table import build_table, print_table
from agentic_bpt.run import train_run

TASK = "cartpole_swingup"
ACTION_REPEAT = 4
"""Control steps each action is held: an episode is 250 decisions. Never mixed with repeat 1."""
EPISODES = {"rnd": 180, "td3": 64}
"""Embedded episodes of each collector: many that never saw the reward, and the replay of one that
learns the task, cut off before it has learnt it. Made by, for each:
agentic-bpt collect --task cartpole_swingup --expl-agent AGENT --episodes N --action-repeat 4"""
EMBEDDED = Path(__file__).resolve().parents[1] / "data" / "quickstart" / "cartpole"
EVALUATION = Evaluation(trajectories=4, chains=10)
METHODS = ("at", "dt", "bc10")


def run_quickstart(workdir: Path, *, collect_anew: bool, seed: int) -> list[Path]:
    """Collect or take the embedded episodes, train, evaluate, and report; skip what is done.

    Gives the result files, one a method.

    Raises:
        InputError: the folder is in use or holds runs of other settings.
    """
    start = time.perf_counter()
    console = Console()
    sources = embedded_sources()
    if collect_anew or not all(source.exists() for source in sources):
        sources = [_collect(expl_agent, workdir / "exorl") for expl_agent in EPISODES]
    store = ingest(*sources, task=TASK, relabel="stored", out=workdir / "stores").path
    results = []
    for method in METHODS:
        run = workdir / f"{method}-seed{seed}"
        experiment = dataclasses.replace(preset_of(method, "cpu"), store=str(store), seed=seed)
        train_run(experiment, run)
        result = run / EVALUATION.file_name()
        if not is_evaluated(run, EVALUATION, steps=experiment.loop.steps):
            with counting(f"evaluate {method}", "environment steps") as advance:
                evaluate_run(run, EVALUATION, progress=advance)
        results.append(result)
    files = write_report(results, workdir / "report")
    print_table(build_table(read_results(results)), console)
    console.print(f"Picture: {files.png}\nReport: {files.markdown}")
    console.print(f"{time.perf_counter() - start:.0f} s; run again, it goes on where it stopped.")
    return results


def embedded_sources() -> list[Path]:
    """Name the archives of episodes that come with the repository."""
    return [EMBEDDED / f"{expl_agent}.zip" for expl_agent in EPISODES]


def _collect(expl_agent: str, out: Path) -> Path:
    """Collect what is embedded anew; gives the folder to ingest."""
    result = collect(
        TASK,
        expl_agent=expl_agent,
        episodes=EPISODES[expl_agent],
        out=out,
        seed=0,
        action_repeat=ACTION_REPEAT,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return result.folder
