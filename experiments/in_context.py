"""What trajectories in context are worth where nothing else tells the task, and how many it takes.

Reproduces: nothing published: on one fixed task, as in the paper, an agent needs no context.
Command:    python experiments/table5_data.py data/table5 cheetah    (once, a quarter of an hour)
            python experiments/in_context.py [HIDDEN] [SEED ...]     (direction and 0 by default)
Hidden:     direction: whether the cheetah is paid for running forwards or backwards, on whole
            replays of learners of both and on curiosity (those of table5_data.py, and one more);
            speed: at what speed, -3 to 3 m/s, on the same episodes; evaluated at speeds that no
            training chain had.
Time:       direction: about 40 minutes of one core a seed; speed: two hours; 2 GB of memory;
            resumable.
Expected:   experiments/results/in_context/<hidden>.md; were context worth what it should be, the
            right task's trajectories before a rollout would help, the more the larger N, up to the
            agent that is told.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.datasets.store import ingest
from agentic_bpt.evaluating import evaluate_hidden
from agentic_bpt.evaluation.in_context import InContext
from agentic_bpt.experiment import replace_in
from agentic_bpt.exploration.collect import collect
from agentic_bpt.methods import preset_of
from agentic_bpt.reports.context import (
    Agent,
    context_lines,
    context_png,
    difference_lines,
    part_lines,
)
from agentic_bpt.run import train_run
from agentic_bpt.whole_file import write_whole

WORKDIR = Path("runs/in_context")
RESULTS = Path(__file__).parent / "results" / "in_context"
CHAINS_OF_AN_UPDATE = {1: 16, 2: 8, 4: 8, 8: 8}
"""By N: an agent with context learns from the last trajectory of each chain, so as many chains
are as much to learn from; DT has twice that, as in its preset."""
CHAINS = 16


def cheetah_sources() -> list[Path]:
    """Collect episodes of a learner that runs backwards; give them and those of the table."""
    table, here = Path("data/table5/cheetah"), Path("data/hidden")
    if not (table / "td3_run").is_dir():
        sys.exit(f"{table}: missing; first python experiments/table5_data.py data/table5 cheetah")
    collect(
        "cheetah_run_backward",
        expl_agent="td3",
        episodes=200,
        out=here,
        name="td3_run_backward",
        action_repeat=4,
    )
    return [table / "td3_run", table / "rnd", here / "cheetah" / "td3_run_backward"]


class Hidden(NamedTuple):
    """Hidden tasks and the episodes that show them."""

    hidden_task: str
    steps: int
    """Updates."""


TASK = "cheetah_run"
"""Where episodes begin."""
HIDDEN = {
    "direction": Hidden("cheetah_run,cheetah_run_backward", 1_600),
    "speed": Hidden("cheetah_speed", 6_400),
}
AGENTS = {
    "DT": (1, False),
    **{f"AT, N = {n}": (n, False) for n in (2, 4, 8)},
    "DT, told the task": (1, True),
}
"""Trajectories in training, and whether the task is among the observations."""


def stem(trajectories: int, told: bool) -> str:
    """Name an agent's runs."""
    return f"n{trajectories}{'-told' if told else ''}"


def evaluation_of(trajectories: int) -> InContext:
    """Say how an agent is evaluated: prompts of N - 1, so that what follows is its N-th."""
    return InContext(trajectories, CHAINS, trajectories - 1, seed=0)


def run(name: str, store: Path, label: str, seed: int) -> None:
    """Train and evaluate one agent, unless its result is there."""
    trajectories, told = AGENTS[label]
    workdir = WORKDIR / name / f"{stem(trajectories, told)}-seed{seed}"
    evaluation = evaluation_of(trajectories)
    if (workdir / evaluation.file_name()).exists():
        return
    experiment = preset_of("dt" if trajectories == 1 else "at", "cpu")
    for place, value in {
        ("agent", "chain", "trajectories"): trajectories,
        ("agent", "hidden_task"): HIDDEN[name].hidden_task,
        ("agent", "told"): told,
        ("loop", "steps"): HIDDEN[name].steps,
        ("batch",): CHAINS_OF_AN_UPDATE[trajectories],
        ("store",): str(store),
        ("seed",): seed,
    }.items():
        experiment = replace_in(experiment, place, value)
    train_run(experiment, workdir)
    command = f"python experiments/in_context.py {name} {seed}"
    evaluate_hidden(workdir, evaluation, command=command)


def results(name: str) -> list[Agent]:
    """Keep the results that are there, and give them by agent."""
    agents = []
    for label, (trajectories, told) in AGENTS.items():
        runs = (WORKDIR / name).glob(f"{stem(trajectories, told)}-seed*")
        paths = [run / evaluation_of(trajectories).file_name() for run in sorted(runs)]
        files = [path for path in paths if path.exists()]
        for file in files:
            write_whole(RESULTS / name / f"{file.parent.name}.json", file.read_bytes())
        if files:
            documents = [json.loads(file.read_text()) for file in files]
            agents.append(Agent(label, trajectories, told, documents))
    made_of = {
        (d["format"], d["dataset"]["data_hash"], d["training"]["steps"], str(d["versions"]))
        for agent in agents
        for d in agent.documents
    }
    if len(made_of) > 1:
        sys.exit(f"{WORKDIR / name}: results of unlike data, updates or versions; delete the old")
    return agents


def main() -> None:
    """Run what is missing of the seeds asked for, and report all that is there after each agent."""
    name, *words = sys.argv[1:] or list(HIDDEN)[:1]
    seeds = [int(word) for word in words] or [0]
    if name not in HIDDEN:
        sys.exit(f"hidden tasks must be one of {', '.join(HIDDEN)}; got {name!r}")
    store = ingest(*cheetah_sources(), task=TASK, out=WORKDIR, keep_physics=True).path
    for seed in seeds:
        for label in AGENTS:
            run(name, store, label, seed)
            report(name)


def report(name: str) -> None:
    """Write the page and the picture."""
    agents = results(name)
    first = agents[0].documents[0]
    page = [
        f"# {HIDDEN[name].hidden_task}: what trajectories in context are worth",
        f"![score against N]({name}.png)",
        "Score of the first rollout after N - 1 trajectories of the data (0: a random policy, 100: "
        "the best of the data in the chain's own task, on average over chains), with 95 % "
        "bootstrap intervals over seeds and chains (within each task, where tasks are named). What "
        "an agent has of its task without a prompt is what DT has: the return that it is asked "
        "for, and its own rewards. Episodes of a prompt are chosen by their returns and stand "
        "worst to best; where rewards are shuffled among them they keep that order, so that what "
        "they do still tells. Held-out speeds lie in few bands: intervals are over chains, not "
        "over bands.",
        "\n".join(context_lines(agents)),
        "Differences of that score between agents in the same chains:",
        "\n".join(difference_lines(agents)),
        "Where that score comes from (each part's own scale: 100 is the best of the data there):",
        "\n".join(part_lines(agents)),
        f"Command: `python experiments/in_context.py {name} SEED ...`; {CHAINS} chains a seed; "
        f"data hash `{first['dataset']['data_hash']}`; versions {first['versions']}.",
    ]
    write_whole(RESULTS / f"{name}.png", context_png(agents))
    write_whole(RESULTS / f"{name}.md", ("\n\n".join(page) + "\n").encode())
    print("\n".join(context_lines(agents)), flush=True)


if __name__ == "__main__":
    main()
