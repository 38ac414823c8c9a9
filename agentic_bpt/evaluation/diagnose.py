"""Why an agent is bad, in words: plain sentences from measures and thresholds."""

import dataclasses

import numpy as np

from agentic_bpt.evaluation.context_use import ContextUse
from agentic_bpt.evaluation.imitation import FAR_DEVIATIONS, ChainMeasures
from agentic_bpt.evaluation.target_use import NEAR, ROUNDING, AskedTarget, EvaluationUse

LEAST_SKILL = 0.02
"""Share of the mean action's error that an agent must take away to have learned anything; an agent
that did takes away tens of percent (cartpole, 100 updates: 52 to 58 by the seed of the chains)."""

WORSE_THAN_LINEAR = 1.05
"""Error over that of the linear baseline: a network that has learned what there is to learn from an
observation is never worse; a twentieth is left to chance."""

OVERFIT = 1.25
"""Error on validation chains over that on training chains, plain and with both over the mean
action's there: a split with wilder or tamer actions is not taken for overfitting."""

RARE_TARGET = 0.01
"""Share of training chains near the target asked; below it the agent saw next to none."""

LEAST_SLOPE = 0.1
"""Return gained per return asked for; an agent that follows has about 1."""

BOUNDS_GAP = 0.2
"""Difference between the agent's share of actions at +-1 and the data's, in either direction."""

FAR_SHARE = 1e-3
"""Share of one observation's values that lie far out: a normal distribution has 6e-7, and values of
a thousandth of all timesteps come up once in every episode of 1,000."""

ALIKE_RETURNS = 0.02
"""Standard deviation of returns over the largest; returns-to-go then hardly tell episodes apart."""

COMPLETION_GAP = 0.5
"""Difference between the share of trajectories that reach their target at test and in training."""

CONTEXT_CHANGE = 0.05
"""Change of the last trajectory's actions over their error; less is lost in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measures:
    """All that a verdict is drawn from."""

    trajectories: int
    """Trajectories in each chain that was measured, N."""
    loss: str
    """Which of them carry the loss: "all" or "last"."""
    imitates: bool
    """Whether the method learns to act as the data does; otherwise errors say how far it is."""
    layout_has_completion: bool
    """Whether the agent sees a completion token."""
    return_std: float
    """Standard deviation of the training episodes' returns."""
    return_scale: float
    """What returns-to-go are divided by."""
    best_return: float
    """Largest return of a training episode."""
    training: ChainMeasures
    """On training chains."""
    validation: ChainMeasures | None
    """On validation chains; None where the split has too few episodes for a chain."""
    asked: list[AskedTarget]
    """Every target the agent was asked for, each once; empty where it is told none."""
    evaluations: list[EvaluationUse]
    """Result files of the run, newest first."""
    context: ContextUse | None
    """On validation chains where there are any; None without earlier trajectories."""

    @property
    def held_out(self) -> ChainMeasures:
        """Give the measures on validation chains, or on training chains where there are none."""
        return self.validation or self.training

    def with_loss(self, error_N: list[float]) -> float:
        """Average an error over the positions that carry the loss."""
        return float(np.mean(error_N[-1:] if self.loss == "last" else error_N))


def verdict(measures: Measures) -> tuple[str, ...]:
    """Say in plain sentences what is wrong with an agent, or that nothing stands out."""
    sentences = (
        *_errors(measures),
        *_targets(measures),
        *_returns(measures),
        *_bounds(measures),
        *_units(measures),
        *_completion(measures),
        *_context(measures),
    )
    return sentences or ("nothing stands out: no threshold of this diagnosis is crossed",)


def _errors(measures: Measures) -> list[str]:
    """Compare the action error with the mean action's, the linear baseline's and training's."""
    if not measures.imitates:
        return []
    found = measures.held_out
    agent, mean, linear = map(measures.with_loss, (found.agent_N, found.mean_N, found.linear_N))
    sentences = []
    if agent > (1 - LEAST_SKILL) * mean:
        sentence = (
            f"the agent predicts actions no better than their mean (mean squared error {agent:.3g} "
            f"against {mean:.3g})"
        )
        if linear > (1 - LEAST_SKILL) * mean:
            sentence += (
                "; nor does a linear function of the observation: the data's actions may be as "
                "good as random"
            )
        else:
            sentence += f", where a linear function of the observation has {linear:.3g}: train on"
        sentences.append(sentence)
    elif agent > WORSE_THAN_LINEAR * linear:
        sentences.append(
            f"a linear function of the observation predicts actions better than the agent "
            f"(mean squared error {linear:.3g} against {agent:.3g}): it has not trained enough, "
            "or is too small"
        )
    if measures.validation is not None:
        training = measures.training
        seen, seen_mean = map(measures.with_loss, (training.agent_N, training.mean_N))
        times = min(_ratio(agent, seen), _ratio(agent, seen) * _ratio(seen_mean, mean))
        if times > OVERFIT:
            sentences.append(
                f"the action error on validation chains is {times:.2f} times that on training "
                "chains: it overfits; more episodes or fewer updates"
            )
    return sentences


