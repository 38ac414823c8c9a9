"""A diagnosis as text: the verdict first, then the numbers behind it."""

from collections.abc import Iterable, Sequence

import numpy as np

from agentic_bpt.diagnosis import TARGET_CHAINS, Diagnosis
from agentic_bpt.evaluation.context_use import Change, ContextUse
from agentic_bpt.evaluation.diagnose import Measures
from agentic_bpt.evaluation.imitation import FAR_DEVIATIONS
from agentic_bpt.evaluation.target_use import NEAR, AskedTarget, EvaluationUse

SHOWN_POSITIONS = 8
"""Positions of a chain in a line of text; of more, so many are shown, first and last among them."""

_LABEL = 26  # characters


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as plain text, the verdict first."""
    measures = diagnosis.measures
    parts = [
        [
            f"{diagnosis.run}: {diagnosis.method} on {diagnosis.task} after {diagnosis.steps:,} "
            f"updates, n = {diagnosis.chains} chains of {measures.trajectories} in each split, "
            f"seed {diagnosis.seed}"
        ],
        ["Verdict", *_items(diagnosis.verdict)],
        _errors(measures),
        _numbers(measures),
        _targets(measures.asked),
        *map(_evaluation, measures.evaluations),
        _completion(measures),
        _context(measures.context),
        ["Not measured, or with care", *_items(diagnosis.skipped)] if diagnosis.skipped else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _items(lines: Iterable[str]) -> list[str]:
    return [f"  - {line}" for line in lines]


def _row(label: str, values: Sequence[float], style: str = ".3g") -> str:
    """Write one number a column; a long chain is thinned out."""
    shown = _shown(len(values))
    return f"  {label:<{_LABEL}}" + "".join(f"{values[n]:>9{style}}" for n in shown)


def _positions(label: str, count: int) -> str:
    return f"  {label:<{_LABEL}}" + "".join(f"{n + 1:>9}" for n in _shown(count))


def _shown(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, SHOWN_POSITIONS)).astype(int))


def _errors(measures: Measures) -> list[str]:
    loss = "the last" if measures.loss == "last" else "all"
    lines = [
        f"Action error: mean squared; the loss is on {loss} of a chain. Linear BC is a ridge "
        "regression on the observation",
        _positions("trajectory of the chain", measures.trajectories),
    ]
    for split, found in (("validation", measures.validation), ("training", measures.training)):
        if found is not None:
            lines += [
                _row(f"{split}: agent", found.agent_N),
                _row(f"{split}: mean action", found.mean_N),
                _row(f"{split}: linear BC", found.linear_N),
            ]
    return lines


def _numbers(measures: Measures) -> list[str]:
    found = measures.held_out
    worst = int(np.argmax(found.far_O))
    constant = ", ".join(map(str, measures.training.constant)) or "none"
    return [
        "Numbers",
        f"  actions at +-1: {found.at_bounds:.1%} of the agent's, {found.data_at_bounds:.1%} of "
        "the data's",
        f"  observations beyond {FAR_DEVIATIONS:g} standard deviations: "
        f"{np.mean(found.far_O):.3%}, most in number {worst} ({found.far_O[worst]:.3%})",
        f"  observations that never change in training: {constant}",
        f"  returns in the data: best {measures.best_return:.4g}, standard deviation "
        f"{measures.return_std:.4g}, divided by {measures.return_scale:.4g}",
    ]


def _targets(asked: Sequence[AskedTarget]) -> list[str]:
    if not asked:
        return []
    return [
        f"Targets asked, among those of {TARGET_CHAINS:,} training chains",
        *(
            f"  {target.target:.4g}: {target.quantile:.1%} aimed no higher, {target.near:.1%} "
            f"within {NEAR:.0%} of it"
            for target in asked
        ),
    ]


def _evaluation(use: EvaluationUse) -> list[str]:
    asked = "" if use.target is None else f", asked for {use.target:.4g}"
    lines = [
        f"Evaluation {use.file}{asked}; random policy {use.random:.4g}",
        _positions("trajectory in a row", len(use.return_N)),
        _row("return", use.return_N, ".4g"),
    ]
    if use.reached_N is not None:
        lines.append(_row("reached the target", use.reached_N, ".0%"))
    if use.slope is not None:
        lines += [
            _row("by target asked", use.target_K, ".4g"),
            _row("mean return", use.return_K, ".4g"),
            f"  return gained for each 1 asked for: {use.slope_text}",
        ]
    return lines


def _completion(measures: Measures) -> list[str]:
    if not measures.layout_has_completion:
        return []
    training = measures.training
    return [
        "Completion token in training chains",
        _positions("trajectory of the chain", measures.trajectories),
        _row("timesteps with 1", training.completed_timesteps_N, ".1%"),
        _row("trajectories with a 1", training.completed_trajectories_N, ".0%"),
    ]


def _context(context: ContextUse | None) -> list[str]:
    if context is None:
        return []
    return [
        f"Context: the last trajectory's actions have mean absolute error "
        f"{context.action_error:.3g}, mean squared {context.loss:.3g}; with earlier trajectories",
        *(
            f"  {name:<9} they move by {change.action:.3g} "
            f"({_of(change.action, context.action_error)} of the error), squared error "
            f"{change.loss:+.3g}{_interval(change)} ({_of(change.loss, context.loss)})"
            for name, change in context.changes.items()
        ),
    ]


def _interval(change: Change) -> str:
    if change.loss_low is None or change.loss_high is None:
        return ""
    return f" [{change.loss_low:+.2g}, {change.loss_high:+.2g}]"


def _of(part: float, whole: float) -> str:
    """Write a share; an agent without error has none."""
    return f"{part / whole:.1%}" if whole else "-"
