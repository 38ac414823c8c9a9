"""Diagnosing a trained run: load it with its data and results, measure, say what is wrong."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.acting import TrainedRun, load_run
from agentic_bpt.datasets.sampler import ChainConfig, ChainSampler, best_episodes
from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.context_use import ContextUse, measure_context
from agentic_bpt.evaluation.diagnose import Measures, verdict
from agentic_bpt.evaluation.imitation import (
    ChainAt,
    Predict,
    chain_predictor,
    fit_baselines,
    measure_chains,
    reactive_predictor,
)
from agentic_bpt.evaluation.target_use import (
    AskedTarget,
    EvaluationUse,
    chain_targets,
    describe_evaluation,
    place_target,
)
from agentic_bpt.experiment import CloningAgent, TransformerAgent
from agentic_bpt.made_by import made_by
from agentic_bpt.models.tokens import LAYOUTS
from agentic_bpt.reports.results import PATTERN, Result, read_result, write_json

FILE_NAME = "diagnosis.json"

FORMAT = 2
"""Of the file; it changes when a number comes to mean another thing."""

TARGET_CHAINS = 1_000
"""Training chains whose targets are drawn; only returns are read, so many cost little."""

BASELINE_CHAINS = 64
"""Training chains that the baselines are fitted on, others than those measured: thousands of rows
for fewer than a hundred weights an action."""


class Diagnosis(NamedTuple):
    """What is wrong with a run, and the numbers that say so."""

    run: Path
    method: str
    task: str
    steps: int
    """Updates done."""
    chains: int
    """Chains measured in each split."""
    seed: int
    """Of the chains."""
    data_hash: str
    measures: Measures
    skipped: tuple[str, ...]
    """What was not measured, and why."""
    verdict: tuple[str, ...]


class _Drawn(NamedTuple):
    """The chains that fit a method."""

    config: ChainConfig
    """Always of N trajectories."""
    training: np.ndarray
    """Episode numbers."""
    validation: np.ndarray
    """Episode numbers; empty where they are too few for a chain."""
    skipped: tuple[str, ...]


def diagnose_run(workdir: Path, *, chains: int = 32, seed: int = 0) -> Diagnosis:
    """Measure a trained run on chains of its data, and write `diagnosis.json` into its folder.

    Chains have the number of trajectories that training had at most; a method without context is
    measured on single trajectories, BC-10% on the best tenth that it imitates.

    Raises:
        InputError: the run, its store or a result file cannot be read, or the store has other data.
    """
    if chains < 1:
        raise InputError(f"--chains must be at least 1, got {chains}")
    run = load_run(workdir)
    if getattr(run.experiment.agent, "hidden_task", ""):
        raise InputError(f"{workdir}: has hidden tasks: use agentic-bpt in-context")
    with run.open_store() as store:
        measures, skipped = _measure(run, store, chains=chains, seed=seed)
    diagnosis = Diagnosis(
        run=workdir,
        method=run.experiment.method,
        task=run.data["task"],
        steps=run.steps,
        chains=chains,
        seed=seed,
        data_hash=run.data["data_hash"],
        measures=measures,
        skipped=skipped,
        verdict=verdict(measures),
    )
    document = {
        "format": FORMAT,
        "kind": "diagnosis",
        **diagnosis._asdict(),
        "training_seed": run.experiment.seed,
        "measures": dataclasses.asdict(measures),
        **made_by("jax", "numpy"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(workdir / FILE_NAME, document)
    return diagnosis


def _measure(
    run: TrainedRun, store: Store, *, chains: int, seed: int
) -> tuple[Measures, tuple[str, ...]]:
    """Measure everything that has a meaning for the method; gives also what has none, and why."""
    agent = run.experiment.agent
    conditioned = isinstance(agent, TransformerAgent)
    drawn = _drawn(run, store)
    training_at = _chain_at(store, drawn.training, drawn.config, seed)
    if conditioned:
        predict = chain_predictor(run.model, run.params, run.scales)
    else:
        predict = reactive_predictor(run.policy())
    fitted_on = range(chains, chains + BASELINE_CHAINS)
    shared: dict[str, Any] = {
        "chains": chains,
        "trajectories": drawn.config.trajectories,
        "baselines": fit_baselines(training_at, fitted_on, run.scales),
        "scales": run.scales,
    }
    held_out_at, validation = training_at, None
    if len(drawn.validation):
        held_out_at = _chain_at(store, drawn.validation, drawn.config, seed)
        validation = measure_chains(predict, held_out_at, **shared)
    evaluations, skipped = _evaluations(run, drawn.config)
    training_returns = store.returns[store.training]
    measures = Measures(
        trajectories=drawn.config.trajectories,
        loss=drawn.config.loss,
        imitates=isinstance(agent, TransformerAgent | CloningAgent),
        layout_has_completion=conditioned and _has_completion(agent.model.layout),
        return_std=float(training_returns.std()),
        return_scale=float(run.scales.return_scale),
        best_return=store.best_return,
        training=measure_chains(predict, training_at, **shared),
        validation=validation,
        asked=_asked(agent, evaluations, training_returns, store.best_return, seed=seed),
        evaluations=evaluations,
        context=_context(predict, held_out_at, drawn.config, chains),
    )
    return measures, (*drawn.skipped, *skipped, *_meaningless(run, measures))


def _drawn(run: TrainedRun, store: Store) -> _Drawn:
    """Choose the chains that fit a method."""
    agent = run.experiment.agent
    config = ChainConfig(trajectories=1, trajectory_count="fixed")
    training, validation = store.training, store.validation
    if isinstance(agent, TransformerAgent):
        count = agent.context_trajectories or agent.chain.trajectories
        config = dataclasses.replace(agent.chain, trajectories=count, trajectory_count="fixed")
    elif isinstance(agent, CloningAgent):
        training, validation = (
            best_episodes(store.returns, split, fraction=agent.best_fraction)
            for split in (training, validation)
        )
    if len(validation) >= config.trajectories:
        return _Drawn(config, training, validation, ())
    reason = (
        f"validation chains: the split has {len(validation)} episodes, a chain "
        f"{config.trajectories}; training chains stand in"
    )
    return _Drawn(config, training, validation[:0], (reason,))


def _chain_at(store: Store, episodes: np.ndarray, config: ChainConfig, seed: int) -> ChainAt:
    sampler = ChainSampler(
        store,
        episodes,
        returns=store.returns[episodes],
        longest=int(store.lengths[episodes].max()),
        config=config,
        batch=1,
        seed=seed,
    )
    return sampler.batch


def _context(
    predict: Predict, chain_at: ChainAt, config: ChainConfig, chains: int
) -> ContextUse | None:
    if config.trajectories == 1:
        return None
    return measure_context(predict, chain_at, chains=chains, completion=config.completion)


def _asked(
    agent: Any,
    evaluations: list[EvaluationUse],
    returns_E: np.ndarray,
    best_return: float,
    *,
    seed: int,
) -> list[AskedTarget]:
    """Place every target of the result files, or the default one, among those of training."""
    if not isinstance(agent, TransformerAgent):
        return []
    targets = {use.target: None for use in evaluations if use.target is not None}
    drawn_C = chain_targets(returns_E, config=agent.chain, chains=TARGET_CHAINS, seed=seed)
    return [place_target(target, drawn_C) for target in targets or (best_return,)]


def _evaluations(
    run: TrainedRun, config: ChainConfig
) -> tuple[list[EvaluationUse], tuple[str, ...]]:
    """Read the result files in the run's folder, newest first."""
    results = [read_result(path) for path in run.workdir.glob(PATTERN)]
    results.sort(key=lambda result: (result.created, result.path), reverse=True)
    skipped = [
        f"{result.path.name}: has returns that are not finite"
        for result in results
        if not result.is_finite
    ]
    if not results:
        skipped.append(f"returns: no {PATTERN} here; run agentic-bpt evaluate {run.workdir}")
    uses = [_use(result, run, config) for result in results if result.is_finite]
    skipped += [
        f"{use.file}: was made after {use.steps} updates, this agent has {run.steps}"
        for use in uses
        if use.steps not in (None, run.steps)
    ]
    return uses, tuple(skipped)


