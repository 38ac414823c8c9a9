"""The commands about episodes: collecting, fetching, ingesting and exchanging them.

As in `cli`, every import of a heavy package stands inside the command that needs it.
"""

import sys
from pathlib import Path
from typing import Literal

import tyro


def collect(
    *,
    task: str,
    expl_agent: Literal["random", "rnd", "td3"] = "rnd",
    episodes: int = 100,
    out: Path = Path("data/exorl"),
    name: str = "",
    seed: int = 0,
    action_repeat: int = 1,
    environments: int = 1,
    workers: int = 1,
) -> None:
    """Collect episodes in ExoRL's format: OUT/<domain>/<name>/buffer/episode_*.npz.

    The same command goes on where it was stopped and gives the same episodes. Ctrl-C keeps whole
    episodes.

    Args:
        task: Such as walker_stand; its reward is stored.
        expl_agent: random; rnd, an actor-critic that seeks what a network cannot yet predict and
            never sees the reward; td3, an actor-critic on the task's reward, its whole replay kept.
        episodes: Episodes in all.
        out: Folder of data sets.
        name: Of the collection's folder, such as td3_walk; that of the explorer otherwise.
        seed: The same seed gives the same episodes.
        action_repeat: Control steps each action is held; other than 1 is a protocol of its own.
        environments: Episodes that run side by side; must divide EPISODES. An explorer learns from
            a round of them when all are over, so many learn later.
        workers: Processes that step the environments, at most ENVIRONMENTS; the episodes do not
            depend on it.
    """
    from agentic_bpt.exploration.collect import collect as collect_episodes

    result = collect_episodes(
        task,
        expl_agent=expl_agent,
        episodes=episodes,
        out=out,
        name=name,
        seed=seed,
        action_repeat=action_repeat,
        environments=environments,
        workers=workers,
    )
    print(f"{result.folder}: {result.episodes} episodes")
    if result.interrupted:
        raise KeyboardInterrupt


def download(
    *,
    domain: str,
    expl_agent: str,
    out: Path = Path("data/exorl"),
    mirror: str | None = None,
) -> None:
    """Fetch a published ExoRL archive to OUT/<domain>/<expl_agent>.zip; prints its path.

    Stopped, it goes on with the same command. An archive that is there already is checked and not
    fetched.

    Args:
        domain: One of cartpole, cheetah, jaco, point_mass_maze, quadruped, walker.
        expl_agent: One of aps, diayn, disagreement, icm, icm_apt, proto, random, rnd, smm.
        out: Folder of data sets.
        mirror: Address of another server that holds <domain>/<expl_agent>.zip, http or https.
    """
    from agentic_bpt.datasets.download import download as download_archive
    from agentic_bpt.progress import counting

    with counting(f"download {domain}/{expl_agent}", "bytes") as advance:
        path = download_archive(
            domain=domain, expl_agent=expl_agent, out=out, mirror=mirror, progress=advance
        )
    print(path)


def ingest(
    sources: tyro.conf.Positional[tuple[Path, ...]],
    *,
    task: str,
    relabel: Literal["control", "exorl", "stored"] = "control",
    episodes: int | None = None,
    select: Literal["stratified", "first"] = "stratified",
    out: Path = Path("data/stores"),
    keep_physics: bool = False,
    skip_bad: bool = False,
    workers: int | None = None,
    seed: int = 0,
) -> None:
    """Make an HDF5 store from ExoRL episodes, with the rewards of a task; prints its path.

    Nothing is relabelled twice: the same source, task and versions find the store made before. A
    stopped ingest goes on with the same command.

    Args:
        sources: ExoRL folders <domain>/<expl_agent>, their buffer/, or zips (read in place);
            several are put into one store.
        task: Full name, such as walker_run.
        relabel: control sets the action of each row, as when it was collected; exorl leaves it at
            0 and gives ExoRL's own numbers; stored keeps the rewards of the files.
        episodes: Take only so many of the episodes; all otherwise.
        select: Which: one from the middle of each of as many equal spans of the collection, or the
            first (biased to early exploration).
        out: Folder of stores.
        keep_physics: Keep the physics states as well, of which the rewards of hidden tasks are made
            (train --hidden-task). The store gets 1.6 times as large (walker).
        skip_bad: Leave bad episodes out and count them; otherwise the first one ends it.
        workers: Processes that read and relabel; otherwise one a core, or only this one where that
            is quicker.
        seed: Of the split into training and validation episodes.
    """
    from agentic_bpt.datasets.store import ingest as ingest_episodes
    from agentic_bpt.progress import counting

    with counting(f"ingest {task}", "episodes") as advance:
        result = ingest_episodes(
            *sources,
            task=task,
            relabel=relabel,
            episodes=episodes,
            select=select,
            out=out,
            keep_physics=keep_physics,
            skip_bad=skip_bad,
            workers=workers,
            seed=seed,
            progress=advance,
        )
    for line in result.skipped:
        print(f"left out: {line}", file=sys.stderr)
    state = "found" if result.reused else "made"
    left_out = f", {len(result.skipped)} left out" if result.skipped else ""
    print(f"{state}: {result.episodes} episodes{left_out}", file=sys.stderr)
    print(result.path)


