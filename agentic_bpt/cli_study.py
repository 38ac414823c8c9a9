"""The command line of studies: tables and curves over many runs, why a run is bad, benchmarks.

Every import of a heavy package stands inside the command that needs it.
"""

from pathlib import Path
from typing import Annotated, Literal

import tyro

PresetName = Literal["cpu", "gpu", "paper"]


def table5(
    *,
    data: Path,
    workdir: Path = Path("table5"),
    preset: PresetName = "cpu",
    tasks: tuple[str, ...] = (),
    seeds: int = 3,
    only: tuple[str, ...] = (),
    episodes: int | None = None,
    steps: int | None = None,
    workers: int = 1,
    ray: str | None = None,
    video: bool = False,
    strict: bool = False,
    dry_run: bool = False,
    device: str | None = None,
) -> None:
    """Fill the paper's Table 5: every method on every task, several seeds, with intervals.

    Each cell (task, method, seed) is a run folder of its own. A suite that was stopped, also by
    kill -9, goes on with the same command; a cell that the device has too little memory for is
    reported `oom` and not tried. The report is written anew after every cell.

    Args:
        data: Folder of <domain>/<collector>, ExoRL folders or zips; all collectors of a domain are
            taken together. A task without episodes is printed "not run".
        workdir: Where stores, runs and the report go.
        preset: cpu, minutes a cell on two cores; gpu, a day a task and seed on one H100 by its
            predicted operations; paper, the published configuration.
        tasks: Full names of tasks; all nine of the paper otherwise.
        seeds: Trainings of each cell.
        only: Run only cells whose name matches one of these patterns, such as "walker_walk at-*".
        episodes: Ingest only so many episodes of each domain, spread over the collection.
        steps: Updates of every method, instead of the preset's: few for a quick look, more for
            transformers that are still learning (6400 in preset cpu, about 20 minutes a cell).
        workers: Cells at a time; on CPUs each has its share of the cores.
        ray: Run them on a Ray cluster instead ("auto" or its address, extra `ray`): the same files,
            in one place that all its machines see.
        video: Film the first chain of each method's first seed, for the page.
        strict: Fail where a result file cannot be read; it is left out and counted otherwise.
        dry_run: Only say what each cell is predicted to take.
        device: With --dry-run: on this one, which need not be present (`agentic-bpt memory` lists
            them).
    """
    from agentic_bpt.suites.table5 import TASKS
    from agentic_bpt.suites.table5_run import run_table5

    good = run_table5(
        data=data,
        workdir=workdir,
        preset=preset,
        tasks=tasks or TASKS,
        seeds=seeds,
        only=only,
        episodes=episodes,
        steps=steps,
        workers=workers,
        ray=ray,
        video=video,
        strict=strict,
        dry_run=dry_run,
        device=device,
    )
    if not good:
        raise SystemExit(1)


def compare_trajectories(
    *,
    store: Path,
    workdir: Path = Path("trajectory-count"),
    preset: PresetName = "cpu",
    trajectories: tuple[int, ...] = (1, 2, 4, 8, 16),
    test: tuple[int, ...] = (1, 4, 8),
    prompts: tuple[int, ...] = (0,),
    seeds: int = 3,
    steps: int | None = None,
    equal_time: bool = False,
    workers: int = 1,
    ray: str | None = None,
    dry_run: bool = False,
) -> None:
    """Draw return against the number of trajectories N, the curve that the paper leaves out.

    Held equal over N are the updates and the timesteps of an update (N x batch), where one chain
    is not more already (4,000 in preset cpu); DT, TD3, TD3+BC and the best of the data are marked.
    Resumable, as `table5` is.

    Args:
        store: Made by `agentic-bpt ingest`.
        workdir: Where runs and the report go.
        preset: As in `table5`.
        trajectories: N in training.
        test: Episodes in a row n at test; every N is tested at every n.
        prompts: Dataset trajectories that stand before the rollouts, worst to best; 0 is the
            published protocol.
        seeds: Trainings of each N.
        steps: Updates, instead of the preset's.
        equal_time: Train each N but the slowest once more, with as many updates as take the time of
            the slowest's; an update of each is timed side by side first.
        workers: Runs at a time; on CPUs each has its share of the cores.
        ray: As in `table5`.
        dry_run: Only say what each run is predicted to take.
    """
    from agentic_bpt.suites.trajectory_count_run import run_trajectory_count

    good = run_trajectory_count(
        store=store,
        workdir=workdir,
        preset=preset,
        trajectories=trajectories,
        test=test,
        prompts=prompts,
        seeds=seeds,
        steps=steps,
        equal_time=equal_time,
        workers=workers,
        ray=ray,
        dry_run=dry_run,
    )
    if not good:
        raise SystemExit(1)


