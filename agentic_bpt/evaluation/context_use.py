"""Whether earlier trajectories of a chain change what an agent does in the last one."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from agentic_bpt.datasets.hindsight import Chain, pack
from agentic_bpt.datasets.sampler import ChainBatch, pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.imitation import ChainAt, Predict, unpadded
from agentic_bpt.evaluation.protocol import bootstrap_interval

LEAST_TO_REVERSE = 3
"""Trajectories of a chain; with fewer there is one earlier trajectory and nothing to reorder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What another context does to the last trajectory, mean over its timesteps."""

    action: float
    """Mean absolute change of the predicted actions."""
    loss: float
    """Change of the mean squared error of the actions; above 0, the own context was of use."""
    loss_low: float | None
    """Lower end of its 95 % bootstrap interval over chains; None for one chain. Chains share
    episodes where these are few, so it is a little narrow."""
    loss_high: float | None
    """Upper end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextUse:
    """The last trajectory of chains under its own context and under others."""

    action_error: float
    """Mean absolute error of its actions under its own context."""
    loss: float
    """Mean squared error of its actions under its own context."""
    changes: dict[str, Change]
    """By what was done to the earlier trajectories: "reversed", "dropped", or "foreign"."""


def measure_context(
    predict: Predict, chain_at: ChainAt, *, chains: int, completion: str
) -> ContextUse:
    """Predict the last trajectory of chains 0, 1, ... with its earlier trajectories changed.

    They are "reversed" in order, "dropped", or "foreign": those of the next chain, aimed at this
    chain's target. A foreign one may be better than the chain's last, which no training chain has:
    an agent that looks at its context notices.
    """
    errors, losses = [], []
    changes: dict[str, list[tuple[float, float]]] = {}
    for number in range(chains):
        batch = chain_at(number)
        chain = unpadded(batch)
        own, target_return = trajectories_of(chain), float(chain.returns_to_go_L[0])
        foreign = trajectories_of(unpadded(chain_at(number + 1)))
        variants = {"dropped": [own[-1]], "foreign": [*foreign[:-1], own[-1]]}
        if len(own) >= LEAST_TO_REVERSE:
            variants["reversed"] = [*own[-2::-1], own[-1]]
        actions_TA = own[-1].actions
        predicted_TA = _last_actions(predict, batch, len(actions_TA))
        loss = float(np.square(predicted_TA - actions_TA).mean())
        errors.append(float(np.abs(predicted_TA - actions_TA).mean()))
        losses.append(loss)
        for name, trajectories in variants.items():
            changed = arrange(
                trajectories,
                target_return=target_return,
                completion=completion,
                count=len(own),
                length=batch.valid_BL.shape[1],
            )
            other_TA = _last_actions(predict, changed, len(actions_TA))
            change = float(np.abs(other_TA - predicted_TA).mean())
            more = float(np.square(other_TA - actions_TA).mean()) - loss
            changes.setdefault(name, []).append((change, more))
    return ContextUse(
        action_error=float(np.mean(errors)),
        loss=float(np.mean(losses)),
        changes={name: _mean_change(np.array(pairs)) for name, pairs in sorted(changes.items())},
    )


def trajectories_of(chain: Chain) -> list[Trajectory]:
    """Part a chain into its trajectories; what follows the last action of each is not known."""
    parts = []
    for number in range(int(chain.trajectories_L.max()) + 1):
        rows = chain.trajectories_L == number
        observations = chain.observations_LO[rows]
        parts.append(
            Trajectory(
                observations, chain.actions_LA[rows], chain.rewards_L[rows], observations[-1]
            )
        )
    return parts


def arrange(
    trajectories: Sequence[Trajectory],
    *,
    target_return: float,
    completion: str,
    count: int,
    length: int,
) -> ChainBatch:
    """Pack trajectories in the order given: a batch of one chain.

    The last has the number it has in a chain of `count`, so that only what stands before it
    differs; the batch has `length` timesteps.
    """
    chain = pack(trajectories, target_return=target_return, completion=completion)
    numbers_L = chain.trajectories_L + np.int32(count - len(trajectories))
    return pad_chains([chain._replace(trajectories_L=numbers_L)], length=length)


def _mean_change(changes_C2: np.ndarray) -> Change:
    """Average the change of action and of loss over chains."""
    loss, low, high = bootstrap_interval(changes_C2[None, :, 1])
    action = float(changes_C2[:, 0].mean())
    return Change(action=action, loss=loss, loss_low=low, loss_high=high)


def _last_actions(predict: Predict, batch: ChainBatch, steps: int) -> np.ndarray:
    """Predict the actions [T, A] of the last `steps` timesteps that are not padding."""
    return predict(batch)[batch.valid_BL[0]][-steps:]
