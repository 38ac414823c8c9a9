"""Reproduces the paper's Table 3: bytes a device against the context of GPT 3B and 13B.

Command:   python experiments/table3.py      (extra gpu-target; shares what table2.py compiled)
Time:      about 15 minutes of one core, 8 GB of memory; no accelerator
Expected:  experiments/results/language_model/table3.md and table3_<model>.png
"""

from compiled_bytes import PROTOCOL, Setup, bytes_taken
from language_model import RESULTS

from agentic_bpt.blockwise.core import SCHEMES
from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.reports.plots import memory_png
from agentic_bpt.whole_file import write_whole

LIMIT = DEVICES["a100-80gb"].usable_bytes
CONTEXTS = (8_192, 16_384, 32_768, 65_536, 131_072)
PAPER = {
    ("3B", 1): {
        8_192: ("64", "44", "43"),
        65_536: ("-", "75", "70"),
        131_072: ("-", "oom", "79"),
    },
    ("13B", 8): {32_768: ("-", "55", "52"), 131_072: ("oom", "oom", "78")},
}
"""GB by model, number of A100 and context, by scheme; "-" for those not quoted where this was
written from."""
_UNQUOTED = ("-", "-", "-")


def main() -> None:
    """Compile what is missing; write the table and a picture for each model."""
    lines = [
        "# Table 3: bytes a device against context",
        "",
        "GB on each A100 of 80 GB; in brackets the paper's, where known. Its Table 2 has a longest "
        f"context of 64K for both models in the blockwise scheme, its Table 3 more. {PROTOCOL}",
        "",
        f"| model | devices | context | {' | '.join(SCHEMES)} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for (model, count), paper in PAPER.items():
        curves: dict[str, dict[int, int]] = {scheme: {} for scheme in SCHEMES}
        for positions in CONTEXTS:
            cells = []
            for scheme, theirs in zip(SCHEMES, paper.get(positions, _UNQUOTED), strict=True):
                setup = Setup(model, "a100-80gb", count, scheme, positions)
                taken = bytes_taken(setup)
                if taken is None:
                    cells.append(f"unknown ({theirs})")
                    continue
                curves[scheme][positions] = taken
                mark = ", oom" if taken > LIMIT else ""
                cells.append(f"{taken / 1e9:.0f}{mark} ({theirs})")
            lines.append(f"| {model} | {count} | {positions:,} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        picture = memory_png(
            curves,
            {"A100 80 GB": LIMIT},
            title=f"GPT {model}, float32 AdamW, {count} x A100: bytes on each",
            counted="positions",
        )
        write_whole(RESULTS / f"table3_{model.lower()}.png", picture)
    lines += ["", *(f"![{model}](table3_{model.lower()}.png)" for model, _ in PAPER)]
    lines += ["", f"Command: `python experiments/table3.py`; versions {compiler_versions()}."]
    write_whole(RESULTS / "table3.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
