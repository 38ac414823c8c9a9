"""Loading a trained run, to act with it."""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentic_bpt.datasets.store import Store
from agentic_bpt.environments.tasks import task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.policy import (
    ContextPolicy,
    Policy,
    ReactivePolicy,
    SinglePolicy,
)
from agentic_bpt.experiment import CriticAgent, Experiment, TransformerAgent, read_experiment
from agentic_bpt.exploration.offline_td3 import act_offline, init_offline
from agentic_bpt.models.mlp_policy import MLPPolicy
from agentic_bpt.models.tokens import Scales
from agentic_bpt.models.trajectory_transformer import timesteps_of
from agentic_bpt.run import (
    CHECKPOINTS,
    DATA_FILE,
    observation_width,
    one_timestep,
    transformer_model,
)
from agentic_bpt.training.checkpoint import Checkpoints
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import TrainState, init_state


class TrainedRun(NamedTuple):
    """A run with its newest checkpoint."""

    workdir: Path
    experiment: Experiment
    model: Any
    """The Flax module; None for critics, whose policy is all in `params`."""
    params: Any
    scales: Scales
    steps: int
    data: dict[str, Any]
    """What `describe_data` said of the store."""

    def policy(self, *, cache_dtype: str = "float32") -> Policy:
        """Build the policy that acts."""
        agent = self.experiment.agent
        if isinstance(agent, TransformerAgent):
            return ContextPolicy(
                self.model,
                self.params,
                self.scales,
                episode_steps=self.data["episode_steps"],
                completion=agent.chain.completion,
                context_trajectories=agent.context_trajectories,
                cache_dtype=cache_dtype,
            )
        if isinstance(agent, CriticAgent):
            mean_O, std_O = self.scales.observation_mean_O, self.scales.observation_std_O
            return ReactivePolicy(partial(act_offline, self.params, mean_O=mean_O, std_O=std_O))
        return ReactivePolicy(partial(self.model.apply, self.params, scales=self.scales))

    def open_store(self) -> Store:
        """Open the data that the run was trained on.

        Raises:
            InputError: it is not there, or not the same any more.
        """
        path = Path(self.data["path"])
        if not path.exists():
            raise InputError(
                f"{path}: the data of {self.workdir} is not there: run this where it was trained, "
                "or put the store back"
            )
        store = Store.open(path)
        if store.data_hash != self.data["data_hash"]:
            store.close()
            raise InputError(f"{store.path}: is not the data that {self.workdir} was trained on")
        return store


def load_run(workdir: Path) -> TrainedRun:
    """Load the newest checkpoint of a run; the store is not needed.

    Raises:
        InputError: the folder is not a run, or has no readable checkpoint.
    """
    experiment = read_experiment(workdir)
    data = read_data(workdir)
    width = observation_width(experiment, data["task"])
    scales = Scales(*(jnp.zeros(n) for n in ((width,), (width,), (), ())))
    model, template = _template(experiment, data, scales)
    checkpoints = Checkpoints(workdir / CHECKPOINTS)
    saved = checkpoints.restore({"state": template, "scales": scales})
    checkpoints.close()
    state = type(template)(*saved["state"])
    return TrainedRun(
        workdir=workdir,
        experiment=experiment,
        model=model,
        params=state.params if isinstance(state, TrainState) else state.actor,
        scales=Scales(*saved["scales"]),
        steps=int(state.step),
        data=data,
    )


def _template(experiment: Experiment, data: dict[str, Any], scales: Scales) -> tuple[Any, Any]:
    """Give the model of a run, and a training state that is shapes only."""
    agent, spec = experiment.agent, task_spec(data["task"])
    optimizer = make_optimizer(experiment.optimizer, steps=experiment.loop.steps)
    widths = {"observation_width": spec.observation_width, "action_width": spec.action_width}
    if isinstance(agent, CriticAgent):
        fresh = partial(init_offline, agent.learner, optimizer, seed=experiment.seed, **widths)
        return None, jax.eval_shape(fresh)
    if isinstance(agent, TransformerAgent):
        model: Any = transformer_model(agent, data["task"], data["episode_steps"])
        one = one_timestep(experiment, data["task"])
        arguments: tuple = (timesteps_of(one), one.valid_BL, scales)
    else:
        model = MLPPolicy(agent.model, spec.action_width)
        arguments = (jnp.zeros((1, spec.observation_width)), scales)
    return model, jax.eval_shape(
        lambda: init_state(model.init(jax.random.key(0), *arguments), optimizer)
    )


def read_data(workdir: Path) -> dict[str, Any]:
    """Read what a run's folder says of its data (`describe_data`)."""
    path = workdir / DATA_FILE
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read; train the run again; got {error}") from error


def load(workdir: str | Path) -> SinglePolicy:
    """Load a trained agent to act in one environment: `reset`, then `act` and `observe`.

    Raises:
        InputError: the folder is not a run, or has no readable checkpoint.
    """
    run = load_run(Path(workdir))
    return SinglePolicy(run.policy(), target_return=run.data["best"])
