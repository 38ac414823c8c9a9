"""One ExoRL episode: reading it with every check, aligning its rows, writing it."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.archive import read_arrays, read_member
from agentic_bpt.datasets.listing import EpisodeFile, episode_files, opened, source_hash
from agentic_bpt.datasets.trajectory import Trajectory, require_action_range, require_finite
from agentic_bpt.environments.tasks import TASKS, TaskSpec, domain_spec
from agentic_bpt.errors import InputError
from agentic_bpt.whole_file import write_whole

__all__ = [
    "Episode",
    "EpisodeFile",
    "episode_files",
    "read_episode",
    "source_hash",
    "trajectory_of",
    "write_episode",
]

MAZE_REWARDS = 4  # the published point_mass_maze archives are said to hold one reward a target

_REQUIRED = ("observation", "action", "reward", "discount")
_KEYS = (*_REQUIRED, "physics", "action_repeat")


class Episode(NamedTuple):
    """One stored episode; row t + 1 of action and reward belongs to row t of observation."""

    observation: np.ndarray
    """float32 [T + 1, O]"""
    action: np.ndarray
    """float32 [T + 1, A], in [-1, 1]; row 0 is the reset and holds no action"""
    reward: np.ndarray
    """float32 [T + 1], or [T + 1, 4] with a column for each maze target; row 0 earned nothing"""
    discount: np.ndarray
    """float32 [T + 1], 1 throughout: no episode ends early"""
    physics: np.ndarray | None
    """float64 [T + 1, P], positions, velocities and activations; None if the file has none"""
    action_repeat: int
    """control steps for which each action was held"""
    name: str
    """file name"""


def read_episode(file: EpisodeFile, *, domain: str) -> Episode:
    """Read and check one episode; other float widths are converted.

    Args:
        file: from `episode_files`.
        domain: ExoRL's word, such as `walker`; it says how wide the arrays must be.

    Raises:
        InputError: naming the file, the key, the row and what to do.
    """
    spec = domain_spec(domain)
    arrays = _read_arrays(file)
    missing = [key for key in _REQUIRED if key not in arrays]
    if missing:
        raise InputError(
            f"{file}: an episode has the keys {', '.join(_REQUIRED)}; write it as ExoRL does; got "
            f"none named {', '.join(missing)}"
        )
    action_repeat = _action_repeat(arrays.pop("action_repeat", None), file)
    for key, values in arrays.items():
        _check_shape(key, values, file, spec)
        arrays[key] = _converted(values, np.float64 if key == "physics" else np.float32)
        require_finite(arrays[key], where=f"{file}: key {key!r}")
    require_action_range(arrays["action"], where=f"{file}: key 'action'")
    reward = arrays["reward"]
    return Episode(
        observation=arrays["observation"],
        action=arrays["action"],
        reward=reward if reward.shape[1] == MAZE_REWARDS else reward[:, 0],
        discount=arrays["discount"][:, 0],
        physics=arrays.get("physics"),
        action_repeat=action_repeat,
        name=file.name,
    )


def trajectory_of(episode: Episode, rewards: np.ndarray) -> Trajectory:
    """Align an episode with the rewards [T] of a task: s_t, a_t and r_t in one row.

    In the file a_t stands one row after s_t: s_t = observation[t], a_t = action[t + 1].
    """
    return Trajectory(
        observations=episode.observation[:-1],
        actions=episode.action[1:],
        rewards=rewards.astype(np.float32),
        final_observation=episode.observation[-1],
    )


def write_episode(folder: Path, *, index: int, episode: Episode) -> Path:
    """Write an episode as ExoRL does, whole or not at all; equal episodes give equal bytes.

    Args:
        folder: usually `<domain>/<expl_agent>/buffer`; made if it is not there.
        index: place in the order of collection.
        episode: what to write; its name is not used.

    Returns:
        The new file, `episode_{index:06d}_{length}.npz`.
    """
    rows = len(episode.observation)
    arrays = {
        "observation": episode.observation.astype(np.float32),
        "action": episode.action.astype(np.float32),
        "reward": episode.reward.astype(np.float32).reshape(rows, -1),
        "discount": episode.discount.astype(np.float32).reshape(rows, 1),
    }
    if episode.physics is not None:
        arrays["physics"] = episode.physics.astype(np.float64)
    if episode.action_repeat != 1:
        arrays["action_repeat"] = np.array(episode.action_repeat, np.int64)
    path = folder / f"episode_{index:06d}_{rows - 1}.npz"
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_whole(path, content.getvalue())
    return path


def _read_arrays(file: EpisodeFile) -> dict[str, np.ndarray]:
    with opened(file) as handle:
        if file.entry is None:
            return read_arrays(handle, _KEYS, where=str(file))
        data = read_member(handle, file.entry, where=str(file))
    return read_arrays(io.BytesIO(data), _KEYS, where=str(file))


def _check_shape(key: str, values: np.ndarray, file: EpisodeFile, spec: TaskSpec) -> None:
    rows = file.length + 1
    if values.ndim not in (1, 2) or len(values) != rows:
        raise InputError(
            f"{file}: key {key!r}: the name says {file.length} steps, so {rows} rows; it is cut "
            f"short or has the wrong name: download it again or rename it; got shape "
            f"{list(values.shape)}"
        )
    width = values.size // rows
    expected = {
        "observation": spec.observation_width,
        "action": spec.action_width,
        "physics": spec.physics_width,
    }.get(key, 1)
    maze = key == "reward" and spec.domain == "point_mass_maze" and width == MAZE_REWARDS
    if width != expected and not maze:
        raise InputError(
            f"{file}: key {key!r}: must have width {expected} in domain {spec.domain}; "
            f"{_other_domain(key, width)}; got width {width}"
        )


def _other_domain(key: str, width: int) -> str:
    """Say which domain an array of this width belongs to, and so what to do."""
    fields = {"observation": "observation_width", "physics": "physics_width"}
    domains = sorted(
        {spec.domain for spec in TASKS.values() if getattr(spec, fields.get(key, ""), 0) == width}
    )
    if domains:
        names = " or ".join(domains)
        return f"it looks like {names}: choose a task of {names} or give another folder"
    return "no domain has this: leave the file out"


def _converted(values: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """Copy to rows of the wanted type; a number too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return np.array(values.reshape(len(values), -1), dtype, order="C")


def _action_repeat(values: np.ndarray | None, file: EpisodeFile) -> int:
    if values is None:
        return 1
    if values.size != 1 or values.dtype.kind not in "iu" or values.item() < 1:
        raise InputError(
            f"{file}: key 'action_repeat': must be one whole number of at least 1, got "
            f"{values.dtype} {values.tolist()}"
        )
    return int(values.item())
