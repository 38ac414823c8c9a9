"""Minari datasets in and out; ExoRL episodes come back from one bit by bit."""

import copy
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from agentic_bpt.datasets.exchange import (
    ExchangeResult,
    below_reset,
    discount_of,
    import_episodes,
    landing,
    require_widths,
)
from agentic_bpt.datasets.exorl import MAZE_REWARDS, Episode, read_episode
from agentic_bpt.datasets.listing import MAX_STEPS, EpisodeFile, episode_files
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.datasets.trajectory import require_action_range, require_finite
from agentic_bpt.environments.tasks import TaskSpec, domain_spec, task_spec
from agentic_bpt.errors import InputError

# Infos of T + 1 rows that keep what Minari's own arrays cannot hold: discount, physics, and, where
# they are unusual (a reset that is not zero, a reward for each maze target), action and reward.
_INFOS_KEY = "exorl"
_ACTION_REPEAT_KEY = "action_repeat"  # of the metadata


def export_minari(
    source: Path,
    *,
    dataset_id: str,
    task: str,
    progress: Callable[[int, int], None] | None = None,
) -> ExchangeResult:
    """Write ExoRL episodes as a local Minari dataset, whose environment is the task's.

    Rewards are those in the files; four rewards a step, one for each maze target, are kept beside
    those of the task. Holds one episode in memory at a time.

    Args:
        source: `<domain>/<expl_agent>`, its buffer folder, or the zip.
        dataset_id: as Minari names it, such as `exorl/walker-rnd-v0`; lies under
            MINARI_DATASETS_PATH, or `~/.minari/datasets`.
        task: full name of the task that the stored rewards belong to.
        progress: called with (episodes done, episodes in all) after each.

    Raises:
        InputError: Minari is not installed, the id is taken, or a bad episode.
    """
    storage_type = _minari("dataset.minari_storage").MinariStorage
    from gymnasium import spaces

    spec = task_spec(task)
    files = episode_files(Path(source))
    target = _dataset_folder(dataset_id)
    action_repeat = read_episode(files[0], domain=spec.domain).action_repeat
    with landing(target) as folder:
        storage = storage_type.new(
            folder / "data",
            observation_space=spaces.Box(-np.inf, np.inf, (spec.observation_width,), np.float32),
            action_space=spaces.Box(-1, 1, (spec.action_width,), np.float32),
            env_spec=_environment_spec(task, action_repeat),
        )
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": _minari().__version__,
                "description": f"ExoRL episodes of {spec.domain} with rewards of {task}",
                _ACTION_REPEAT_KEY: action_repeat,
            }
        )
        storage.update_episodes(_buffers(files, spec, action_repeat, progress))
    return ExchangeResult(target, len(files), [])


