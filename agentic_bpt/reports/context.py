"""What trajectories in context are worth in hidden tasks, against their number N.

Axes: S seeds, C chains, N rollouts of a chain.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentic_bpt.evaluation.protocol import Interval, bootstrap_interval, chain_scores
from agentic_bpt.reports.plots import COLORS, DOTS_PER_INCH, INK, figure_png, tidy

CONTEXTS = {
    "none": "nothing",
    "right": "the right task",
    "foreign": "a foreign task",
    "relabelled": "the foreign episodes, right rewards",
    "shuffled": "the right task, rewards shuffled",
}
"""What stands before the first rollout, by its name in a result."""


GAP = 0.2
"""Of the range of a parameter: so far apart, two neighbours belong to different parts."""


class Agent(NamedTuple):
    """One agent over its seeds."""

    label: str
    trajectories: int
    """N in training; a prompt has N - 1, so that the first rollout is the N-th trajectory."""
    told: bool
    documents: Sequence[Mapping[str, Any]]
    """What `evaluate_in_context` gave, one a seed."""


def scores(
    document: Mapping[str, Any], context: str, chains: np.ndarray | slice = slice(None)
) -> np.ndarray | None:
    """Give scores [C, N] of a condition as `chain_scores` does; None where it was not acted."""
    found = [c for c in document["conditions"] if c["context"] == context]
    if not found:
        return None
    base_C = np.array(document["random"]["returns"])[chains].mean(axis=1)
    returns_CN = np.array(found[0]["returns"])[chains]
    return chain_scores(returns_CN, base_C, np.array(document["best_returns"])[chains])


def rollout_score(agent: Agent, context: str, rollout: int) -> Interval | None:
    """Give the mean score of a rollout of all chains and seeds, with its interval."""
    found = [scores(document, context) for document in agent.documents]
    return _interval(agent, [scores_CN[:, rollout] for scores_CN in found if scores_CN is not None])


def difference(
    agent: Agent, context: str, other: Agent, other_context: str, rollout: int = 0
) -> Interval | None:
    """Give how far a rollout is above another agent's first, in the same chains and seeds."""
    one = {d["seed"]: scores(d, context) for d in agent.documents}
    two = {d["seed"]: scores(d, other_context) for d in other.documents}
    found = [
        a_CN[:, rollout] - b_CN[:, 0]
        for seed, a_CN in one.items()
        if a_CN is not None and (b_CN := two.get(seed)) is not None
    ]
    return _interval(agent, found)


def _interval(agent: Agent, values: Sequence[np.ndarray]) -> Interval | None:
    """Give the mean over seeds of one number a chain; None of no seeds."""
    if not values:
        return None
    # Named tasks are a fixed set; held-out parameters, unnamed, are a sample of many.
    return bootstrap_interval(np.stack(values), groups_C=agent.documents[0]["tasks"])


def difference_lines(agents: Sequence[Agent]) -> list[str]:
    """Give in Markdown what the right task's trajectories are worth, chain by chain."""
    told = [agent for agent in agents if agent.told]
    untold = sorted((a for a in agents if not a.told), key=lambda agent: agent.trajectories)
    lines = [
        "| agent after the right task | over the next smaller N | over rewards shuffled "
        "| over the agent that is told | own rollouts: N-th over first, after nothing |",
        "|---|---:|---:|---:|---:|",
    ]
    for smaller, agent in itertools.pairwise(untold):
        before = "right" if smaller.trajectories > 1 else "none"
        found = [
            difference(agent, "right", smaller, before),
            difference(agent, "right", agent, "shuffled"),
            difference(agent, "right", told[0], "none") if told else None,
            difference(agent, "none", agent, "none", rollout=-1),
        ]
        lines.append(f"| {agent.label} | {' | '.join(map(_text, found))} |")
    return lines


