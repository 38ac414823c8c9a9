"""What imports of other formats share: which episodes can come in, and a folder whole or not."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.datasets.exorl import Episode, write_episode
from agentic_bpt.environments.tasks import TASKS, TaskSpec
from agentic_bpt.errors import InputError

REWARD_TOLERANCE = 1e-6  # of a step, beyond [0, 1] by float32 rounding

_AGENT_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # a folder, and not one elsewhere


class ExchangeResult(NamedTuple):
    """What an import or export left behind."""

    folder: Path
    """`<domain>/<expl_agent>` of ExoRL episodes, or the folder of the Minari dataset"""
    episodes: int
    """how many it holds"""
    notes: list[str]
    """what was left out or is not as in ExoRL's own data, a line each"""


def import_episodes(
    episodes: Iterable[Episode], *, out: Path, domain: str, expl_agent: str, notes: list[str]
) -> ExchangeResult:
    """Write episodes to `<out>/<domain>/<expl_agent>/buffer`, numbered from 0: all or none.

    Args:
        episodes: of the domain, one held at a time.
        out: folder of data sets.
        domain: ExoRL's word, such as `walker`.
        expl_agent: name for the collector, a folder.
        notes: what there is to say once the episodes are read; taken into the result.

    Raises:
        InputError: the name is not that of a folder, or the folder holds something.
    """
    if not _AGENT_NAME.fullmatch(expl_agent):
        raise InputError(
            f"expl_agent names a folder: use letters, digits and _.- only; got {expl_agent!r}"
        )
    target = Path(out) / domain / expl_agent
    count, beyond, terminal = 0, 0, 0
    with landing(target) as folder:
        for count, episode in enumerate(episodes, start=1):
            write_episode(folder / "buffer", index=count - 1, episode=episode)
            reward_R = episode.reward / episode.action_repeat
            terminal += bool(episode.discount[-1] == 0)
            beyond += bool((np.abs(reward_R - 0.5) > 0.5 + REWARD_TOLERANCE).any())
    if beyond:
        notes.append(
            f"{beyond} of {count} episodes have rewards outside [0, 1] a control step, which no "
            f"task of {domain} pays: the episodes are of another environment, which must not be "
            "imported, or the reward is your own, which needs --relabel stored at ingest"
        )
    if terminal:
        notes.append(
            f"{terminal} of {count} episodes end in a terminal state, which no task of {domain} "
            "has: td3_offline and td3_bc learn from them as if they went on"
        )
    return ExchangeResult(target, count, notes)


def require_widths(
    spec: TaskSpec, *, observation_width: int, action_width: int, where: str
) -> None:
    """Refuse episodes that are not of the domain: nothing could ingest them.

    Raises:
        InputError: saying which domain they look like, if any.
    """
    if (observation_width, action_width) == (spec.observation_width, spec.action_width):
        return
    likely = {
        other.domain
        for other in TASKS.values()
        if (other.observation_width, other.action_width) == (observation_width, action_width)
    }
    fix = (
        f"give --domain {likely.pop()} if they are of it"
        if likely
        else "no ExoRL domain has these, and a store is of an ExoRL task: it cannot be imported"
    )
    raise InputError(
        f"{where}: observations and actions must have the widths {spec.observation_width} and "
        f"{spec.action_width} in domain {spec.domain}; {fix}; got {observation_width} and "
        f"{action_width}"
    )


def below_reset(values: np.ndarray) -> np.ndarray:
    """Put a row of zeros, the reset, above what T actions are or earned: float32 [T + 1, ...]."""
    return np.concatenate([np.zeros_like(values[:1]), values]).astype(np.float32)


def discount_of(steps: int, *, terminated: bool) -> np.ndarray:
    """Give 1 throughout, and 0 in the last row if a terminal state ended it: float32 [T + 1]."""
    discount_R = np.ones(steps + 1, np.float32)
    discount_R[-1] = not terminated
    return discount_R


@contextlib.contextmanager
def landing(target: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `target` at the end, and vanishes if there is an error.

    Raises:
        InputError: `target` is there and is not an empty folder.
    """
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: is there already; choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}.", suffix=".part", dir=target.parent
    ) as beside:
        folder = Path(beside) / target.name
        folder.mkdir()
        yield folder
        os.replace(folder, target)
