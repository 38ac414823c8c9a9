"""METHODS: what differs between the methods, as data, each in two presets.

Preset "paper" is the published configuration: 3 layers, 1 head, width 128, ReLU, batch 64, four
tokens a timestep, 32 trajectories. These of its values are unverified (not found in a published
source by us): dropout 0.1, learning rate 1e-4, 100,000 warm-up steps, gradient clip 0.25, weight
decay 1e-4. The number of updates is not published: ours is 200,000.

Preset "cpu" is what two cores train in minutes: two layers of width 64, one token a timestep, a
higher learning rate, chains spread over the range of returns, and the loss on the last (best)
trajectory of a chain. With the loss on all, the first trajectories teach the agent to act badly
under a high target return. An update sees 16 episodes: with 64, and a quarter of the updates for
the same time, DT had 314 on cheetah_run where it then had 400 (one seed). Targets are drawn up to a
fifth above what was reached: without, AT that asked for the data's best (456) had 354 there, and 67
when it asked for a quarter more; with up to 0.3 it had 416 and 346 (one seed).

For td3_offline and td3_bc preset "paper" is that of the agents that ExoRL published: two layers of
1,024, batch 1024, 500,000 updates of Adam at 1e-4, one-step returns, the policy updated as often as
the critics. Unlike theirs, ours see normalised observations, as TD3+BC (arXiv 2106.06860) has it.
Theirs learn from about the first 1M decisions of an archive: to compare, ingest no more
(`--episodes 1000 --select first`).
"""

import dataclasses

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.datasets.sampler import ChainConfig
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import CloningAgent, CriticAgent, Experiment, TransformerAgent
from agentic_bpt.exploration.actor_critic import ActorCriticConfig
from agentic_bpt.models.mlp_policy import MLPConfig
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformerConfig
from agentic_bpt.training.loop import LoopConfig
from agentic_bpt.training.optimizer import OptimizerConfig

PRESETS = ("cpu", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the comparison."""

    summary: str
    """What it is, in one line."""
    presets: dict[str, Experiment]
    """Its configuration by preset, without data."""


_PAPER_OPTIMIZER = OptimizerConfig(
    learning_rate=1e-4,
    warmup_steps=100_000,
    schedule="constant",
    weight_decay=1e-4,
    gradient_clip=0.25,
)
_PAPER_LOOP = LoopConfig(steps=200_000, log_every_steps=100, checkpoint_every_steps=1_000)
_PAPER_MODEL = TrajectoryTransformerConfig(core=CoreConfig(dropout=0.1))
_CPU_MODEL = TrajectoryTransformerConfig(core=CoreConfig(layers=2, width=64), layout="joint")
_CPU_LOOP = LoopConfig(steps=1_600)


def _transformer(trajectories: int, context_trajectories: int | None) -> dict[str, Experiment]:
    name = "dt" if context_trajectories else "at"
    chain = ChainConfig(
        trajectories=1 if context_trajectories else trajectories,
        sampling="spread",
        target_excess=0.2,
        loss="last",
    )
    paper_chain = ChainConfig(trajectories=1 if context_trajectories else 32)
    return {
        "cpu": Experiment(
            method=name,
            agent=TransformerAgent(
                chain=chain, model=_CPU_MODEL, context_trajectories=context_trajectories
            ),
            optimizer=OptimizerConfig(),
            loop=_CPU_LOOP,
            batch=16 if context_trajectories else 4,
        ),
        "paper": Experiment(
            method=name,
            agent=TransformerAgent(
                chain=paper_chain, model=_PAPER_MODEL, context_trajectories=context_trajectories
            ),
            optimizer=_PAPER_OPTIMIZER,
            loop=_PAPER_LOOP,
            batch=64,
        ),
    }


_CLONING = {
    "cpu": Experiment(
        method="bc10",
        agent=CloningAgent(),
        optimizer=OptimizerConfig(),
        loop=LoopConfig(steps=3_000, log_every_steps=100, checkpoint_every_steps=1_000),
        batch=256,
    ),
    "paper": Experiment(
        method="bc10",
        agent=CloningAgent(model=MLPConfig(width=1024)),
        optimizer=_PAPER_OPTIMIZER,
        loop=_PAPER_LOOP,
        batch=1024,
    ),
}


_ADAM = OptimizerConfig(
    learning_rate=1e-4,
    warmup_steps=0,
    schedule="constant",
    weight_decay=0.0,
    gradient_clip=None,
)


def _critics(name: str, bc_alpha: float | None) -> dict[str, Experiment]:
    learner = ActorCriticConfig(actor_every_updates=1, return_steps=1)
    paper_learner = dataclasses.replace(learner, width=1024)
    return {
        "cpu": Experiment(
            method=name,
            agent=CriticAgent(bc_alpha=bc_alpha, learner=learner),
            optimizer=dataclasses.replace(_ADAM, learning_rate=3e-4),
            loop=LoopConfig(steps=8_000, log_every_steps=100, checkpoint_every_steps=1_000),
            batch=256,
        ),
        "paper": Experiment(
            method=name,
            agent=CriticAgent(bc_alpha=bc_alpha, learner=paper_learner),
            optimizer=_ADAM,
            loop=LoopConfig(steps=500_000, log_every_steps=1_000, checkpoint_every_steps=10_000),
            batch=1024,
        ),
    }


METHODS: dict[str, Method] = {
    "at": Method(
        summary="Agentic Transformer: N trajectories in context, worst to best",
        presets=_transformer(4, None),
    ),
    "dt": Method(
        summary="Decision Transformer: the same model with one trajectory in context",
        presets=_transformer(4, 1),
    ),
    "bc10": Method(summary="BC-10%: an MLP on the best tenth of episodes", presets=_CLONING),
    "td3_offline": Method(
        summary="TD3 on the stored episodes: a policy that seeks the value of learnt critics",
        presets=_critics("td3_offline", None),
    ),
    "td3_bc": Method(
        summary="TD3+BC: the same, kept near the actions of the data",
        presets=_critics("td3_bc", 2.5),
    ),
}


def preset_of(method: str, preset: str) -> Experiment:
    """Look up the configuration of a method.

    Raises:
        InputError: unknown method or preset; the known ones are listed.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
    return METHODS[method].presets[preset]
