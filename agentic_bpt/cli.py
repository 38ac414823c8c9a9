"""The command line: arguments to function calls, and a user's mistake to one line.

Every import of a heavy package stands inside the command that needs it, so that `--help` answers
at once.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from agentic_bpt.errors import InputError

app = tyro.extras.SubcommandApp()

MethodName = Literal["at", "dt", "bc10"]
LayoutName = Literal["return-state-action-reward", "return-state-action-reward-completion", "joint"]
SchemeName = Literal["vanilla", "memory_efficient", "blockwise"]


@app.command
def quickstart(
    *,
    workdir: Path = Path("quickstart"),
    collect: bool = False,
    seed: int = 0,
) -> None:
    """Run the whole job on embedded cartpole episodes: train AT, DT and BC-10%, compare, draw.

    Takes under ten minutes on two cores and downloads nothing. Run again, it goes on where it
    stopped. Episodes are 250 decisions, each held for 4 control steps.

    Args:
        workdir: Where runs, the report and the picture go.
        collect: Collect the episodes anew instead of taking the embedded ones.
        seed: Of initial parameters and batches.
    """
    from agentic_bpt.quickstart import run_quickstart

    run_quickstart(workdir, collect_anew=collect, seed=seed)


@app.command
def collect(
    *,
    task: str,
    expl_agent: Literal["random", "rnd", "td3"] = "rnd",
    episodes: int = 100,
    out: Path = Path("data/exorl"),
    seed: int = 0,
    action_repeat: int = 1,
) -> None:
    """Collect episodes in ExoRL's format: OUT/<domain>/<expl_agent>/buffer/episode_*.npz.

    The same command goes on where it was stopped and gives the same episodes. Ctrl-C keeps whole
    episodes.

    Args:
        task: Such as walker_stand; its reward is stored.
        expl_agent: random; rnd, an actor-critic that seeks what a network cannot yet predict and
            never sees the reward; td3, an actor-critic on the task's reward, its whole replay kept.
        episodes: Episodes in all.
        out: Folder of data sets.
        seed: The same seed gives the same episodes.
        action_repeat: Control steps each action is held; other than 1 is a protocol of its own.
    """
    from agentic_bpt.exploration.collect import collect as collect_episodes

    result = collect_episodes(
        task,
        expl_agent=expl_agent,
        episodes=episodes,
        out=out,
        seed=seed,
        action_repeat=action_repeat,
    )
    print(f"{result.folder}: {result.episodes} episodes")
    if result.interrupted:
        raise KeyboardInterrupt


@app.command
def ingest(
    sources: tyro.conf.Positional[tuple[Path, ...]],
    *,
    task: str,
    relabel: Literal["control", "exorl", "stored"] = "control",
    out: Path = Path("data/stores"),
    skip_bad: bool = False,
    seed: int = 0,
) -> None:
    """Make an HDF5 store from ExoRL episodes, with the rewards of a task; prints its path.

    Nothing is relabelled twice: the same source, task and versions find the store made before.

    Args:
        sources: ExoRL folders <domain>/<expl_agent>, their buffer/, or zips (read in place);
            several are put into one store.
        task: Full name, such as walker_run.
        relabel: control sets the action of each row, as when it was collected; exorl leaves it at
            0 and gives ExoRL's own numbers; stored keeps the rewards of the files.
        out: Folder of stores.
        skip_bad: Leave bad episodes out and count them; otherwise the first one ends it.
        seed: Of the split into training and validation episodes.
    """
    from agentic_bpt.datasets.store import ingest as ingest_episodes
    from agentic_bpt.progress import counting

    with counting(f"ingest {task}", "episodes") as advance:
        result = ingest_episodes(
            *sources,
            task=task,
            relabel=relabel,
            out=out,
            skip_bad=skip_bad,
            seed=seed,
            progress=advance,
        )
    for line in result.skipped:
        print(f"left out: {line}", file=sys.stderr)
    state = "found" if result.reused else "made"
    left_out = f", {len(result.skipped)} left out" if result.skipped else ""
    print(f"{state}: {result.episodes} episodes{left_out}", file=sys.stderr)
    print(result.path)


@app.command
def train(
    *,
    method: MethodName = "at",
    store: Path,
    workdir: Path,
    preset: Literal["cpu", "paper"] = "cpu",
    trajectories: int | None = None,
    scheme: SchemeName | None = None,
    layout: LayoutName | None = None,
    completion: Literal["reached", "final"] | None = None,
    loss: Literal["all", "last"] | None = None,
    trajectory_count: Literal["uniform", "fixed"] | None = None,
    sampling: Literal["uniform", "spread"] | None = None,
    trajectory_index: bool | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    dropout: float | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    accumulate: int | None = None,
    learning_rate: float | None = None,
    checkpoint_every_steps: int | None = None,
    seed: int = 0,
) -> None:
    """Train an agent on a store. A run that was stopped, however, goes on where it stopped.

    What is not given has the value of the preset. WORKDIR gets experiment.json, metrics.jsonl,
    TensorBoard files and checkpoints.

    Args:
        method: at, an Agentic Transformer with N trajectories in context; dt, the same model with
            one; bc10, an MLP on the best tenth of episodes.
        store: Made by `agentic-bpt ingest`.
        workdir: Folder of the run.
        preset: cpu, what two cores train in minutes; paper, the published configuration (values
            not found in a published source are named in agentic_bpt/methods.py).
        trajectories: Most trajectories N in a chain.
        scheme: What is computed in blocks; all three give the same numbers.
        layout: Tokens of a timestep: the paper's four, with completion five, or one joint token
            that holds all that is known when the action is chosen (4 times shorter).
        completion: What the completion token holds: 1 from the moment the target return is
            reached, or 1 only at the final step of a trajectory that reached it.
        loss: Imitate the actions of all trajectories of a chain, or of the last (best) only.
        trajectory_count: Draw the trajectories of a chain from 1..N, or always take N.
        sampling: Take all episodes as likely, or draw returns evenly between worst and best, so
            that good episodes are not drowned where they are rare.
        trajectory_index: Give tokens the number of their trajectory; no more than N then at test.
        layers: Transformer layers, or hidden layers of the MLP.
        width: Width of the transformer, or of the MLP.
        heads: Attention heads.
        dropout: Dropout rate.
        dtype: Operands of matrix products.
        steps: Updates.
        batch: Chains (bc10: single steps) an update.
        accumulate: Parts a batch is worked on in: less memory, the same update.
        learning_rate: Peak learning rate.
        checkpoint_every_steps: Updates between checkpoints.
        seed: Of initial parameters, batches and dropout.
    """
    import dataclasses

    from agentic_bpt.experiment import override
    from agentic_bpt.methods import preset_of
    from agentic_bpt.run import train_run

    given = {
        name: value for name, value in locals().items() if name in OVERRIDES and value is not None
    }
    experiment = preset_of(method, preset)
    for name, value in given.items():
        experiment = override(experiment, name, OVERRIDES[name], value)
    train_run(dataclasses.replace(experiment, store=str(store), seed=seed), workdir)
    print(f"{workdir}: trained; next: agentic-bpt evaluate {workdir}")


_CHAIN = ("agent", "chain")
_MODEL = ("agent", "model")
OVERRIDES: dict[str, tuple[tuple[str, ...], ...]] = {
    "trajectories": (_CHAIN,),
    "completion": (_CHAIN,),
    "loss": (_CHAIN,),
    "trajectory_count": (_CHAIN,),
    "sampling": (_CHAIN,),
    "layout": (_MODEL,),
    "trajectory_index": (_MODEL,),
    "scheme": ((*_MODEL, "core"),),
    "heads": ((*_MODEL, "core"),),
    "dropout": ((*_MODEL, "core"),),
    "dtype": ((*_MODEL, "core"),),
    "layers": ((*_MODEL, "core"), _MODEL),
    "width": ((*_MODEL, "core"), _MODEL),
    "steps": (("loop",),),
    "checkpoint_every_steps": (("loop",),),
    "batch": ((),),
    "accumulate": ((),),
    "learning_rate": (("optimizer",),),
}
"""Where the value of an option of `train` stands in an experiment: the first config that has it."""


@app.command
def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    trajectories: int = 4,
    chains: int = 10,
    prompt_trajectories: int = 0,
    target_return: float | None = None,
    seed: int = 0,
) -> None:
    """Roll a trained agent out in dm_control, and a random policy beside it.

    Each chain is a number of episodes in a row in one context. The agent is asked for the target
    return and, side by side, for 0.5, 0.75 and 1.25 of it. Prints the table and writes the result
    file into the run's folder.

    Args:
        run: Folder of a run.
        trajectories: Episodes in a row in each chain, n.
        chains: Chains; their episodes have seeds that all methods share.
        prompt_trajectories: Trajectories of the data set that stand before the rollouts, worst to
            best (0 is the published protocol).
        target_return: Return asked for; by default the best of the training split.
        seed: Of the evaluation.
    """
    from agentic_bpt.acting import Evaluation, evaluate_run
    from agentic_bpt.progress import counting
    from agentic_bpt.reports.results import read_results
    from agentic_bpt.reports.table import build_table, render_plain

    evaluation = Evaluation(trajectories, chains, seed, prompt_trajectories, target_return)
    with counting(f"evaluate {run}", "environment steps") as advance:
        path = evaluate_run(run, evaluation, progress=advance)
    print(render_plain(build_table(read_results([path]))))
    print(f"{path}: written; next: agentic-bpt report {run} ...")


@app.command
def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report"),
) -> None:
    """Compare evaluated runs of one task: a table, a CSV and a picture.

    Runs of one method and settings that differ in their seed are pooled.

    Args:
        runs: Folders of runs, or result files.
        out: Folder for report.md, report.csv and report.png.
    """
    from agentic_bpt.reports.results import read_results, write_report
    from agentic_bpt.reports.table import build_table, render_plain

    if not runs:
        raise InputError("name at least one run: agentic-bpt report runs/at4 runs/dt")
    files = write_report(runs, out)
    print(render_plain(build_table(read_results(runs))))
    print(f"written: {files.markdown}, {files.csv}, {files.png}")


@app.command
def doctor() -> None:
    """Say what works here and what does not, and why: versions, devices, renderer, tasks.

    Exits with 1 if anything that training or evaluation needs does not work.
    """
    from agentic_bpt.doctor import examine

    if not examine():
        raise SystemExit(1)


@app.command
def bench(
    what: Annotated[Literal["train", "core", "decode"], tyro.conf.Positional],
    *,
    positions: tuple[int, ...] = (4096,),
    heads: tuple[int, ...] = (1, 4),
    threads: tuple[int, ...] = (1, 2),
    out: Path | None = None,
) -> None:
    """Measure side by side in one run, as ratios against peers.

    Args:
        what: train: tokens/s of the layers beside the same on jax.nn.dot_product_attention, reading
            of a store, a cached rollout step. core: the layers beside the paper's schemes,
            jax.nn.dot_product_attention, and, with the extra `bench`, ringattention and PyTorch.
            decode: one new token for caches of so many positions, beside reading the cache.
        positions: Positions of a sequence.
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
    else:
        from agentic_bpt.bench.train import bench_train

        bench_train(positions=positions[0], out=out)


def main() -> None:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    try:
        app.cli(prog="agentic-bpt", description=_DESCRIPTION)
    except InputError as error:
        print(f"agentic-bpt: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("agentic-bpt: stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    except OSError as error:
        # Disk full, no permission: nothing the program can mend, and no fault of its own.
        where = f"{error.filename}: " if error.filename else ""
        print(f"agentic-bpt: error: {where}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None


_DESCRIPTION = """An Agentic Transformer that learns in context from whole trajectories.

Begin with `agentic-bpt quickstart`. With your own data: collect or download episodes, then
ingest, train, evaluate, report.
"""
