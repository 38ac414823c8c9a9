"""Metrics of a run: one JSON object a line, and TensorBoard beside it."""

import json
from pathlib import Path

from tensorboardX import SummaryWriter

from agentic_bpt.whole_file import write_whole


class MetricsWriter:
    """Appends to `metrics.jsonl` in a run's folder; lines of steps that are redone are dropped.

    Args:
        workdir: folder of the run.
        resume_step: updates that the run's state already holds.
    """

    def __init__(self, workdir: Path, *, resume_step: int):
        self.path = workdir / "metrics.jsonl"
        kept = [line for line in read_metrics(self.path) if line["step"] <= resume_step]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = self.path.open("a")
        board = str(workdir / "tensorboard")
        self._board = SummaryWriter(board, purge_step=resume_step + 1)  # hides steps from there on

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both files."""
        self._file.close()
        self._board.close()


def read_metrics(path: Path) -> list[dict]:
    """Read the lines written so far; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines
