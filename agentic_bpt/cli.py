"""The command line: arguments to function calls, and a user's mistake to one line.

Every import of a heavy package stands inside the command that needs it, so that `--help` answers
at once.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from agentic_bpt import cli_data, cli_study
from agentic_bpt.errors import InputError

if TYPE_CHECKING:
    from agentic_bpt.experiment import Experiment

app = tyro.extras.SubcommandApp()

MethodName = Literal["at", "dt", "bc10", "td3_offline", "td3_bc"]
LayoutName = Literal["return-state-action-reward", "return-state-action-reward-completion", "joint"]
SchemeName = Literal["vanilla", "memory_efficient", "blockwise"]
EngineName = Literal["auto", "portable", "cudnn", "splash"]


@app.command
def quickstart(
    *,
    workdir: Path = Path("quickstart"),
    collect: bool = False,
    seed: int = 0,
) -> None:
    """Run the whole job on embedded cartpole episodes: train AT, DT and BC-10%, compare, draw.

    Takes a quarter of an hour at most on two cores and downloads nothing. Run again, it goes on
    where it stopped. Episodes are 250 decisions, each held for 4 control steps.

    Args:
        workdir: Where runs, the report and the picture go.
        collect: Collect the episodes anew instead of taking the embedded ones.
        seed: Of initial parameters and batches.
    """
    from agentic_bpt.quickstart import run_quickstart

    run_quickstart(workdir, collect_anew=collect, seed=seed)


for _command in (
    cli_data.collect,
    cli_data.download,
    cli_data.ingest,
    cli_data.export_minari,
    cli_data.import_minari,
    cli_data.import_d4rl,
    cli_data.audit,
    cli_study.table5,
    cli_study.compare_trajectories,
    cli_study.in_context,
    cli_study.diagnose,
    cli_study.bench,
):
    app.command(_command)


@app.command
def train(
    *,
    method: MethodName = "at",
    store: Path,
    workdir: Path,
    preset: Literal["cpu", "paper"] = "cpu",
    trajectories: int | None = None,
    scheme: SchemeName | None = None,
    engine: EngineName | None = None,
    layout: LayoutName | None = None,
    completion: Literal["reached", "final"] | None = None,
    loss: Literal["all", "last"] | None = None,
    trajectory_count: Literal["uniform", "fixed"] | None = None,
    sampling: Literal["uniform", "spread"] | None = None,
    target_excess: float | None = None,
    trajectory_index: bool | None = None,
    hidden_task: str | None = None,
    told: bool | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    dropout: float | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    recompute_attention: bool | None = None,
    steps: int | None = None,
    batch: int | None = None,
    accumulate: int | None = None,
    learning_rate: float | None = None,
    checkpoint_every_steps: int | None = None,
    seed: int = 0,
    mesh: str | None = None,
    coordinator: str | None = None,
    processes: int = 1,
    rank: int = 0,
) -> None:
    """Train an agent on a store. A run that was stopped, however, goes on where it stopped.

    What is not given has the value of the preset. WORKDIR gets experiment.json, metrics.jsonl,
    TensorBoard files and checkpoints.

    Args:
        method: at, an Agentic Transformer with N trajectories in context; dt, the same model with
            one; bc10, an MLP on the best tenth of episodes; td3_offline and td3_bc, TD3 and TD3+BC
            on single steps.
        store: Made by `agentic-bpt ingest`.
        workdir: Folder of the run.
        preset: cpu, what two cores train in minutes; paper, the published configuration (values
            not found in a published source are named in agentic_bpt/methods.py).
        trajectories: Most trajectories N in a chain.
        scheme: What is computed in blocks; all three give the same numbers.
        engine: What computes attention: portable, on any device; cudnn (NVIDIA, bfloat16, no
            dropout); splash (TPU, no dropout); auto takes a kernel where it can.
        layout: Tokens of a timestep: the paper's four, with completion five, or one joint token
            that holds all that is known when the action is chosen (4 times shorter).
        completion: What the completion token holds: 1 from the moment the target return is
            reached, or 1 only at the final step of a trajectory that reached it.
        loss: Imitate the actions of all trajectories of a chain, or of the last (best) only.
        trajectory_count: Draw the trajectories of a chain from 1..N, or always take N.
        sampling: Take all episodes as likely, or draw returns evenly between worst and best, so
            that good episodes are not drowned where they are rare.
        target_excess: Draw a chain's target above its best return, by up to this share of the
            largest return, so that a target that is missed is nothing new; 0 as published.
        trajectory_index: Give tokens the number of their trajectory; no more than N then at test.
        hidden_task: Make every chain one of another task, which only its rewards tell: a family
            (walker_speed, cheetah_speed, maze_goal, jaco_goal, cartpole_position), tasks of one
            domain with commas between them, or a function of your own, path.py:function. Needs a
            store made with --keep-physics; at and dt only. Then: agentic-bpt in-context.
        told: Put the hidden task's parameter into the observations: the ceiling to compare with.
        layers: Transformer layers, or hidden layers of the MLP.
        width: Width of the transformer, or of the hidden layers of an MLP.
        heads: Attention heads.
        dropout: Dropout rate.
        dtype: Operands of matrix products.
        recompute_attention: Recompute the attention output in the backward pass (blockwise only):
            less memory, about a quarter more time.
        steps: Updates.
        batch: Chains (bc10, td3: single steps) an update.
        accumulate: Parts a batch is worked on in: less memory, the same update but for the masks
            of dropout.
        learning_rate: Peak learning rate.
        checkpoint_every_steps: Updates between checkpoints.
        seed: Of initial parameters, batches and dropout.
        mesh: Spread an update over all devices, such as data=2,sequence=4,model=1: parts of the
            batch, of the positions, of the heads. The numbers are those of one device, and a run
            goes on upon another mesh.
        coordinator: host:port of rank 0, where devices of several processes are joined; every
            process runs this same command with its own --rank, and sees the same WORKDIR.
        processes: How many there are.
        rank: Of this process, from 0.
    """
    options = locals()
    import dataclasses

    from agentic_bpt.run import train_run
    from agentic_bpt.spread import join_mesh

    experiment = dataclasses.replace(_configured(options), store=str(store), seed=seed)
    over = join_mesh(mesh, coordinator=coordinator, processes=processes, rank=rank)
    train_run(experiment, workdir, mesh=over)
    print(f"{workdir}: trained; next: agentic-bpt evaluate {workdir}")


_CHAIN = ("agent", "chain")
_MODEL = ("agent", "model")
OVERRIDES: dict[str, tuple[tuple[str, ...], ...]] = {
    "trajectories": (_CHAIN,),
    "completion": (_CHAIN,),
    "loss": (_CHAIN,),
    "trajectory_count": (_CHAIN,),
    "sampling": (_CHAIN,),
    "target_excess": (_CHAIN,),
    "layout": (_MODEL,),
    "trajectory_index": (_MODEL,),
    "hidden_task": (("agent",),),
    "told": (("agent",),),
    "scheme": ((*_MODEL, "core"),),
    "engine": ((*_MODEL, "core"),),
    "heads": ((*_MODEL, "core"),),
    "dropout": ((*_MODEL, "core"),),
    "dtype": ((*_MODEL, "core"),),
    "recompute_attention": ((*_MODEL, "core"),),
    "layers": ((*_MODEL, "core"), _MODEL),
    "width": ((*_MODEL, "core"), _MODEL, ("agent", "learner")),
    "steps": (("loop",),),
    "checkpoint_every_steps": (("loop",),),
    "batch": ((),),
    "accumulate": ((),),
    "learning_rate": (("optimizer",),),
}
"""Where the value of an option of `train` stands in an experiment: the first config that has it."""


def _configured(options: dict[str, Any]) -> "Experiment":
    """Take the preset of a method, changed by the options of a command that were given."""
    from agentic_bpt.experiment import override
    from agentic_bpt.methods import preset_of

    experiment = preset_of(options["method"], options["preset"])
    for name, value in options.items():
        if name in OVERRIDES and value is not None:
            experiment = override(experiment, name, OVERRIDES[name], value)
    return experiment


@app.command
def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    trajectories: int = 4,
    chains: int = 10,
    prompt_trajectories: int = 0,
    target_return: float | None = None,
    seed: int = 0,
    video: bool = False,
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
        video: Also film the first chain: an mp4 with the extra `video`, an animated GIF without.
            Where nothing can be drawn, the reason is said.
    """
    from agentic_bpt.evaluating import Evaluation, evaluate_run, film_run
    from agentic_bpt.progress import counting
    from agentic_bpt.reports.results import read_results
    from agentic_bpt.reports.table import build_table, render_plain

    evaluation = Evaluation(trajectories, chains, seed, prompt_trajectories, target_return)
    with counting(f"evaluate {run}", "environment steps") as advance:
        path = evaluate_run(run, evaluation, progress=advance)
    print(render_plain(build_table(read_results([path]))))
    print(f"{path}: written; next: agentic-bpt report {run} ...")
    if video:
        filmed = film_run(run, evaluation)
        print(f"{filmed.path}: written" if filmed.path else f"no video: {filmed.why_not}")


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
        out: Folder for report.md, .csv, .tex and .png.
    """
    from agentic_bpt.reports.results import read_results, write_report
    from agentic_bpt.reports.table import build_table, render_plain

    if not runs:
        raise InputError("name at least one run: agentic-bpt report runs/at4 runs/dt")
    files = write_report(runs, out)
    print(render_plain(build_table(read_results(runs))))
    print(f"written: {files.markdown}, {files.csv}, {files.png}")


@app.command
def memory(
    *,
    device: str | None = None,
    devices: str | None = None,
    local: bool = False,
    largest: bool = False,
    picture: Path | None = None,
    mesh: str | None = None,
    method: Literal["at", "dt"] = "at",
    preset: Literal["cpu", "paper"] = "paper",
    task: str = "walker_walk",
    action_repeat: int = 1,
    trajectories: int | None = None,
    batch: int | None = None,
    accumulate: int | None = None,
    scheme: SchemeName | None = None,
    engine: EngineName | None = None,
    layout: LayoutName | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    dropout: float | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    recompute_attention: bool | None = None,
) -> None:
    """Say what a training step takes and whether it fits, also on devices that are not present.

    Compiles the real step (model, loss, optimiser, accumulation) ahead of time for the device; this
    needs the extra `gpu-target` or `tpu-target`. Without it a fitted formula answers, and says how
    far off it was when checked. What was compiled is kept, and `train` asks it before it starts.

    Args:
        device: One of a100-80gb, h100-80gb, h200, l4, rtx4090, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e.
        devices: Several of them, with commas between: a table over schemes and devices.
        local: The device at hand instead: compile, run one step, and compare with what it took.
        largest: Also search the most trajectories that fit (above 200 within half a percent).
        picture: Draw bytes against trajectories into this PNG.
        mesh: Spread the step over so many of the device, as in `train`: bytes of each of them.
        method: at or dt; bc10 fits anywhere.
        preset: Configuration that the options below change.
        task: Fixes the widths and the length of an episode.
        action_repeat: Control steps each action is held; divides the length of an episode.
        trajectories: Trajectories N in a chain.
        batch: Chains an update.
        accumulate: Parts a batch is worked on in.
        scheme: What is computed in blocks; all three are compared otherwise (--local: blockwise).
        engine: What computes attention; auto is what `train` would take on the device.
        layout: Tokens of a timestep.
        layers: Transformer layers.
        width: Width of the transformer.
        heads: Attention heads.
        dropout: Dropout rate.
        dtype: Operands of matrix products.
        recompute_attention: Recompute the attention output in the backward pass (blockwise only).
    """
    options = locals()
    if local and (mesh is not None or largest or picture is not None):
        raise InputError("--local runs one step: with --mesh, --largest, --picture name a --device")
    if sum((device is not None, devices is not None, local)) != 1:
        raise InputError("give one of --device, --devices and --local")
    if not local:  # no device is touched; compilers of absent ones complain of what is not there
        os.environ["JAX_PLATFORMS"] = "cpu"
    from agentic_bpt.blockwise.core import SCHEMES
    from agentic_bpt.planner import report

    experiment = _configured(options)
    episode = report.episode_of(task, action_repeat)
    if local:
        report.report_local(experiment, episode)
        return
    report.report_memory(
        experiment,
        episode,
        devices=[device] if device else str(devices).split(","),
        schemes=[scheme] if scheme else SCHEMES,
        largest=largest,
        picture=picture,
        mesh=mesh,
    )


@app.command
def doctor(*, data: Path | None = None) -> None:
    """Say what works here and what does not, and why: versions, devices, renderer, tasks.

    Exits with 1 if anything that training or evaluation needs does not work, or a file is bad.

    Args:
        data: Check these episodes instead, all of them: an ExoRL folder <domain>/<expl_agent>, its
            buffer/, a zip, or a store. Names every bad file once, shows the returns of each task,
            and what is there twice.
    """
    from agentic_bpt.doctor import examine, examine_data

    if not (examine() if data is None else examine_data(data)):
        raise SystemExit(1)


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