def context_lines(agents: Sequence[Agent]) -> list[str]:
    """Give the table in Markdown: first rollout after each context, and the last after none."""
    lines = [
        "| agent | seeds | " + " | ".join(f"after {text}" for text in CONTEXTS.values()) + " "
        "| N-th rollout after nothing |",
        "|---|---:|" + "---:|" * (len(CONTEXTS) + 1),
    ]
    for agent in agents:
        cells = [_text(rollout_score(agent, context, 0)) for context in CONTEXTS]
        cells.append(_text(rollout_score(agent, "none", -1)))
        counted = sum(scores(document, "none") is not None for document in agent.documents)
        lines.append(f"| {agent.label} | {counted} | {' | '.join(cells)} |")
    return lines


def part_lines(agents: Sequence[Agent]) -> list[str]:
    """Give in Markdown each agent's score within each part of the tasks: what the mean hides.

    Parts are tasks with a name, else stretches of a parameter with a gap between them. An agent
    that is shown nothing in training (N = 1) is scored after nothing. Empty for parameters of
    several numbers.
    """
    parts = _parts(agents[0].documents[0])
    if not parts:
        return []
    heads = [f"{name} ({len(chains)} chains)" for name, chains in parts.items()]
    lines = [f"| agent, after | {' | '.join(heads)} |", "|---|" + "---:|" * len(parts)]
    for agent in agents:
        context = "none" if agent.told or agent.trajectories == 1 else "right"
        cells = [f"{_part_score(agent, context, chains):.0f}" for chains in parts.values()]
        lines.append(f"| {agent.label}, {CONTEXTS[context]} | {' | '.join(cells)} |")
    return lines


def _parts(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sort chains into parts of the tasks: name -> numbers of chains."""
    tasks = np.array(document["tasks"])
    if None not in document["tasks"]:
        return {name: np.flatnonzero(tasks == name) for name in dict.fromkeys(tasks.tolist())}
    parameters_CD = np.array(document["parameters"])
    if parameters_CD.shape[1] != 1:
        return {}
    values_C = parameters_CD[:, 0]
    order_C = np.argsort(values_C)
    gaps = np.diff(values_C[order_C])
    ends = np.flatnonzero(gaps > GAP * np.ptp(values_C)) + 1
    return {
        f"{values_C[chains].min():.1f} to {values_C[chains].max():.1f}": chains
        for chains in np.split(order_C, ends)
    }


def _part_score(agent: Agent, context: str, chains: np.ndarray) -> float:
    """Score first rollouts in units of the part's own distance from random to the best."""
    found = [scores(document, context, chains) for document in agent.documents]
    kept = [scores_CN[:, 0].mean() for scores_CN in found if scores_CN is not None]
    return float(np.mean(kept)) if kept else np.nan


def context_png(agents: Sequence[Agent]) -> bytes:
    """Draw the score of the first rollout against N, a line a context, the told agents as marks."""
    figure = Figure(figsize=(7, 4.2), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (context, text), color in zip(CONTEXTS.items(), COLORS, strict=False):
        points = [(a.trajectories, rollout_score(a, context, 0)) for a in agents if not a.told]
        _draw(axes, [(n, i) for n, i in points if i is not None], f"after {text}", color)
    told = [(a.trajectories, rollout_score(a, "none", 0)) for a in agents if a.told]
    for n, interval in told:
        if interval is not None:
            axes.plot([n], [interval.value], "*", color=INK, markersize=12, label="told the task")
    axes.set_xscale("log", base=2)
    counts = sorted({agent.trajectories for agent in agents})
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel("trajectories N in training")
    axes.set_ylabel("score of the first rollout\n(0 random, 100 the data's best)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    tidy(axes)
    return figure_png(figure)


def _draw(axes, points: Sequence[tuple[int, Interval]], label: str, color: str) -> None:
    counts = [n for n, _ in points]
    values = [interval.value for _, interval in points]
    axes.plot(counts, values, "o-", color=color, label=label)
    low = [i.value if i.low is None else i.low for _, i in points]
    high = [i.value if i.high is None else i.high for _, i in points]
    axes.fill_between(counts, low, high, color=color, alpha=0.15, linewidth=0)


def _text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None:
        return f"{interval.value:.0f}"
    return f"{interval.value:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
