"""TD3 and TD3+BC through the whole job: train, stop, go on bit-equal, evaluate, report."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from agentic_bpt.acting import load, load_run
from agentic_bpt.datasets.exorl import write_episode
from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.evaluating import Evaluation, evaluate_run
from agentic_bpt.experiment import Experiment, override, read_experiment, replace_in
from agentic_bpt.exploration.networks import apply_actor
from agentic_bpt.methods import preset_of
from agentic_bpt.reports.results import write_report
from agentic_bpt.run import make_parts, make_training, train_run
from tests.builders import make_episode, make_store

STEPS = 6


def small(store: Path, method: str) -> Experiment:
    experiment = dataclasses.replace(preset_of(method, "cpu"), store=str(store), batch=8)
    for path, value in (
        (("agent", "learner", "width"), 8),
        (("loop", "steps"), STEPS),
        (("loop", "log_every_steps"), 1),
        (("loop", "checkpoint_every_steps"), 2),
    ):
        experiment = replace_in(experiment, path, value)
    return experiment


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Cartpole episodes of 20 decisions, each held for 50 control steps."""
    root = tmp_path_factory.mktemp("store")
    source = root / "cartpole" / "rnd"
    for index in range(4):
        episode = make_episode(steps=20, seed=index, action_repeat=50)
        write_episode(source / "buffer", index=index, episode=episode)
    return make_store(root, source=source)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("td3_bc")
    train_run(small(store, "td3_bc"), folder)
    return folder


def losses(workdir: Path) -> list[float]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_killed_run_goes_on_bit_equal(store, run, tmp_path):
    """What a kill between checkpoints leaves: the one before, and metrics beyond it."""
    whole, killed = run, tmp_path / "killed"
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "checkpoints" / str(STEPS))
    assert load_run(killed).steps == STEPS - 2
    train_run(small(store, "td3_bc"), killed)
    ours, theirs = load_run(killed), load_run(whole)
    assert ours.steps == theirs.steps == STEPS
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, ours.params, theirs.params)))
    assert losses(killed) == losses(whole)
    assert len(losses(killed)) == STEPS


@pytest.mark.parametrize("method", ["td3_offline", "td3_bc"])
def test_a_step_keeps_the_shape_of_the_state(store, method):
    with Store.open(store) as opened:
        training = make_training(small(store, method), opened)
        state, metrics = jax.eval_shape(training.step, training.state, training.batch_at(0))
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes(state) == shapes(training.state)
    assert metrics["loss"].shape == ()


def test_results_make_a_table(run, tmp_path):
    result = evaluate_run(run, Evaluation(trajectories=1, chains=2))
    document = json.loads(result.read_text())
    assert (document["settings"]["width"], document["settings"]["bc_alpha"]) == (8, 2.5)
    assert [c["target_return"] for c in document["conditions"]] == [None]
    page = write_report([result], tmp_path).markdown.read_text()
    assert "| td3_bc |" in page


def test_a_loaded_policy_acts_in_units_of_the_store_alone_as_among_others(store, run):
    loaded = load_run(run)
    observations_BO = np.random.default_rng(0).normal(2, 3, (11, 5)).astype(np.float32)
    actions_BA = loaded.policy().act(observations_BO)
    with Store.open(store) as opened:
        normal_BO = (observations_BO - opened.observation_mean) / opened.observation_std
    assert np.allclose(actions_BA, jax.jit(apply_actor)(loaded.params, normal_BO), atol=1e-6)
    single = load(run)
    single.reset()
    assert np.array_equal(single.act(observations_BO[9]), actions_BA[9])
    assert np.ptp(actions_BA) > 0.01
    assert np.abs(actions_BA).max() <= 1


def test_evaluation_takes_no_prompt(run):
    with pytest.raises(InputError, match="td3_bc has no context: leave out the prompt"):
        evaluate_run(run, Evaluation(1, 1, prompt_trajectories=1))


def test_options_without_a_meaning_are_refused(run):
    experiment = read_experiment(run)
    assert experiment == dataclasses.replace(
        small(Path(experiment.store), "td3_bc"), data_hash=experiment.data_hash
    )
    changed = override(experiment, "learning_rate", (("optimizer",),), 0.5)
    assert changed.optimizer.learning_rate == 0.5
    with pytest.raises(InputError, match="--accumulate means nothing to method td3_bc"):
        override(experiment, "accumulate", ((),), 2)
    with pytest.raises(InputError, match="bc_alpha must be positive, got 0"):
        replace_in(experiment, ("agent", "bc_alpha"), 0)
    with (
        Store.open(Path(experiment.store)) as opened,
        pytest.raises(ValueError, match="td3_bc lowers two losses"),
    ):
        make_parts(experiment, opened)
