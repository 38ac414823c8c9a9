"""The quickstart over five seeds: is AT's last trajectory above BC-10% and the best tenth?

Reproduces: nothing published; it backs the result table of the README.
Command:    python experiments/quickstart_seeds.py
Time:       about 35 minutes on 2 cores, 2 GB of memory; resumable at any point.
Expected:   AT's mean last return above BC-10%'s and above the mean of the dataset's best tenth.
"""

import sys
from pathlib import Path

from agentic_bpt.quickstart import run_quickstart
from agentic_bpt.reports.results import write_report

SEEDS = range(5)
WORKDIR = Path("runs/quickstart_seeds")
RESULTS = Path(__file__).parent / "results" / "quickstart"


def main() -> None:
    """Train and evaluate what is missing, then pool all seeds in one report."""
    workdir = Path(sys.argv[1]) if len(sys.argv) > 1 else WORKDIR
    results = []
    for seed in SEEDS:
        results += run_quickstart(workdir, collect_anew=False, seed=seed)
    print(write_report(results, RESULTS))


if __name__ == "__main__":
    main()
