"""Collect the data of `table5.py`: curiosity, and the whole replays of learners, a set a domain.

Reproduces: nothing published; ExoRL's archives take its place where they can be had.
Command:    python experiments/table5_data.py [DATA] [DOMAIN ...]
Time:       about 40 minutes of one core for all domains, 1 GB of memory; resumable.
Expected:   DATA/<domain>/<collection>/buffer for walker, cheetah and jaco; cartpole's are a copy of
            the package's own. RND alone stays near random on them in so few episodes, so agents
            that learn a task (and pass through bad, middling and good) are beside it.
"""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.exploration.collect import collect

DATA = Path("data/table5")
EMBEDDED = Path(__file__).parents[1] / "data" / "quickstart" / "cartpole"


class Collection(NamedTuple):
    """One collector's episodes of one task."""

    name: str
    task: str
    expl_agent: str
    episodes: int
    action_repeat: int


COLLECTIONS = {
    "walker": (
        Collection("td3_walk", "walker_walk", "td3", 200, 4),
        Collection("td3_run", "walker_run", "td3", 200, 4),
        Collection("rnd", "walker_stand", "rnd", 150, 4),
    ),
    "cheetah": (
        Collection("td3_run", "cheetah_run", "td3", 300, 4),
        Collection("rnd", "cheetah_run", "rnd", 150, 4),
    ),
    "jaco": (
        Collection("td3_top_left", "jaco_reach_top_left", "td3", 300, 1),
        Collection("td3_bottom_right", "jaco_reach_bottom_right", "td3", 300, 1),
        Collection("rnd", "jaco_reach_top_left", "rnd", 100, 1),
    ),
}


def main() -> None:
    """Collect what is missing."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    domains = sys.argv[2:] or ["cartpole", *COLLECTIONS]
    if "cartpole" in domains:
        shutil.copytree(EMBEDDED, data / "cartpole", dirs_exist_ok=True)
    for name, task, expl_agent, episodes, action_repeat in (
        collection for domain in domains for collection in COLLECTIONS.get(domain, ())
    ):
        collect(
            task,
            expl_agent=expl_agent,
            episodes=episodes,
            out=data,
            name=name,
            action_repeat=action_repeat,
        )


if __name__ == "__main__":
    main()