def in_context(
    run: tyro.conf.Positional[Path],
    *,
    trajectories: int = 4,
    chains: int = 16,
    prompt_trajectories: int = 2,
    seed: int = 0,
) -> None:
    """Roll a run that was trained with --hidden-task out on held-out tasks of its family.

    Acted side by side: after trajectories of the right task, of a foreign task, of the foreign
    episodes with the right task's rewards, of the right task with rewards shuffled, and after
    nothing. Prints the return along the chain in each and writes a result file into the run's
    folder. Of tasks that were named one by one none is held out: those are evaluated.

    Args:
        run: Folder of a run.
        trajectories: Episodes in a row in each chain, n.
        chains: Chains; they take the held-out tasks in turn, ExoRL's own first.
        prompt_trajectories: Dataset trajectories before the rollouts; 0 leaves out the prompted
            conditions (dt takes no prompt).
        seed: Of the evaluation.
    """
    from agentic_bpt.evaluating import evaluate_hidden
    from agentic_bpt.evaluation.in_context import InContext, lines_of
    from agentic_bpt.progress import counting

    options = InContext(trajectories, chains, prompt_trajectories, seed)
    with counting(f"in-context {run}", "environment steps") as advance:
        document = evaluate_hidden(run, options, progress=advance)
    print("\n".join(lines_of(document)))
    print(f"{run / options.file_name()}: written")


def diagnose(run: tyro.conf.Positional[Path], *, chains: int = 32, seed: int = 0) -> None:
    """Say in words why an agent is bad: imitation, target, clipping, completion, use of context.

    Writes diagnosis.json into the run's folder.

    Args:
        run: Folder of a run; its store must be where it was.
        chains: Chains of the data that are looked at.
        seed: Of their drawing.
    """
    from agentic_bpt.diagnosis import diagnose_run
    from agentic_bpt.diagnosis_text import render

    print(render(diagnose_run(run, chains=chains, seed=seed)))


def bench(
    what: Annotated[
        Literal["train", "core", "decode", "rollout", "data", "mesh"], tyro.conf.Positional
    ],
    *,
    positions: tuple[int, ...] = (4096,),
    heads: tuple[int, ...] = (1, 4),
    threads: tuple[int, ...] = (1, 2),
    out: Path | None = None,
) -> None:
    """Measure side by side in one run, as ratios against peers.

    Args:
        what: train: tokens/s of the layers beside the same on jax.nn.dot_product_attention, reading
            of a store. core: the layers beside the paper's schemes,
            jax.nn.dot_product_attention, and, with the extra `bench`, ringattention and PyTorch.
            decode: one new token for caches of so many positions, beside reading the cache.
            rollout: environment steps/s of 16 chains of 16 trajectories, and what they go to.
            data: relabelling, ingest, reading and collecting of episodes beside their plain peers
            (a quarter of an hour, most of it for the explorers).
            mesh: the layers over 1 to 8 forced host devices: bytes a device, and what splitting
            costs where nothing is gained by it.
        positions: Positions of a sequence (core, decode; train: the first).
        heads: Attention heads (core, decode).
        threads: Cores to pin a measurement to (core).
        out: Also write the numbers to this JSON file.
    """
    if what == "core":
        from agentic_bpt.bench.core import bench_core

        bench_core(positions=positions, heads=heads, threads=threads, out=out)
    elif what == "decode":
        from agentic_bpt.bench.decode import bench_decode

        bench_decode(positions=positions, heads=heads, out=out)
    elif what == "rollout":
        from agentic_bpt.bench.rollout import bench_rollout

        bench_rollout(out)
    elif what == "mesh":
        from agentic_bpt.bench.mesh import bench_mesh

        bench_mesh(out)
    elif what == "data":
        from agentic_bpt.bench.data import bench_data

        bench_data(out=out)
    else:
        from agentic_bpt.bench.train import bench_train

        bench_train(positions=positions[0], out=out)
