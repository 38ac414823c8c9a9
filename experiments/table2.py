"""Reproduces the paper's Table 2: the longest context of GPT 1B to 70B, by compiling, not running.

Command:   python experiments/table2.py      (extras gpu-target and tpu-target; resumable)
Time:      about 40 minutes of one core, 8 GB of memory; no accelerator
Expected:  experiments/results/language_model/table2.md: the blockwise column not below the paper's
"""

from functools import partial
from typing import NamedTuple

from compiled_bytes import PROTOCOL, Setup, bytes_taken, device_of, largest_power
from language_model import RESULTS

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.whole_file import write_whole

MOST = 2**19
"""No longer context is asked for."""


class Row(NamedTuple):
    """A row of the paper's Table 2."""

    model: str
    device: str
    count: int
    paper: tuple[int, int, int]
    """Its longest contexts, by scheme, in units of 1,024."""


ROWS = (
    Row("1B", "a100-80gb", 1, (16, 64, 128)),
    Row("3B", "a100-80gb", 1, (8, 16, 64)),
    Row("3B", "a100-80gb", 8, (16, 64, 128)),
    Row("7B", "a100-80gb", 8, (16, 64, 128)),
    Row("13B", "a100-80gb", 8, (8, 32, 64)),
    Row("30B", "a100-80gb", 8, (8, 16, 64)),
    Row("13B", "tpu-v4", 64, (4, 16, 32)),
    Row("30B", "tpu-v4", 64, (2, 4, 16)),
    Row("70B", "tpu-v4", 64, (1, 2, 8)),
)


def fits(row: Row, scheme: str, positions: int) -> bool | None:
    """Say whether a step fits; None where the compiler gave no answer."""
    setup = Setup(row.model, row.device, row.count, scheme, positions)
    taken = bytes_taken(setup)
    return None if taken is None else taken <= device_of(setup).usable_bytes


def cell(row: Row, scheme: str, paper: int) -> str:
    """Give ours, its bytes a device, and the paper's."""
    longest = largest_power(partial(fits, row, scheme), paper * 1024, most=MOST)
    if not longest:
        return f"{'none' if longest == 0 else 'unknown'} ({paper}K)"
    taken = bytes_taken(Setup(row.model, row.device, row.count, scheme, longest)) or 0
    more = " or more" if longest == MOST else ""
    return f"{longest // 1024}K{more}, {taken / 1e9:.0f} GB ({paper}K)"


def main() -> None:
    """Compile what is missing and write the table."""
    lines = [
        "# Table 2: the longest context that fits",
        "",
        "Ours, in powers of two, with the bytes it takes on each device; in brackets the paper's "
        f"(its Tables 2 and 3 contradict each other for 3B and 13B). {PROTOCOL}",
        "",
        f"| model | devices | {' | '.join(SCHEMES)} |",
        "|---|---|---:|---:|---:|",
    ]
    for row in ROWS:
        cells = [cell(row, scheme, k) for scheme, k in zip(SCHEMES, row.paper, strict=True)]
        lines.append(f"| {row.model} | {row.count} x {row.device} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    lines += ["", f"Command: `python experiments/table2.py`; versions {compiler_versions()}."]
    write_whole(RESULTS / "table2.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