def export_minari(source: tyro.conf.Positional[Path], *, dataset_id: str, task: str) -> None:
    """Write ExoRL episodes as a Minari dataset, from which `import-minari` gives the same arrays.

    Args:
        source: ExoRL folder <domain>/<expl_agent>, its buffer/, or zip.
        dataset_id: As Minari names it, such as exorl/walker-rnd-v0; written under
            MINARI_DATASETS_PATH or ~/.minari/datasets.
        task: Full name of the task that the stored rewards belong to.
    """
    from agentic_bpt.datasets.exchange_minari import export_minari as export
    from agentic_bpt.progress import counting

    with counting(f"export {dataset_id}", "episodes") as advance:
        result = export(source, dataset_id=dataset_id, task=task, progress=advance)
    _print_exchange(result)


def import_minari(
    dataset_id: tyro.conf.Positional[str],
    *,
    domain: str,
    expl_agent: str,
    out: Path = Path("data/exorl"),
) -> None:
    """Write a local Minari dataset as ExoRL episodes: OUT/<domain>/<expl_agent>/buffer/.

    Args:
        dataset_id: As Minari names it; `minari download` gets it, nothing is downloaded here.
        domain: ExoRL's word for the body, such as walker.
        expl_agent: Name for the collector, a folder.
        out: Folder of data sets.
    """
    from agentic_bpt.datasets.exchange_minari import import_minari as import_dataset
    from agentic_bpt.progress import counting

    with counting(f"import {dataset_id}", "episodes") as advance:
        result = import_dataset(
            dataset_id, domain=domain, expl_agent=expl_agent, out=out, progress=advance
        )
    _print_exchange(result)


def import_d4rl(
    file: tyro.conf.Positional[Path],
    *,
    domain: str,
    expl_agent: str,
    out: Path = Path("data/exorl"),
) -> None:
    """Write a D4RL-style HDF5 file as ExoRL episodes: OUT/<domain>/<expl_agent>/buffer/.

    Args:
        file: HDF5 with observations, actions, rewards, terminals, timeouts; next_observations,
            infos/qpos and infos/qvel if there.
        domain: ExoRL's word for the body, such as walker.
        expl_agent: Name for the collector, a folder.
        out: Folder of data sets.
    """
    from agentic_bpt.datasets.exchange_d4rl import import_d4rl as import_file
    from agentic_bpt.progress import counting

    with counting(f"import {file}", "rows") as advance:
        result = import_file(file, domain=domain, expl_agent=expl_agent, out=out, progress=advance)
    _print_exchange(result)


def _print_exchange(result) -> None:
    for line in result.notes:
        print(f"note: {line}", file=sys.stderr)
    print(result.folder)


def audit(
    source: tyro.conf.Positional[Path],
    *,
    task: str,
    episodes: int | None = 10,
) -> None:
    """Replay stored episodes action by action and say where the physics leaves the stored path.

    Exits with 1 if any episode drifts.

    Args:
        source: ExoRL folder <domain>/<expl_agent>, its buffer/, or zip.
        task: Full name of a task of the domain, such as walker_walk.
        episodes: At most so many, spread over the collection; None: all.
    """
    from agentic_bpt.datasets.audit import audit as audit_episodes
    from agentic_bpt.progress import counting

    with counting(f"audit {task}", "episodes") as advance:
        replays = audit_episodes(source, task=task, episodes=episodes, progress=advance)
    _print_replays(replays)
    if any(replay.drift_step is not None for replay in replays):
        raise SystemExit(1)


def _print_replays(replays) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("episode", "steps", "drifts from", "state", "observation", "reward", "stored")
    table.caption = "largest errors; stored: of the reward in the file, which is of one task only"
    for replay in replays:
        errors = (
            replay.state_error,
            replay.observation_error,
            replay.reward_error,
            replay.stored_error,
        )
        table.add_row(
            replay.name,
            str(replay.steps),
            "-" if replay.drift_step is None else f"step {replay.drift_step}",
            *(f"{error:.1e}" for error in errors),
        )
    Console(width=None if Console().is_terminal else 120).print(table)
