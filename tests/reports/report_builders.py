"""Made-up result files, as an evaluation writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentic_bpt.reports.results import write_json

DATASET_RETURNS = [float(value) for value in range(20, 120)]


def result_document(
    *,
    method: str = "at",
    seed: int = 0,
    task: str = "walker_run",
    returns: Any = ((100.0, 200.0, 150.0), (110.0, 190.0, 170.0)),
    multipliers: Sequence[float | None] = (1.0,),
    created: str = "2025-01-01T10:00:00+00:00",
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Build the document of one evaluation; target x m gives the returns times m."""
    returns_CN = np.array(returns, dtype=np.float64)
    chains, trajectories = returns_CN.shape
    target = 400.0
    document = {
        "format": 1,
        "kind": "evaluation",
        "command": f"agentic-bpt evaluate runs/{method}-{seed}",
        "run": f"runs/{method}-{seed}",
        "method": method,
        "task": task,
        "action_repeat": 1,
        "seed": seed,
        "protocol": {
            "trajectories": trajectories,
            "chains": chains,
            "prompt_trajectories": 0,
            "evaluation_seed": 7,
        },
        "settings": {"trajectories": 4, "scheme": "blockwise"} if settings is None else settings,
        "training": {"steps": 1000, "tokens": 64000, "seconds": 12.34},
        "conditions": [
            {
                "target_multiplier": multiplier,
                "target_return": None if multiplier is None else target * multiplier,
                "returns": (returns_CN * (multiplier or 1.0)).tolist(),
            }
            for multiplier in multipliers
        ],
        "random": {"returns": np.linspace(20, 25, chains * trajectories).reshape(chains, -1)},
        "dataset": {
            "path": "data/stores/walker_run-rnd-control-0123456789ab.h5",
            "data_hash": "0123456789ab",
            "episodes": len(DATASET_RETURNS),
            "returns": DATASET_RETURNS,
            "best": 119.0,
            "mean": 69.5,
            "best_tenth_mean": 114.5,
        },
        "seconds": {"model": 1.5, "physics": 2.5},
        "versions": {"agentic-bpt": "0.1.0", "mujoco": "3.17.0"},
        "created": created,
    }
    return {**document, **changes}


def write_result(folder: Path, *, key: str = "a", **changes: Any) -> Path:
    """Write such a document into a run folder and give the file's path."""
    path = folder / f"evaluation-{key}.json"
    write_json(path, result_document(**changes))
    return path
