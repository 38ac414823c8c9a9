"""What context is worth: acting in hidden tasks that the observations do not tell.

Every chain has a parameter of its own, held out from training (a set of named tasks has none to
hold out: its chains take them in turn), and is asked for the best return of the training episodes
under it. That return and the agent's own rewards are all that an agent without a prompt has of its
task. The same chains are acted after trajectories of the right task, of a foreign task, of that
foreign task's episodes with the rewards of the right one, and of the right task with rewards
shuffled among them; and after nothing. Shuffled rewards leave the episodes in their order: sorted
again, the best episode would not stand last any more, and an agent that only does as the last one
did would seem to read rewards.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.datasets.hidden import HiddenEpisodes
from agentic_bpt.datasets.sampler import spaced_episodes
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.environments.hidden_tasks import HiddenEnvironment, HiddenTasks, step_together
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.policy import ContextPolicy, Policy, RandomPolicy
from agentic_bpt.evaluation.protocol import chain_scores
from agentic_bpt.evaluation.rollout import Rollouts, rollout


def check_counts(options: Any) -> None:
    """Refuse an evaluation of no trajectories or no chains, or of a negative prompt or seed.

    Raises:
        InputError: the option is named as on the command line.
    """
    least_of = {"trajectories": 1, "chains": 1, "prompt_trajectories": 0, "seed": 0}
    for name, least in least_of.items():
        if getattr(options, name) < least:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} must be at least {least}, got {getattr(options, name)}")


class InContext(NamedTuple):
    """What to roll out."""

    trajectories: int = 4
    """Episodes in a row in each chain, n."""
    chains: int = 16
    """Chains; they take the parameters in turn, ExoRL's own tasks first."""
    prompt_trajectories: int = 2
    """Trajectories k of the data set before the rollouts of the prompted conditions; with 0 there
    are none, with 1 none whose rewards are shuffled."""
    seed: int = 0
    """Of the episodes, as in other evaluations, and of the shuffling of rewards."""

    def file_name(self) -> str:
        """Name the result file: one a protocol."""
        return (
            f"in-context-n{self.trajectories}-chains{self.chains}"
            f"-prompt{self.prompt_trajectories}-seed{self.seed}.json"
        )


class Parameters(NamedTuple):
    """The hidden tasks of an evaluation."""

    values_KD: np.ndarray
    names: list[str | None]
    """ExoRL's name of each; None if it has none."""
    foreign_K: np.ndarray | None
    """Number of the parameter farthest from each, in units of the training parameters' spread; None
    if there is one parameter only."""


def evaluation_parameters(tasks: HiddenTasks) -> Parameters:
    """Choose what an agent is evaluated on: ExoRL's own tasks, then held-out parameters."""
    named_KD = np.array(list(tasks.named.values())).reshape(-1, len(tasks.parameter_names))
    values_KD = np.concatenate([named_KD, tasks.held_out_KD])
    names = [*tasks.named, *[None] * len(tasks.held_out_KD)]
    if len(values_KD) == 1:
        return Parameters(values_KD, names, None)
    spread_D = tasks.training_KD.std(axis=0)
    scaled_KD = values_KD / np.where(spread_D > 0, spread_D, 1)
    distance_KK = np.linalg.norm(scaled_KD[:, None] - scaled_KD[None], axis=2)
    return Parameters(values_KD, names, distance_KK.argmax(axis=1))