def _use(result: Result, run: TrainedRun, config: ChainConfig) -> EvaluationUse:
    others = [condition for condition in result.conditions if condition is not result.main]
    conditions = [result.main, *others]
    targets = [condition.target_return for condition in conditions]
    return describe_evaluation(
        file=result.path.name,
        steps=result.training.get("steps"),
        targets_K=[float(target) for target in targets if target is not None] or None,
        returns_KCN=np.stack([condition.returns for condition in conditions]),
        random_CN=result.random_returns,
        best_return=float(run.data["best"]),
        completion=config.completion,
    )


def _has_completion(layout: str) -> bool:
    """Say whether a layout shows the completion; the joint token holds that of the step before."""
    return layout == "joint" or "completion" in LAYOUTS[layout].tokens


def _meaningless(run: TrainedRun, measures: Measures) -> list[str]:
    """Say which measures have no meaning for the method."""
    method, lines = run.experiment.method, []
    if not isinstance(run.experiment.agent, TransformerAgent):
        lines.append(f"targets and completion: {method} is told no return")
    elif not measures.layout_has_completion:
        lines.append("completion: this layout has no completion token")
    if measures.context is None:
        lines.append(f"context: {method} has no earlier trajectories in its context")
    if not measures.imitates:
        lines.append(f"action error: {method} seeks value; it says how far from the data it acts")
    return lines
