"""The command of the table from data to page, with cells of two updates."""

import csv
import dataclasses

import numpy as np
import pytest

from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import collect
from agentic_bpt.suites import runner
from agentic_bpt.suites.table5 import PRESETS
from agentic_bpt.suites.table5_run import run_table5


@pytest.fixture
def run(tmp_path, monkeypatch):
    collect(
        "cartpole_swingup",
        expl_agent="random",
        episodes=20,
        out=tmp_path / "data",
        action_repeat=100,
        progress=False,
    )
    small = dataclasses.replace(PRESETS["cpu"], test_trajectories=2, chains=2)
    monkeypatch.setitem(PRESETS, "cpu", small)
    generator = np.random.default_rng(0)
    picture = generator.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    monkeypatch.setattr(Environment, "render", lambda self, *, height, width: picture)

    def run(**changes) -> bool:
        options = {
            "data": tmp_path / "data",
            "workdir": tmp_path / "table5",
            "preset": "cpu",
            "tasks": ("cartpole_swingup", "walker_walk"),
            "seeds": 1,
            "only": ("* bc10-*", "* at-n4-*"),
            "episodes": None,
            "steps": 2,
            "workers": 2,
            "ray": None,
            "video": False,
            "strict": False,
            "dry_run": False,
        }
        return run_table5(**{**options, **changes})

    return run


def test_from_data_to_page_and_not_twice(run, tmp_path, monkeypatch, capsys):
    assert run(dry_run=True)
    capsys.readouterr()
    assert run(dry_run=True, device="h100-80gb")
    assert "80.7 GB" in capsys.readouterr().out
    with pytest.raises(InputError, match="add --dry-run"):
        run(device="h100-80gb")
    with pytest.raises(InputError, match="h100-80gb, h200"):
        run(dry_run=True, device="h300")
    assert not (tmp_path / "table5/report").exists()
    assert run()
    page = tmp_path / "table5/report/table5.html"
    assert "data:image/png" in page.read_text()
    assert "acting</h2>" not in page.read_text()
    with (page.with_suffix(".csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["row"] for row in rows} >= {"cartpole_swingup", "walker_walk"}
    assert {"BC-10%", "AT+BPT N=4", "random", "TD3"} <= {row["column"] for row in rows}
    monkeypatch.setattr(runner, "_start", None)  # a cell that is done is not begun again
    capsys.readouterr()
    assert run(video=True)
    said = capsys.readouterr().out
    assert "walker_walk: not run: no episodes" in said.replace("\n", " ")
    films = sorted(path.parent.name for path in (tmp_path / "table5").rglob("video-*"))
    assert films == ["at-n4-blockwise-seed0", "bc10-seed0"]
    assert page.read_text().count("acting</h2>") == 2
    (result,) = (tmp_path / "table5/cartpole_swingup/bc10-seed0").glob("evaluation-*.json")
    result.write_text(result.read_text()[:200])
    assert run()
    assert "1 result files are left out" in capsys.readouterr().out
    assert "unreadable" in page.with_suffix(".md").read_text()
    assert not run(strict=True)
