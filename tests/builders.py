"""Small made-up episodes, folders and zips of them, for tests that need no physics."""

import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from agentic_bpt.datasets.exorl import Episode, episode_files, read_episode, write_episode
from agentic_bpt.datasets.store import ingest
from agentic_bpt.environments.tasks import TASKS, tasks_of_domain


def make_episode(
    domain: str = "cartpole", *, steps: int = 5, seed: int = 0, **fields: Any
) -> Episode:
    """Make up an episode; row 0 holds no action and no reward, as in ExoRL's files.

    Rewards lie in [0, 1); `fields` replace those of the same name.
    """
    spec = TASKS[tasks_of_domain(domain)[0]]
    generator = np.random.default_rng(seed)
    action_RA = generator.uniform(-1, 1, (steps + 1, spec.action_width)).astype(np.float32)
    reward_R = generator.uniform(0, 1, steps + 1).astype(np.float32)
    action_RA[0] = 0
    reward_R[0] = 0
    episode = Episode(
        observation=generator.normal(2, 3, (steps + 1, spec.observation_width)).astype(np.float32),
        action=action_RA,
        reward=reward_R,
        discount=np.ones(steps + 1, np.float32),
        physics=generator.normal(0, 0.1, (steps + 1, spec.physics_width)),
        action_repeat=1,
        name=f"episode_000000_{steps}.npz",
    )
    return episode._replace(**fields)


def make_folder(
    root: Path,
    *,
    domain: str = "cartpole",
    expl_agent: str = "rnd",
    episodes: int = 3,
    steps: int = 5,
) -> Path:
    """Write `root/<domain>/<expl_agent>/buffer` with made-up episodes, each of another seed.

    Returns:
        `root/<domain>/<expl_agent>`.
    """
    folder = root / domain / expl_agent
    for index in range(episodes):
        episode = make_episode(domain, steps=steps, seed=index)
        write_episode(folder / "buffer", index=index, episode=episode)
    return folder


def make_zip(folder: Path, path: Path) -> Path:
    """Zip the buffer of a folder as the published archives are, with a video beside it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("video/0.mp4", b"not a video")
        # The order inside a zip is not the order of collection.
        for file in sorted((folder / "buffer").iterdir(), reverse=True):
            archive.write(file, f"buffer/{file.name}")
    return path


def arrays_of(episode: Episode) -> dict[str, np.ndarray]:
    """Give the arrays of an episode as ExoRL's files hold them, to change and save."""
    arrays = {
        "observation": episode.observation,
        "action": episode.action,
        "reward": episode.reward[:, None],
        "discount": episode.discount[:, None],
    }
    if episode.physics is not None:
        arrays["physics"] = episode.physics
    return {key: values.copy() for key, values in arrays.items()}


def save_arrays(
    folder: Path, name: str = "episode_000000_5.npz", /, **arrays: np.ndarray | None
) -> Path:
    """Save an episode whose arrays are the made-up ones, changed; None leaves one out."""
    kept: dict[str, Any] = {**arrays_of(make_episode()), **arrays}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    np.savez(path, allow_pickle=True, **{k: v for k, v in kept.items() if v is not None})
    return path


def read_only_episode(folder: Path, domain: str = "cartpole") -> Episode:
    """Read the one episode of a folder."""
    (file,) = episode_files(folder)
    return read_episode(file, domain=domain)


def make_store(
    root: Path, *, source: Path | None = None, episodes: int = 3, **settings: Any
) -> Path:
    """Ingest cartpole episodes into `root/stores` with their stored rewards, without physics.

    `settings` are those of `ingest`; without a source the episodes are made up.
    """
    source = source or make_folder(root, episodes=episodes)
    stored = {"task": "cartpole_swingup", "relabel": "stored", "out": root / "stores"}
    return ingest(source, **{**stored, **settings}).path


def hdf5_array(file: h5py.File, name: str) -> h5py.Dataset:
    """Look up an array of an HDF5 file, to change it."""
    dataset = file[name]
    assert isinstance(dataset, h5py.Dataset)
    return dataset


def readme_example(word: str) -> str:
    """Give the Python example of the README that holds a word."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = [part for part in re.findall("```python\n(.*?)```", text, re.S) if word in part]
    return example
