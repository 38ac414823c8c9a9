"""Evaluating a trained run by rollouts, and keeping what came out in its folder."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from agentic_bpt.acting import TrainedRun, load_run
from agentic_bpt.datasets.hidden import HiddenEpisodes
from agentic_bpt.datasets.sampler import spaced_episodes
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.environments.hidden_tasks import hidden_tasks, reward_file_hash
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.in_context import InContext, check_counts, evaluate_in_context
from agentic_bpt.evaluation.policy import (
    ContextPolicy,
    RandomPolicy,
)
from agentic_bpt.evaluation.rollout import rollout
from agentic_bpt.evaluation.video import Recording, record_video
from agentic_bpt.experiment import Experiment, TransformerAgent, flat
from agentic_bpt.made_by import made_by
from agentic_bpt.methods import METHODS
from agentic_bpt.reports.results import write_json
from agentic_bpt.training.metrics import read_metrics

SETTINGS = {
    "batch": "batch",
    "trajectories": "agent.chain.trajectories",
    "scheme": "agent.model.core.scheme",
    "layout": "agent.model.layout",
    "completion": "agent.chain.completion",
    "sampling": "agent.chain.sampling",
    "loss": "agent.chain.loss",
    "target_excess": "agent.chain.target_excess",
    "width": "agent.learner.width",
    "bc_alpha": "agent.bc_alpha",
}
"""What every result says of its training: the name there, and the field of the experiment."""

NUMBERS_APART = (
    "method",
    "store",
    "data_hash",
    "seed",
    "loop.",
    "accumulate",
    "agent.model.core.engine",
    "agent.model.core.query_block",
    "agent.model.core.key_block",
    "agent.model.core.recompute_attention",
)
"""Beginnings of fields that are no settings: said elsewhere in a result, or how the same numbers
(with `accumulate` and dropout, others that are as good) are computed."""

TARGET_MULTIPLIERS = (1.0, 0.5, 0.75, 1.25)
"""Targets an agent is evaluated at, in units of the one asked for; the first is the result."""


class Evaluation(NamedTuple):
    """What to roll out."""

    trajectories: int = 4
    """Episodes in a row in each chain, n."""
    chains: int = 10
    """Chains; each has its own seeds, shared by all methods."""
    seed: int = 0
    """Of the evaluation."""
    prompt_trajectories: int = 0
    """Trajectories of the data set that stand before the rollouts, ascending (0: as published)."""
    target_return: float | None = None
    """Return asked for; None: the best of the training split."""
    multipliers: tuple[float, ...] = TARGET_MULTIPLIERS
    """What an agent that is asked for a return is asked for, in units of it; 1.0 first."""

    def file_name(self) -> str:
        """Name the result file: one a protocol."""
        return f"evaluation-n{self.trajectories}-chains{self.chains}-{self._start}.json"

    def video_stem(self) -> str:
        """Name the video of the first chain, without the suffix that says how it is encoded."""
        return f"video-n{self.trajectories}-{self._start}"

    @property
    def _start(self) -> str:
        target = "" if self.target_return is None else f"-target{self.target_return:g}"
        return f"prompt{self.prompt_trajectories}-seed{self.seed}{target}"


def evaluate_run(
    workdir: Path,
    evaluation: Evaluation,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    command: str | None = None,
) -> Path:
    """Roll out a trained run and a random policy, and write the result file into its folder.

    An agent that is asked for a return acts at all `multipliers` of it, side by side.

    Raises:
        InputError: a wrong argument, or a run that cannot be loaded.
    """
    check_counts(evaluation)
    run = load_run(workdir)
    conditioned = isinstance(run.experiment.agent, TransformerAgent)
    multipliers = evaluation.multipliers if conditioned else (1.0,)
    target = run.data["best"] if evaluation.target_return is None else evaluation.target_return
    targets = np.repeat(np.asarray(multipliers) * target, evaluation.chains)
    spec, repeat = task_spec(run.data["task"]), run.data["action_repeat"]
    steps = spec.episode_steps // repeat * repeat * evaluation.trajectories
    total = steps * (len(targets) + evaluation.chains)
    done = 0

    def advance(environment_steps: int) -> None:
        nonlocal done
        done += environment_steps
        progress(done, total)

    roll = partial(
        rollout,
        task=run.data["task"],
        trajectories=evaluation.trajectories,
        seed=evaluation.seed,
        action_repeat=repeat,
        advance=advance,
    )
    policy = run.policy()
    if isinstance(policy, ContextPolicy):
        _start(policy, run, evaluation, targets)
    elif evaluation.prompt_trajectories:
        raise InputError(f"{workdir}: {run.experiment.method} has no context: leave out the prompt")
    chains = np.arange(evaluation.chains)
    rolled = roll(policy, chains_C=np.tile(chains, len(multipliers)))
    uniform = RandomPolicy(spec.action_width, seed=evaluation.seed)
    uniform.start(chains, trajectories=evaluation.trajectories)
    random = roll(uniform, chains_C=chains)
    path = workdir / evaluation.file_name()
    document = {
        **_describe_run(run, command),
        "protocol": {
            "trajectories": evaluation.trajectories,
            "chains": evaluation.chains,
            "prompt_trajectories": evaluation.prompt_trajectories,
            "evaluation_seed": evaluation.seed,
        },
        "conditions": [
            {
                "target_multiplier": multiplier,
                "target_return": multiplier * target if conditioned else None,
                "returns": returns_CN.tolist(),
            }
            for multiplier, returns_CN in zip(
                multipliers, np.split(rolled.returns_CN, len(multipliers)), strict=True
            )
        ],
        "random": {"returns": random.returns_CN.tolist()},
        "seconds": {"model": rolled.model_seconds, "physics": rolled.physics_seconds},
    }
    write_json(path, document)
    return path


def film_run(workdir: Path, evaluation: Evaluation) -> Recording:
    """Roll out the first chain of an evaluation once more and keep a video in the run's folder.

    Nothing is raised where no picture can be drawn: the reason stands in what is returned.

    Raises:
        InputError: a wrong argument, or a run that cannot be loaded.
    """
    check_counts(evaluation)
    run = load_run(workdir)
    target = run.data["best"] if evaluation.target_return is None else evaluation.target_return
    policy = run.policy()
    if isinstance(policy, ContextPolicy):
        _start(policy, run, evaluation, np.array([target]))
    return record_video(
        policy,
        run.data["task"],
        out=workdir / evaluation.video_stem(),
        trajectories=evaluation.trajectories,
        seed=evaluation.seed,
        action_repeat=run.data["action_repeat"],
    )


def evaluate_hidden(
    workdir: Path,
    options: InContext,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    command: str | None = None,
) -> dict[str, Any]:
    """Roll a run that was trained on hidden tasks out on held-out ones; write and give the result.

    Raises:
        InputError: a wrong argument, a run without a hidden task, or data that is not the run's.
    """
    run = load_run(workdir)
    agent = run.experiment.agent
    if not isinstance(agent, TransformerAgent) or not agent.hidden_task:
        raise InputError(f"{workdir}: was not trained with --hidden-task: use evaluate")
    if agent.hidden_hash not in ("", reward_file_hash(agent.hidden_task)):
        raise InputError(f"{workdir}: its reward file has changed since: {agent.hidden_task}")
    if agent.context_trajectories and options.prompt_trajectories:
        raise InputError(f"{workdir}: has no room for a prompt: use --prompt-trajectories 0")
    with run.open_store() as store:
        episodes = HiddenEpisodes(store, hidden_tasks(agent.hidden_task), told=agent.told)
        found = evaluate_in_context(
            cast(ContextPolicy, run.policy()),  # as of every transformer
            episodes,
            options,
            target_excess=agent.chain.target_excess,
            progress=progress,
        )
    document = {**_describe_run(run, command), **found}
    write_json(workdir / options.file_name(), document)
    return document


def is_evaluated(workdir: Path, evaluation: Evaluation, *, steps: int) -> bool:
    """Say whether a run was evaluated after all its updates, not when it was half trained.

    A result that cannot be read counts: whose it is, nobody knows, and reports say so.
    """
    try:
        document = json.loads((workdir / evaluation.file_name()).read_text())
        return document["training"]["steps"] == steps
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _start(
    policy: ContextPolicy, run: TrainedRun, evaluation: Evaluation, targets_B: np.ndarray
) -> None:
    """Begin a chain a target, as the evaluation asks."""
    policy.start(
        targets_B,
        trajectories=evaluation.trajectories,
        prompts=[_prompt(run, evaluation)] * len(targets_B),
    )


def _prompt(run: TrainedRun, evaluation: Evaluation) -> list[Trajectory]:
    """Choose training trajectories of evenly spaced returns, the best one among them."""
    count = evaluation.prompt_trajectories
    if not count:
        return []
    with run.open_store() as store:
        if count > len(store.training):
            raise InputError(
                f"--prompt-trajectories must be at most {len(store.training)}, the training "
                f"episodes of {store.path}; got {count}"
            )
        chosen = spaced_episodes(store.returns, store.training, count=count)
        return [store.trajectory(int(episode)) for episode in chosen]


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Give what a result says of how its agent was trained, so that unlike ones are not pooled.

    These are `SETTINGS`, and by its path every other field that is not as in preset "cpu" of the
    method, but for those that no number depends on (`NUMBERS_APART`) and the number of updates,
    which a result gives beside them.
    """
    fields = flat(experiment)
    usual = flat(METHODS[experiment.method].presets["cpu"])
    settings = {name: fields.pop(path) for name, path in SETTINGS.items() if path in fields}
    return settings | {
        path: value
        for path, value in fields.items()
        if value != usual.get(path) and not path.startswith(NUMBERS_APART)
    }


def _describe_run(run: TrainedRun, command: str | None) -> dict[str, Any]:
    experiment = run.experiment
    lines = read_metrics(run.workdir / "metrics.jsonl")
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return {
        "format": 1,
        "kind": "evaluation",
        **made_by("jax", "dm_control", "mujoco", command=command),
        "run": str(run.workdir),
        "method": experiment.method,
        "task": run.data["task"],
        "action_repeat": run.data["action_repeat"],
        "seed": experiment.seed,
        "settings": settings_of(experiment),
        "training": {
            "steps": run.steps,
            "median_tokens_per_second": float(np.median(rates)) if rates else None,
        },
        "dataset": run.data,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