def import_minari(
    dataset_id: str,
    *,
    domain: str,
    expl_agent: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> ExchangeResult:
    """Write the episodes of a local Minari dataset as ExoRL does.

    What `export_minari` wrote comes back bit by bit, numbered from 0. Other datasets must have flat
    observations and actions in [-1, 1] of the domain's widths; they have no physics.

    Args:
        dataset_id: as Minari names it; downloaded before, nothing is downloaded here.
        domain: ExoRL's word, such as `walker`.
        expl_agent: name for the collector, a folder.
        out: folder of data sets; the episodes go to `<out>/<domain>/<expl_agent>/buffer`.
        progress: called with (episodes done, episodes in all) after each.

    Raises:
        InputError: Minari is not installed, there is no such dataset, or it cannot be of the
            domain; nothing is left behind.
    """
    dataset = _open(dataset_id)
    spec = domain_spec(domain)
    _check_spaces(dataset, spec)
    action_repeat = dataset.storage.metadata.get(_ACTION_REPEAT_KEY, 1)
    if not isinstance(action_repeat, int) or action_repeat < 1:
        raise InputError(
            f"{dataset_id}: metadata {_ACTION_REPEAT_KEY!r}: must be a whole number of at least 1; "
            f"mend metadata.json; got {action_repeat!r}"
        )
    episodes = _episodes(dataset, spec, action_repeat, progress)
    return import_episodes(episodes, out=out, domain=domain, expl_agent=expl_agent, notes=[])


def _minari(module: str = "") -> Any:
    """Import Minari or a module of it, which only these two functions need."""
    try:
        return import_module(f"minari.{module}" if module else "minari")
    except ImportError as error:
        raise InputError(
            f"Minari is not installed: pip install 'agentic-bpt[minari]'; got {error}"
        ) from error


def _dataset_folder(dataset_id: str) -> Path:
    dataset_module = _minari("dataset.minari_dataset")
    try:
        dataset_module.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        raise InputError(
            "a Minari dataset is named [namespace/]name-v<version>, such as exorl/walker-rnd-v0; "
            f"got {dataset_id!r}"
        ) from error
    return _minari("storage.datasets_root_dir").get_dataset_path(dataset_id)


def _environment_spec(task: str, action_repeat: int) -> Any:
    """Give what Minari's `recover_environment` makes the task's environment from."""
    import gymnasium

    from agentic_bpt.environments.gym import register_environments

    register_environments()
    spec = copy.deepcopy(gymnasium.spec(f"agentic_bpt/{task}-v0"))
    spec.kwargs["action_repeat"] = action_repeat
    return spec


def _buffers(
    files: Sequence[EpisodeFile],
    spec: TaskSpec,
    action_repeat: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Any]:
    """Read each episode as Minari takes it."""
    buffer_type = _minari("data_collector.episode_buffer").EpisodeBuffer
    for number, file in enumerate(files, start=1):
        episode = read_episode(file, domain=spec.domain)
        if episode.action_repeat != action_repeat:
            raise InputError(
                f"{file}: key 'action_repeat': must be {action_repeat} as in the episodes before "
                f"it; export the others apart; got {episode.action_repeat}"
            )
        mode = "stored" if episode.reward.ndim == 1 else "control"
        actions_TA = episode.action[1:]
        rewards_T = relabel(episode, task=spec.name, mode=mode).astype(np.float32)
        infos = {"discount": episode.discount}
        infos |= {} if episode.physics is None else {"physics": episode.physics}
        for key, values in (("action", actions_TA), ("reward", rewards_T)):
            kept = getattr(episode, key)
            if below_reset(values).tobytes() != kept.tobytes():
                infos[key] = kept
        ends_T = np.arange(len(actions_TA)) == len(actions_TA) - 1
        terminated = episode.discount[-1] == 0
        yield buffer_type(
            observations=episode.observation,
            actions=actions_TA,
            rewards=rewards_T,
            terminations=ends_T & terminated,
            truncations=ends_T & ~terminated,
            infos={_INFOS_KEY: infos},
        )
        if progress is not None:
            progress(number, len(files))


def _open(dataset_id: str) -> Any:
    """Open a local dataset without ever making the environment that its metadata names.

    Minari makes it to learn the spaces if the metadata lacks them, and so runs any code that a
    downloaded file asks for.
    """
    folder = _dataset_folder(dataset_id) / "data"
    storage_type = _minari("dataset.minari_storage").MinariStorage
    dataset_type = _minari().MinariDataset
    try:
        metadata = storage_type.read_raw_metadata(folder)
        if not {"observation_space", "action_space"} <= set(metadata):
            raise ValueError("metadata without observation_space or action_space, not made up here")
        return dataset_type(storage_type.read(folder))
    except (ValueError, KeyError, TypeError, AssertionError, ImportError, OSError) as error:
        raise InputError(
            f"{dataset_id}: cannot be opened in {folder}; download it with minari download "
            f"{dataset_id}, or see minari list local; got {error}"
        ) from error


def _check_spaces(dataset: Any, spec: TaskSpec) -> None:
    from gymnasium.spaces import Box

    for space in (dataset.observation_space, dataset.action_space):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise InputError(
                f"{dataset.id}: observations and actions must be flat arrays of numbers, as in "
                f"ExoRL: it cannot be imported; got {space}"
            )
    require_widths(
        spec,
        observation_width=dataset.observation_space.shape[0],
        action_width=dataset.action_space.shape[0],
        where=dataset.id,
    )
    low_A, high_A = dataset.action_space.low, dataset.action_space.high
    if (low_A != -1).any() or (high_A != 1).any():
        raise InputError(
            f"{dataset.id}: actions must lie in [-1, 1], before scaling to the actuators; scale "
            f"them and the action space back; got {low_A.tolist()} to {high_A.tolist()}"
        )


def _episodes(
    dataset: Any, spec: TaskSpec, action_repeat: int, progress: Callable[[int, int], None] | None
) -> Iterator[Episode]:
    total = len(dataset)
    if total == 0:
        raise InputError(f"{dataset.id}: holds no episodes; choose another dataset")
    for number in range(total):
        where = f"{dataset.id}: episode {number}"
        try:
            data = dataset[number]
        except (KeyError, ValueError, AssertionError, OSError) as error:
            raise InputError(
                f"{where}: is damaged; delete the dataset and download it again; got {error}"
            ) from error
        yield _episode(data, spec, action_repeat, where)
        if progress is not None:
            progress(number + 1, total)


def _episode(data: Any, spec: TaskSpec, action_repeat: int, where: str) -> Episode:
    """Put the arrays of one Minari episode in ExoRL's rows, each checked."""
    steps = len(data.rewards)
    if not 0 < steps <= MAX_STEPS:
        raise InputError(f"{where}: must have 1 to {MAX_STEPS} steps; leave it out; got {steps}")
    rows = steps + 1
    actions_TA = _numbers(data.actions, (steps, spec.action_width), f"{where}: actions")
    rewards_T = _numbers(data.rewards, (steps,), f"{where}: rewards")
    require_action_range(actions_TA, where=f"{where}: actions")
    arrays = {
        "action": below_reset(actions_TA),
        "reward": below_reset(rewards_T),
        "discount": discount_of(steps, terminated=bool(data.terminations[-1])),
        "physics": None,
    }
    infos = data.infos or {}
    kept = infos[_INFOS_KEY] if isinstance(infos.get(_INFOS_KEY), dict) else {}
    four = spec.domain == "point_mass_maze" and np.ndim(kept.get("reward", 0)) == 2
    shapes = {
        "action": (rows, spec.action_width),
        "reward": (rows, MAZE_REWARDS) if four else (rows,),
        "discount": (rows,),
        "physics": (rows, spec.physics_width),
    }
    for key in shapes.keys() & kept.keys():
        at = f"{where}: infos/{_INFOS_KEY}/{key}"
        dtype = np.float64 if key == "physics" else np.float32
        arrays[key] = _numbers(kept[key], shapes[key], at, dtype)
    require_action_range(arrays["action"], where=f"{where}: infos/{_INFOS_KEY}/action")
    shape = (rows, spec.observation_width)
    observations_RO = _numbers(data.observations, shape, f"{where}: observations")
    return Episode(observations_RO, **arrays, action_repeat=action_repeat, name=where)


def _numbers(
    values: Any, shape: tuple[int, ...], where: str, dtype: type[np.floating] = np.float32
) -> np.ndarray:
    """Give an array of this shape and type, all finite."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.shape != shape:
        raise InputError(
            f"{where}: must be numbers of shape {list(shape)}; leave the episode out or download "
            f"the dataset again; got {array.dtype} {list(array.shape)}"
        )
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    require_finite(array, where=where)
    return array
