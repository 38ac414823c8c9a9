"""The table of collectors: a row each, counted from the episodes, and against random's."""

import json

import pytest
from rich.console import Console

from agentic_bpt.bench import collect as module
from agentic_bpt.bench.collect import collector_table
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import CollectResult
from agentic_bpt.exploration.collect import collect as collect_episodes


@pytest.fixture
def every_explorer_is_random(monkeypatch):
    """Collect random episodes under every name: four times as many for rnd, so it visits more."""

    def collect(task: str, *, expl_agent: str, episodes: int, **options) -> CollectResult:
        episodes *= 4 if expl_agent == "rnd" else 1
        result = collect_episodes(task, expl_agent="random", episodes=episodes, **options)
        return result._replace(steps_per_second=300.0)

    monkeypatch.setattr(module, "collect", collect)


def test_a_row_for_every_collector(every_explorer_is_random, capsys):
    options = {"tasks": ["point_mass_maze_reach_top_left"], "episodes": 4}
    rows = collector_table(Console(width=120), **options)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["expl_agent"] for row in rows] == ["random", "rnd", "td3"]
    assert {row["task"] for row in rows} == {"point_mass_maze_reach_top_left"}
    assert [row["updates_per_second"] for row in rows] == [0.0, 150.0, 150.0]
    random, rnd, td3 = rows
    assert 5 < random["occupied_cells"] == td3["occupied_cells"] < rnd["occupied_cells"]
    assert random["cells_over_random"] == td3["cells_over_random"] == 1.0
    ratio = rnd["occupied_cells"] / random["occupied_cells"]
    assert rnd["cells_over_random"] == pytest.approx(ratio)
    assert f"{ratio:.2f} x random" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(InputError, match=r"choose of the domains cartpole, .* got 'jaco"):
        collector_table(Console(), tasks=["jaco_reach_top_left"])
    with pytest.raises(InputError, match="episodes must be over 4, which are not timed, got 4"):
        collector_table(Console(), episodes=4, environments=2)
