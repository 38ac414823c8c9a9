"""A training run over a mesh in a process of its own, for `test_spread`.

Arguments: store, workdir, mesh, last step, coordinator or "", processes, rank. XLA_FLAGS says how
many devices the process has. A last step before the experiment's leaves a run that was stopped.
"""

import dataclasses
import sys
from pathlib import Path

from agentic_bpt import run
from agentic_bpt.methods import preset_of
from agentic_bpt.spread import join_mesh

STEPS = 4
SIZES = {
    ("loop", "steps"): STEPS,
    ("batch",): 4,
    ("accumulate",): 2,
    ("agent", "chain", "trajectories"): 3,
    ("agent", "model", "core", "layers"): 1,
    ("agent", "model", "core", "width"): 16,
    ("agent", "model", "core", "heads"): 2,
    ("agent", "model", "core", "dropout"): 0.1,
    ("optimizer", "warmup_steps"): 1,
}


def small_experiment(store: Path):
    """AT on short episodes, with dropout and accumulation."""
    from agentic_bpt.experiment import replace_in

    experiment = preset_of("at", "cpu")
    for path, value in SIZES.items():
        experiment = replace_in(experiment, path, value)
    return dataclasses.replace(experiment, store=str(store))


def main():
    store, workdir, mesh, last, coordinator, processes, rank = sys.argv[1:]
    config = join_mesh(
        mesh, coordinator=coordinator or None, processes=int(processes), rank=int(rank)
    )
    whole = run.train

    def part(state, *, config, **options):
        return whole(state, config=dataclasses.replace(config, steps=int(last)), **options)

    run.train = part
    run.train_run(small_experiment(Path(store)), Path(workdir), mesh=config)


if __name__ == "__main__":
    main()
