"""Reproduces the paper's Table 5: six tasks, every method, every seed, with intervals.

Command:   python experiments/table5.py --data DATA --preset cpu
           (the same as agentic-bpt table5; DATA holds <domain>/<collector>, folders or zips)
Time:      preset cpu: about twenty minutes of one core for a task and seed
Memory:    preset cpu: 2 GB
Expected:  WORKDIR/report/table5.md (what is published lies in experiments/results/table5); the
           paper's claim is the order of its columns
"""

import sys

from agentic_bpt.cli import main

if __name__ == "__main__":
    sys.argv[:1] = ["agentic-bpt", "table5"]
    main()