def evaluate_in_context(
    policy: ContextPolicy,
    episodes: HiddenEpisodes,
    options: InContext,
    *,
    target_excess: float = 0.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Roll a trained agent out in every condition, and a random policy beside it.

    An agent that was trained with targets above what was reached is asked for a return in the
    middle of that range above the best, of the data and of its prompt: it has never seen a target
    reached.

    Args:
        policy: of the agent; prompts need the whole chain in its context.
        episodes: the data that it was trained on; its parameter is told where it was in training.
        options: what to roll out.
        target_excess: of the chains that it was trained on.
        progress: told environment steps done and in all.

    Returns:
        A JSON document without the description of the run: protocol, the parameter, the foreign
        parameter and the best return of each chain, and returns [chain][trajectory] and targets of
        each condition.

    Raises:
        InputError: a wrong argument, or a prompt for an agent without room for it.
    """
    check_counts(options)
    parameters = evaluation_parameters(episodes.tasks)
    training = episodes.store.training
    returns_KE = episodes.returns(training, parameters.values_KD)
    task_C = np.arange(options.chains) % len(parameters.values_KD)
    best_C = returns_KE.max(axis=1)[task_C]
    prompts = _prompts(episodes, options, parameters, returns_KE, task_C)
    act = _roller(episodes, options, parameters.values_KD[task_C], len(prompts) + 1, progress)
    conditions = []
    for context, prompts_C in prompts.items():
        targets_C = asked_returns(best_C, prompts_C, target_excess)
        policy.start(targets_C, trajectories=options.trajectories, prompts=prompts_C)
        outcome = {"target_returns": targets_C.tolist(), **_outcome(act(policy))}
        conditions.append({"context": context, **outcome})
    random = RandomPolicy(episodes.store.trajectory(0).actions.shape[1], seed=options.seed)
    random.start(best_C, trajectories=options.trajectories)
    foreign_K = parameters.foreign_K
    return {
        "format": 3,
        "kind": "in_context",
        "protocol": {
            "hidden_task": episodes.tasks.text,
            "told": episodes.told,
            "trajectories": options.trajectories,
            "chains": options.chains,
            "prompt_trajectories": options.prompt_trajectories,
            "prompts": "evenly spaced returns up to the best",
            "evaluation_seed": options.seed,
            "target": "best return of the training episodes under the parameter and of the "
            f"prompt, times {1 + target_excess / 2:g}",
        },
        "parameter_names": list(episodes.tasks.parameter_names),
        "parameters": parameters.values_KD[task_C].tolist(),
        "tasks": [parameters.names[task] for task in task_C],
        "foreign_parameters": (
            None if foreign_K is None else parameters.values_KD[foreign_K[task_C]].tolist()
        ),
        "best_returns": best_C.tolist(),
        "mean_returns": returns_KE.mean(axis=1)[task_C].tolist(),
        "conditions": conditions,
        "random": _outcome(act(random)),
    }


def asked_returns(
    best_C: np.ndarray, prompts_C: Sequence[Sequence[Trajectory]], target_excess: float
) -> np.ndarray:
    """Give the target return of each chain, from the data's best in its task and from its prompt.

    Without excess it is the data's best. With excess, an agent never saw a target reached: it is
    asked for half of the excess above all that it is shown.
    """
    if not target_excess:
        return best_C
    shown_C = [max(t.total_reward for t in prompt) for prompt in prompts_C] or best_C
    return (1 + target_excess / 2) * np.maximum(best_C, shown_C)


def _roller(
    episodes: HiddenEpisodes,
    options: InContext,
    parameters_CD: np.ndarray,
    rounds: int,
    progress: Callable[[int, int], None],
) -> Callable[[Policy], Rollouts]:
    """Build the chains' environments once; gives what acts in them, `rounds` times."""
    store = episodes.store
    environments = [
        HiddenEnvironment(
            store.task,
            episodes.tasks,
            parameter_D,
            action_repeat=store.action_repeat,
            told=episodes.told,
        )
        for parameter_D in parameters_CD
    ]
    steps = environments[0].episode_steps * store.action_repeat * options.trajectories
    total = rounds * steps * options.chains
    done = 0

    def advance(environment_steps: int) -> None:
        nonlocal done
        done += environment_steps
        progress(done, total)

    return partial(
        rollout,
        task=store.task,
        chains_C=np.arange(options.chains),
        trajectories=options.trajectories,
        seed=options.seed,
        action_repeat=store.action_repeat,
        environments=environments,
        step_all=step_together,
        advance=advance,
    )


def _outcome(rolled: Rollouts) -> dict[str, Any]:
    return {
        "returns": rolled.returns_CN.tolist(),
        "seconds": {"model": rolled.model_seconds, "physics": rolled.physics_seconds},
    }


def _prompts(
    episodes: HiddenEpisodes,
    options: InContext,
    parameters: Parameters,
    returns_KE: np.ndarray,
    task_C: np.ndarray,
) -> dict[str, list[list[Trajectory]]]:
    """Give the prompt of each chain in each condition; no prompts at all for "none", the last."""
    if options.prompt_trajectories == 0:
        return {"none": []}
    prompts: dict[str, list[list[Trajectory]]] = {}
    training = episodes.store.training
    if options.prompt_trajectories > len(training):
        raise InputError(
            f"--prompt-trajectories must be at most {len(training)}, the training episodes of "
            f"{episodes.store.path}; got {options.prompt_trajectories}"
        )

    def prompt_of(chosen_for: int, task: int) -> list[Trajectory]:
        """Give episodes that are chosen by their returns in one task, with rewards of another."""
        chosen = spaced_episodes(
            returns_KE[chosen_for], np.arange(len(training)), count=options.prompt_trajectories
        )
        chosen = chosen[np.argsort(returns_KE[task][chosen], kind="stable")]
        source = episodes.under(parameters.values_KD[task])
        return [source.trajectory(int(episode)) for episode in training[chosen]]

    prompts["right"] = [prompt_of(task, task) for task in task_C]
    if parameters.foreign_K is not None:
        foreign_C = parameters.foreign_K[task_C]
        prompts["foreign"] = [prompt_of(foreign, foreign) for foreign in foreign_C]
        prompts["relabelled"] = [
            prompt_of(foreign, task) for foreign, task in zip(foreign_C, task_C, strict=True)
        ]
    if options.prompt_trajectories > 1:
        prompts["shuffled"] = [
            shuffle_rewards(prompt, seed=options.seed, chain=chain)
            for chain, prompt in enumerate(prompts["right"])
        ]
    return prompts | {"none": []}


def shuffle_rewards(
    trajectories: Sequence[Trajectory], *, seed: int, chain: int
) -> list[Trajectory]:
    """Give each trajectory the rewards of another one of them, each used once; keep their order.

    What was done and what it earned no longer belong together; the rewards are the same ones.

    Raises:
        InputError: the trajectories have unlike lengths.
    """
    lengths = {len(trajectory.rewards) for trajectory in trajectories}
    if len(lengths) > 1:
        raise InputError(
            "rewards can be shuffled among episodes of one length only: ingest such, got lengths "
            f"{sorted(lengths)}"
        )
    order = np.random.default_rng([seed, chain]).permutation(len(trajectories))
    shuffled = list(trajectories)
    for taker, giver in zip(order, np.roll(order, 1), strict=True):
        shuffled[taker] = trajectories[taker]._replace(rewards=trajectories[giver].rewards)
    return shuffled


def lines_of(document: dict[str, Any]) -> list[str]:
    """Say in a line a condition what came out: means over chains along the chain.

    Scores as `chain_scores` gives them.
    """
    best_C = np.array(document["best_returns"])
    base_C = np.array(document["random"]["returns"]).mean(axis=1)
    lines = [f"best of the data {best_C.mean():.1f}, random {base_C.mean():.1f} (over chains)"]
    for condition in document["conditions"]:
        returns_CN = np.array(condition["returns"])
        line = f"prompt {condition['context']}: returns {_spaced(returns_CN.mean(axis=0), 1)}"
        scores_CN = chain_scores(returns_CN, base_C, best_C)
        if scores_CN is not None:
            line += f"; scores {_spaced(scores_CN.mean(axis=0), 0)}"
        lines.append(line)
    return lines


def _spaced(values: np.ndarray, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values)
