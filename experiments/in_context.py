"""What trajectories in context are worth where nothing else tells the task, and how many it takes.

Reproduces: nothing published: on one fixed task, as in the paper, an agent needs no context.
Command:    python experiments/in_context.py [SEED ...]     (0 and 1 by default)
Task:       keep the pole upright with the cart at a place that only the rewards tell, on the
            embedded cartpole episodes; evaluated at places that no training chain had.
Time:       about 25 minutes of one core a seed, 2 GB of memory; resumable.
Expected:   experiments/results/in_context/in_context.md; were context worth what it should be, the
            right task's trajectories before a rollout would help, the more the larger N, up to the
            agent that is told. One seed: a foreign task hurts at N = 4, the right one is no help.
"""

import json
import sys
from pathlib import Path

from agentic_bpt.datasets.store import ingest
from agentic_bpt.evaluating import evaluate_hidden
from agentic_bpt.evaluation.in_context import InContext
from agentic_bpt.experiment import replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.quickstart import TASK, embedded_sources
from agentic_bpt.reports.context import Agent, context_lines, context_png
from agentic_bpt.run import train_run
from agentic_bpt.whole_file import write_whole

FAMILY = "cartpole_position"
WORKDIR = Path("runs/in_context")
RESULTS = Path(__file__).parent / "results" / "in_context"
EPISODES_OF_AN_UPDATE = 16
CHAINS = 16
AGENTS = {
    "DT": (1, False),
    "AT, N = 4": (4, False),
    "AT, N = 8": (8, False),
    "DT, told the place": (1, True),
}
"""Trajectories in training, and whether the place is among the observations."""


def run(store: Path, label: str, seed: int) -> Path:
    """Train and evaluate one agent; gives its result file."""
    trajectories, told = AGENTS[label]
    workdir = WORKDIR / f"n{trajectories}{'-told' if told else ''}-seed{seed}"
    evaluation = InContext(trajectories, CHAINS, trajectories - 1, seed=0)
    path = workdir / evaluation.file_name()
    if not path.exists():
        experiment = preset_of("dt" if trajectories == 1 else "at", "cpu")
        for place, value in {
            ("agent", "chain", "trajectories"): trajectories,
            ("agent", "hidden_task"): FAMILY,
            ("agent", "told"): told,
            ("batch",): EPISODES_OF_AN_UPDATE // trajectories,
            ("store",): str(store),
            ("seed",): seed,
        }.items():
            experiment = replace_in(experiment, place, value)
        train_run(experiment, workdir)
        evaluate_hidden(workdir, evaluation)
    return path


def main() -> None:
    """Run what is missing of the seeds asked for, and report every seed that is whole."""
    seeds = [int(word) for word in sys.argv[1:]] or [0, 1]
    store = ingest(*embedded_sources(), task=TASK, out=WORKDIR, keep_physics=True).path
    for seed in seeds:
        for label in AGENTS:
            run(store, label, seed)
    agents = []
    for label, (trajectories, told) in AGENTS.items():
        stem = f"n{trajectories}{'-told' if told else ''}-seed*"
        files = sorted(WORKDIR.glob(f"{stem}/in-context-n{trajectories}-*.json"))
        for file in files:
            write_whole(RESULTS / f"{file.parent.name}.json", file.read_bytes())
        documents = [json.loads(file.read_text()) for file in files]
        agents.append(Agent(label, trajectories, told, documents))
    first = agents[0].documents[0]
    page = [
        f"# {FAMILY}: what trajectories in context are worth",
        "![score against N](in_context.png)",
        "Score of the first rollout after N - 1 trajectories of the data (0: a random policy, 100: "
        "the best of the data under the chain's own parameter), means over held-out parameters, "
        "with 95 % bootstrap intervals over seeds and chains.",
        "\n".join(context_lines(agents)),
        f"Command: `python experiments/in_context.py {' '.join(map(str, seeds))}`; {CHAINS} chains "
        f"a seed; data hash `{first['dataset']['data_hash']}`; versions {first['versions']}.",
    ]
    write_whole(RESULTS / "in_context.png", context_png(agents))
    write_whole(RESULTS / "in_context.md", ("\n\n".join(page) + "\n").encode())
    print("\n".join(context_lines(agents)))


if __name__ == "__main__":
    main()
