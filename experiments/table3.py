"""Reproduces the paper's Table 3: bytes a device against the context of GPT 3B and 13B.

Command:   python experiments/table3.py      (extra gpu-target; shares what table2.py compiled)
Time:      about 15 minutes of one core, 8 GB of memory; no accelerator
Expected:  experiments/results/language_model/table3.md and table3_<model>.png
"""

from language_model import RESULTS, Setup, bytes_taken, device_of

from agentic_bpt.planner.cache import compiler_versions
from agentic_bpt.reports.plots import memory_png
from agentic_bpt.whole_file import write_whole

SCHEMES = ("vanilla", "memory_efficient", "blockwise")
CONTEXTS = (8_192, 16_384, 32_768, 65_536, 131_072)
PAPER = {
    ("3B", 1): {
        8_192: ("64", "44", "43"),
        65_536: ("oom", "75", "70"),
        131_072: ("oom", "oom", "79"),
    },
    ("13B", 8): {32_768: ("-", "55", "52"), 131_072: ("oom", "oom", "78")},
}
"""GB, those that are quoted where this was written from; by model, number of A100 and context."""


def main() -> None:
    """Compile what is missing; write the table and a picture for each model."""
    lines = [
        "# Table 3: bytes a device against context",
        "",
        "GB on each A100 of 80 GB (a program can have 80.8); in brackets the paper's, where known. "
        "Setup as in table2.md.",
        "",
        f"| model | devices | context | {' | '.join(SCHEMES)} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for (model, count), paper in PAPER.items():
        curves: dict[str, dict[int, int]] = {scheme: {} for scheme in SCHEMES}
        for positions in CONTEXTS:
            cells = []
            for scheme, theirs in zip(SCHEMES, paper.get(positions, "---"), strict=True):
                setup = Setup(model, "a100-80gb", count, scheme, positions)
                taken, limit = bytes_taken(setup), device_of(setup).usable_bytes
                if taken is None:
                    cells.append(f"unknown ({theirs})")
                    continue
                curves[scheme][positions] = taken
                mark = ", oom" if taken > limit else ""
                cells.append(f"{taken / 1e9:.0f}{mark} ({theirs})")
            lines.append(f"| {model} | {count} | {positions:,} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        picture = memory_png(
            curves,
            {"A100 80 GB": limit},
            title=f"GPT {model}, float32 AdamW, {count} x A100: bytes on each",
            counted="positions",
        )
        write_whole(RESULTS / f"table3_{model.lower()}.png", picture)
        lines += ["", f"![{model}](table3_{model.lower()}.png)", ""]
    lines += ["", f"Command: `python experiments/table3.py`; versions {compiler_versions()}."]
    write_whole(RESULTS / "table3.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