def _targets(measures: Measures) -> list[str]:
    """Compare each target asked with those of training."""
    sentences = []
    for asked in measures.asked:
        beyond = asked.target > measures.best_return + ROUNDING * abs(measures.best_return)
        if beyond and asked.near < RARE_TARGET:
            sentences.append(
                f"the target of {asked.target:.4g} is above every return in the data "
                f"(best {measures.best_return:.4g}), and hardly a chain aimed there: ask for less"
            )
        elif asked.near < RARE_TARGET:
            sentences.append(
                f"the target of {asked.target:.4g} is rare in training: {asked.near:.1%} of chains "
                f"aimed within {NEAR:.0%} of it; ask for what more chains aimed at, or draw chains "
                "with --sampling spread"
            )
    return sentences


def _returns(measures: Measures) -> list[str]:
    """Look at the newest evaluation: does the return follow the target, is it above chance."""
    sentences = []
    for evaluation in measures.evaluations[:1]:
        mean = float(np.mean(evaluation.return_N))
        if mean <= evaluation.random:
            sentences.append(
                f"the return of {mean:.4g} is no better than a random policy's "
                f"{evaluation.random:.4g}"
            )
        if evaluation.slope is not None and evaluation.slope < LEAST_SLOPE:
            sentences.append(
                f"the return does not follow the target: {evaluation.slope_text} gained for "
                "each 1 asked for; the returns-to-go hardly steer the agent"
            )
    if measures.asked and measures.return_std < ALIKE_RETURNS * measures.return_scale:
        sentences.append(
            f"the returns in the data are nearly alike (standard deviation "
            f"{measures.return_std:.3g}, largest {measures.return_scale:.4g}): a target tells the "
            "agent next to nothing"
        )
    return sentences


def _bounds(measures: Measures) -> list[str]:
    """Compare how often actions lie at +-1."""
    found = measures.held_out
    shares = f"{found.at_bounds:.0%} lie at +-1, {found.data_at_bounds:.0%} of the data's"
    if found.at_bounds > found.data_at_bounds + BOUNDS_GAP:
        return [f"the agent's actions are clipped: {shares}"]
    if measures.imitates and found.at_bounds < found.data_at_bounds - BOUNDS_GAP:
        return [
            f"the agent's actions are too timid: {shares}; squared error averages actions that "
            "jump between the bounds"
        ]
    return []


def _units(measures: Measures) -> list[str]:
    """Look for observations far outside of what the normaliser expects, and for constant ones."""
    sentences = []
    far_O = np.asarray(measures.held_out.far_O)
    wild = np.flatnonzero(far_O > FAR_SHARE)
    if len(wild):
        worst = int(np.argmax(far_O))
        sentences.append(
            f"{len(wild)} of {len(far_O)} observations often lie beyond {FAR_DEVIATIONS:g} "
            f"standard deviations, number {worst} most ({far_O[worst]:.2%} of timesteps)"
        )
    if measures.training.constant:
        sentences.append(
            f"observations that never change in training: {measures.training.constant}; if they "
            "do when acting, the agent has not seen it"
        )
    return sentences


def _completion(measures: Measures) -> list[str]:
    """Compare how often trajectories reach their target at test and in training."""
    reached = measures.evaluations[0].reached_N if measures.evaluations else None
    if reached is None or not measures.layout_has_completion:
        return []
    in_training = measures.training.completed_trajectories_N
    # In a chain of hindsight the last trajectory reaches the target and those before do not.
    sentences = []
    if in_training[-1] - reached[-1] > COMPLETION_GAP:
        sentences.append(
            f"the completion token differs: the last trajectory reaches its target in "
            f"{in_training[-1]:.0%} of training chains and in {reached[-1]:.0%} at test; ask for "
            "less"
        )
    if len(reached) > 1 and len(in_training) > 1:
        before, at_test = float(np.mean(in_training[:-1])), float(np.mean(reached[:-1]))
        if at_test - before > COMPLETION_GAP:
            sentences.append(
                f"the completion token differs: {before:.0%} of trajectories before the last reach "
                f"the target in training and {at_test:.0%} at test; ask for more"
            )
    return sentences


def _context(measures: Measures) -> list[str]:
    """Say whether the earlier trajectories change the actions, and for the better."""
    context = measures.context
    if context is None:
        return []
    largest = max(change.action for change in context.changes.values())
    if largest < CONTEXT_CHANGE * context.action_error:
        return [
            "earlier trajectories do not change the action: the context is not used (reordered, "
            f"dropped or replaced, they move it by {largest:.2g} at most, its error is "
            f"{context.action_error:.2g})"
        ]
    # Whether a change of the error is more than chance, its interval over chains says.
    dropped = context.changes["dropped"]
    if dropped.loss_high is not None and dropped.loss_high < 0:
        return [
            f"earlier trajectories make the actions worse: without them the error falls from "
            f"{context.loss:.3g} to {context.loss + dropped.loss:.3g}"
        ]
    lows = [change.loss_low for change in context.changes.values()]
    if all(low is not None and low <= 0 for low in lows):
        return [
            "earlier trajectories change the action but are not seen to improve it: reordered, "
            f"dropped or replaced, the error of {context.loss:.3g} grows by no more than chance"
        ]
    return []


def _ratio(part: float, whole: float) -> float:
    """Divide; over an error of 0 there is nothing to compare with, and 1 accuses nobody."""
    return part / whole if whole else 1.0
