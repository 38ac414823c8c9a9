"""What one run is: the configs of its parts, composed, checked, and kept beside its results."""

import dataclasses
import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic_bpt.datasets.sampler import ChainConfig
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.actor_critic import ActorCriticConfig
from agentic_bpt.models.mlp_policy import MLPConfig
from agentic_bpt.models.trajectory_transformer import TrajectoryTransformerConfig
from agentic_bpt.training.loop import LoopConfig
from agentic_bpt.training.optimizer import OptimizerConfig
from agentic_bpt.whole_file import write_whole

FILE_NAME = "experiment.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerAgent:
    """A trajectory transformer and the chains it learns from: AT and DT."""

    chain: ChainConfig = dataclasses.field(default_factory=ChainConfig)
    """How chains are drawn."""
    model: TrajectoryTransformerConfig = dataclasses.field(
        default_factory=TrajectoryTransformerConfig
    )
    """Tokens and core."""
    context_trajectories: int | None = None
    """Trajectories in the context when acting: None the whole chain, 1 a fresh start each (DT)."""
    hidden_task: str = ""
    """What `environments.hidden_tasks` names: each chain is of another task, which nothing but its
    rewards tells. Empty: all are of the store's task."""
    hidden_hash: str = ""
    """Hash of the user's reward file, where the hidden task is one."""
    told: bool = False
    """Put the hidden task's parameter into the observations: the agent that need not find it."""

    def __post_init__(self):
        """Refuse to tell what is not hidden."""
        if self.told and not self.hidden_task:
            raise InputError("--told needs a --hidden-task whose parameter is told")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CloningAgent:
    """An MLP that imitates single steps of the best episodes: BC-10%."""

    best_fraction: float = 0.1
    """Share of the training episodes, best by return, that is imitated."""
    model: MLPConfig = dataclasses.field(default_factory=MLPConfig)
    """The network."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticAgent:
    """A policy that seeks the value of two critics learnt from single steps: TD3 and TD3+BC."""

    bc_alpha: float | None = None
    """The value's weight beside imitation (alpha of TD3+BC); None: the policy imitates nothing."""
    learner: ActorCriticConfig = dataclasses.field(default_factory=ActorCriticConfig)
    """Networks, critics' target, and noise."""

    def __post_init__(self):
        """Refuse a weight that seeks low values."""
        if self.bc_alpha is not None and self.bc_alpha <= 0:
            raise InputError(f"bc_alpha must be positive, got {self.bc_alpha}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides the parameters at the end of training."""

    method: str
    """Name in `methods.METHODS`."""
    store: str = ""
    """Path of the store; not compared when a run is resumed, its content is."""
    data_hash: str = ""
    """Hash of the store's content."""
    agent: TransformerAgent | CloningAgent | CriticAgent
    """Model and data of the method."""
    optimizer: OptimizerConfig
    """Optimiser."""
    loop: LoopConfig
    """Length of training."""
    batch: int
    """Chains (or single steps, for a method without chains) an update."""
    accumulate: int = 1
    """Parts that a batch is worked on in, one after another: less memory, and the same update but
    for the masks of dropout."""
    seed: int = 0
    """Of initial parameters, batches and dropout."""

    def __post_init__(self):
        """Refuse batches that cannot be cut."""
        if isinstance(self.agent, CriticAgent) and self.accumulate != 1:
            raise InputError(f"--accumulate means nothing to method {self.method}: leave it out")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, got {self.seed}")
        if self.batch < 1 or self.accumulate < 1 or self.batch % self.accumulate:
            raise InputError(f"accumulate must divide batch {self.batch}, got {self.accumulate}")


def replace_in(config: Any, path: tuple[str, ...], value: Any) -> Any:
    """Give a config with the field at `path` replaced.

    Raises:
        KeyError: the config has no such field: this method does not use it.
        InputError: the value is refused by the config.
    """
    name, *rest = path
    if name not in {field.name for field in dataclasses.fields(config)}:
        raise KeyError(name)
    if rest:
        value = replace_in(getattr(config, name), tuple(rest), value)
    try:
        return dataclasses.replace(config, **{name: value})
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error


def override(
    experiment: Experiment, name: str, places: Sequence[tuple[str, ...]], value: Any
) -> Experiment:
    """Replace the field `name` of the first config, by path, that has such a field.

    Raises:
        InputError: this method has no such field, or the value is refused.
    """
    for place in places:
        try:
            return replace_in(experiment, (*place, name), value)
        except KeyError:
            continue
    flag = name.replace("_", "-")
    raise InputError(f"--{flag} means nothing to method {experiment.method}: leave it out")


def write_experiment(experiment: Experiment, workdir: Path) -> None:
    """Keep the experiment in its run's folder."""
    text = json.dumps(dataclasses.asdict(experiment), indent=1) + "\n"
    write_whole(workdir / FILE_NAME, text.encode())


def read_experiment(workdir: Path) -> Experiment:
    """Read the experiment of a run.

    Raises:
        InputError: the folder is not a run, or its file cannot be read by this version.
    """
    path = workdir / FILE_NAME
    if not path.is_file():
        raise InputError(f"{workdir}: is not a run: it has no {FILE_NAME}; train one first")
    try:
        return _build(Experiment, json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: cannot be read by this version; got {error}") from error


def first_difference(
    ours: Experiment, theirs: Experiment, *, ignore: tuple[str, ...] = ("store",)
) -> str | None:
    """Name the first field in which two experiments differ, with both values; None if none."""
    here, there = flat(ours), flat(theirs)
    for name in sorted(here.keys() | there.keys()):
        if name not in ignore and here.get(name) != there.get(name):
            return f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
    return None


def difference_from_run(experiment: Experiment, workdir: Path) -> str | None:
    """Name the first difference from the run that a folder holds; None if none, or it holds none.

    Raises:
        InputError: its file cannot be read by this version.
    """
    if not (workdir / FILE_NAME).exists():
        return None
    return first_difference(experiment, read_experiment(workdir))


def flat(experiment: Experiment) -> dict[str, Any]:
    """Give every field by its path, such as "agent.chain.trajectories"."""
    return _flat(dataclasses.asdict(experiment), "")


def _flat(tree: dict, prefix: str) -> dict[str, Any]:
    fields = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            fields |= _flat(value, f"{prefix}{name}.")
        else:
            fields[prefix + name] = value
    return fields


def _build(kind: Any, value: Any) -> Any:
    """Make a config of a type, or of the first fitting type of a union, from plain JSON values."""
    if isinstance(kind, types.UnionType):
        for option in typing.get_args(kind):
            is_config = dataclasses.is_dataclass(option) and isinstance(value, dict)
            if is_config and {field.name for field in dataclasses.fields(option)} >= set(value):
                return _build(option, value)
        return value
    if not dataclasses.is_dataclass(kind):
        return value
    hints = typing.get_type_hints(kind)
    make: Any = kind
    return make(**{name: _build(hints[name], part) for name, part in value.items()})
