"""The declared table: its cells, and that schemes train alike."""

import numpy as np
import pytest

from agentic_bpt.datasets.store import ingest
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import TransformerAgent, replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.suites import attribution
from agentic_bpt.suites.table5 import PRESETS, TASKS, cells_of, columns_of, preset_named, rows_of
from tests.builders import make_folder


@pytest.fixture
def rows(tmp_path):
    make_folder(tmp_path / "data", domain="cartpole", episodes=20, steps=10)
    return rows_of(
        tmp_path / "data",
        ("cartpole_swingup", "walker_walk"),
        episodes=None,
        stores=tmp_path / "stores",
    )


def test_a_task_without_episodes_is_not_run_and_not_left_out(rows):
    assert [row.task for row in rows] == ["cartpole_swingup", "walker_walk"]
    assert rows[0].store.exists()
    assert rows[1].store is None
    assert rows[1].why.startswith("not run: no episodes in ")


@pytest.mark.parametrize("name", PRESETS)
def test_every_column_is_a_valid_experiment_and_sees_as_many_timesteps(name, rows, tmp_path):
    preset = preset_named(name)
    cells = cells_of(preset, rows, seeds=2, steps=None, workdir=tmp_path)
    assert len(cells) == 2 * len(columns_of(preset)) == len({cell.name for cell in cells})
    if preset.timesteps_per_update is None:
        return
    for cell in cells:
        agent = cell.experiment.agent
        if isinstance(agent, TransformerAgent):
            timesteps = cell.experiment.batch * agent.chain.trajectories * 1000
            least = agent.chain.trajectories * 1000  # one chain, where no fewer can be had
            assert timesteps == max(preset.timesteps_per_update, least)


def test_schemes_share_a_training_but_in_preset_paper():
    shared = {name: [c.name for c in columns_of(p) if c.shared_with] for name, p in PRESETS.items()}
    assert shared["cpu"] == ["at-n16-vanilla", "at-n16-memory_efficient"]
    assert shared["gpu"] == ["at-n32-vanilla", "at-n32-memory_efficient"]
    assert shared["paper"] == []


def test_an_unknown_preset_is_named_with_the_known_ones():
    with pytest.raises(InputError, match="paper, gpu, cpu; got 'tpu'"):
        preset_named("tpu")


def test_the_rows_are_the_papers():
    assert len(TASKS) == 9
    assert sum(task.startswith("jaco_reach_") for task in TASKS) == 4


def test_the_schemes_train_alike_and_a_wrong_gradient_does_not(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "data", episodes=8, steps=20)
    store = ingest(folder, task="cartpole_swingup", relabel="stored", out=tmp_path).path
    experiment = preset_of("at", "cpu")
    for name, value in (("width", 16), ("query_block", 16), ("key_block", 16)):
        experiment = replace_in(experiment, ("agent", "model", "core", name), value)
    distances = attribution.scheme_distances(experiment, store)
    assert set(distances) == {"vanilla", "memory_efficient", "blockwise"}
    assert max(distances.values()) <= attribution.BOUND

    right, made = attribution.trained, []

    def planted(loss, params, batch_at):
        made.append(loss)

        def wrong(params, batch, seed):
            total, count = loss(params, batch, seed)
            return total * (1.01 if len(made) == 1 else 1.0), count

        return right(wrong, params, batch_at)

    monkeypatch.setattr(attribution, "trained", planted)
    assert max(attribution.scheme_distances(experiment, store).values()) > attribution.BOUND


def test_distances_are_euclidean():
    a, b = {"w": np.array([3.0, 0.0])}, {"w": np.array([0.0, 4.0])}
    assert attribution.distance(a, b) == pytest.approx(5.0)
