"""Rollouts of 16 chains x 16 trajectories at the paper's size: steps/s by how full the cache is."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from agentic_bpt.environments.tasks import Environment, task_spec
from agentic_bpt.evaluation.policy import ContextPolicy
from agentic_bpt.evaluation.rollout import rollout
from agentic_bpt.experiment import TransformerAgent, replace_in
from agentic_bpt.made_by import made_by
from agentic_bpt.methods import preset_of
from agentic_bpt.models.tokens import Scales
from agentic_bpt.models.trajectory_transformer import timesteps_of
from agentic_bpt.reports.results import write_json
from agentic_bpt.run import one_timestep, transformer_model

TASK = "cartpole_swingup"
CHAINS, TRAJECTORIES, STEPS = 16, 16, 200
LAYOUTS = ("joint", "return-state-action-reward")
CACHES = ("float32", "bfloat16")
FILLED = (0.0, 0.5, 1.0)


class _Short(Environment):
    """The task, ended after the steps that are timed."""

    @property
    def episode_steps(self) -> int:
        return STEPS


def bench_rollout(out: Path | None) -> None:
    """Print, and write to `out`, environment steps a second and what they are spent on."""
    console = Console()
    console.print(
        f"{CHAINS} chains of {TRAJECTORIES} trajectories of {task_spec(TASK).episode_steps} steps, "
        f"{TASK}, the paper's model; {STEPS} steps timed:"
    )
    rows = []
    for layout in LAYOUTS:
        for dtype in CACHES:
            for filled in FILLED:
                rows.append(_measured(layout, dtype, filled))
                row = rows[-1]
                console.print(
                    f"  {layout:27} {dtype:9} {filled:4.0%} full  "
                    f"{row['steps_per_second']:8,.0f} steps/s  model {row['model_share']:.0%}, "
                    f"physics {row['physics_share']:.0%}"
                )
    if out is not None:
        write_json(
            out,
            {
                **made_by("jax", "mujoco"),
                "device": str(jax.devices()[0].device_kind),
                "cores": len(os.sched_getaffinity(0)),
                "task": TASK,
                "chains": CHAINS,
                "trajectories": TRAJECTORIES,
                "timed_steps": STEPS,
                "rows": rows,
            },
        )


def _measured(layout: str, cache_dtype: str, filled: float) -> dict[str, Any]:
    policy = _policy(layout, cache_dtype)
    steps = task_spec(TASK).episode_steps
    environments = [_Short(TASK) for _ in range(CHAINS)]
    chains = np.arange(CHAINS)

    def roll(start: int) -> tuple[float, float, float]:
        policy.start(np.full(CHAINS, 1000.0), trajectories=TRAJECTORIES)
        policy.fill(start)
        began = time.perf_counter()
        rolled = rollout(
            policy, TASK, chains_C=chains, trajectories=1, seed=0, environments=environments
        )
        return time.perf_counter() - began, rolled.model_seconds, rolled.physics_seconds

    roll(0)  # compiles
    seconds, model, physics = roll(round(filled * (TRAJECTORIES * steps - STEPS)))
    return {
        "layout": layout,
        "cache": cache_dtype,
        "filled": filled,
        "steps_per_second": CHAINS * STEPS / seconds,
        "model_share": model / seconds,
        "physics_share": physics / seconds,
    }


def _policy(layout: str, cache_dtype: str) -> ContextPolicy:
    """Build the paper's agent with fresh parameters."""
    experiment = replace_in(preset_of("at", "paper"), ("agent", "model", "layout"), layout)
    experiment = replace_in(experiment, ("agent", "chain", "trajectories"), TRAJECTORIES)
    agent = experiment.agent
    assert isinstance(agent, TransformerAgent)
    spec = task_spec(TASK)
    model = transformer_model(agent, TASK, spec.episode_steps)
    ones = np.ones(spec.observation_width, np.float32)
    scales = Scales(0 * ones, ones, jnp.float32(1000), jnp.float32(1))
    one = one_timestep(experiment, TASK)
    params = model.init(jax.random.key(0), timesteps_of(one), one.valid_BL, scales)
    return ContextPolicy(
        model,
        params,
        scales,
        episode_steps=spec.episode_steps,
        completion=agent.chain.completion,
        cache_dtype=cache_dtype,
    )
