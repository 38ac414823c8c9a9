"""The command of the table from data to page, with cells of two updates."""

import csv
import dataclasses

import numpy as np
import pytest

from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration.collect import collect
from agentic_bpt.reports.results import write_json
from agentic_bpt.suites import runner
from agentic_bpt.suites.table5 import PRESETS, Row, cells_of
from agentic_bpt.suites.table5_run import run_table5, selected_cells, shared_where_proved
from tests.builders import make_store


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


def test_what_another_experiment_left_is_refused(run, tmp_path):
    only = ("cartpole_swingup bc10-*",)
    assert run(only=only)
    with pytest.raises(InputError, match=r"loop.steps is 2 there and 3 here; give another --work"):
        run(only=only, steps=3)
    folder = tmp_path / "table5/cartpole_swingup/bc10-seed0"
    (folder / "experiment.json").unlink()  # a result that was carried here without its run
    assert run(only=only)
    with pytest.raises(InputError, match="holds another experiment: steps is 2 there and 3 here"):
        run(only=only, steps=3)


def test_a_scheme_shares_only_what_was_proved_on_the_same_data(tmp_path):
    rows = [Row(task, make_store(tmp_path / task, episodes=40), "") for task in ("a", "b", "c")]
    cells = cells_of(PRESETS["cpu"], rows, seeds=1, steps=2, workdir=tmp_path)
    data = cells[0].experiment.data_hash
    for task, data_hash, worst in (("a", data, 1e-6), ("b", data, 0.1), ("c", "another", 1e-6)):
        document = {"data_hash": data_hash, "distances": {"vanilla": worst}}
        write_json(tmp_path / task / "schemes.json", document)
    found = shared_where_proved(cells, tmp_path)
    assert {(c.task, c.column) for c in found if c.shared_with} == {
        ("a", "at-n16-vanilla"),
        ("a", "at-n16-memory_efficient"),
    }


def test_a_scheme_that_shares_a_training_brings_it_along(tmp_path):
    rows = [Row("cartpole_swingup", make_store(tmp_path, episodes=40), "")]
    cells = cells_of(PRESETS["cpu"], rows, seeds=2, steps=2, workdir=tmp_path)
    names = [cell.name for cell in selected_cells(cells, ["*vanilla-seed1"])]
    assert names == [
        "cartpole_swingup at-n16-vanilla-seed1",
        "cartpole_swingup at-n16-blockwise-seed1",
    ]
