"""The published table's numbers, kept as data to be shown beside ours for their order only."""

from collections.abc import Mapping
from typing import Any

# Blockwise Parallel Transformer (arXiv 2305.19370), Table 5; the column of N = 128 is Ring
# Attention (arXiv 2310.01889), Table 5. "oom" is the paper's own entry: out of memory.
COLUMNS = (
    "BC-10%",
    "DT",
    "AT N=4",
    "AT N=32",
    "AT+ME N=32",
    "AT+BPT N=32",
    "AT ring N=128",
)
_OOM = "oom"
TABLE: dict[str, tuple[float | str, ...]] = {
    "walker_stand": (52.91, 34.54, 68.55, _OOM, _OOM, 95.45, 98.23),
    "walker_run": (34.81, 49.82, 88.56, _OOM, _OOM, 105.88, 110.45),
    "walker_walk": (13.53, 34.94, 64.56, _OOM, _OOM, 78.56, 78.95),
    "cheetah_run": (34.66, 67.53, 125.68, _OOM, _OOM, 178.75, 181.34),
    "jaco_reach": (23.95, 18.64, 52.98, _OOM, _OOM, 87.56, 89.51),
    "cartpole_swingup": (56.82, 67.56, 97.81, _OOM, _OOM, 120.56, 123.45),
}

CAVEAT = (
    "The published numbers are shown for their order and are no target: their scale is not plain "
    "dm_control return. A uniform random policy has 127 on walker stand, above every entry of that "
    "row, and walker run lies above walker walk in every column, which the two rewards rule out "
    "for one policy. The paper reports the largest return among n trajectories."
)
JACO_CAVEAT = 'The paper\'s "Jaco Reach" does not say which of the four targets it is.'

_METHODS = {"bc10": "BC-10%", "dt": "DT", "td3_offline": "TD3", "td3_bc": "TD3+BC"}
_SCHEMES = {"vanilla": "AT", "memory_efficient": "AT+ME", "blockwise": "AT+BPT"}


def paper_column(method: str, settings: Mapping[str, Any]) -> str:
    """Name a column as the paper names its own, `COLUMNS`; others by their method."""
    if method != "at":
        return _METHODS.get(method, method)
    scheme = _SCHEMES.get(str(settings.get("scheme")), "AT")
    return f"{scheme} N={settings.get('trajectories')}"


def published_row(task: str) -> dict[str, float | str] | None:
    """Give the published entries of a task by column, or None where the paper has none."""
    name = "jaco_reach" if task.startswith("jaco_reach_") else task
    if name not in TABLE:
        return None
    return dict(zip(COLUMNS, TABLE[name], strict=True))


def published_entry(task: str, method: str, settings: Mapping[str, Any]) -> float | str | None:
    """Give the published entry of a method as it is set, or None where the paper has none.

    The scheme of computing does not change what N = 4 or N = 128 gives, only whether it fits.
    """
    row = published_row(task)
    if row is None:
        return None
    if method == "at" and settings.get("trajectories") == 4:
        return row["AT N=4"]
    if method == "at" and settings.get("trajectories") == 128:
        return row["AT ring N=128"]
    if method == "at" and settings.get("scheme") not in _SCHEMES:
        return None  # of N = 32 the schemes have entries of their own
    return row.get(paper_column(method, settings))
