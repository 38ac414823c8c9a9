"""Training over a mesh: the run of one device, whatever devices it was begun and ended on."""

import dataclasses
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt import run
from agentic_bpt.acting import load_run
from agentic_bpt.blockwise.mesh import MeshConfig
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.run import train_run
from agentic_bpt.spread import join_mesh, mesh_for
from agentic_bpt.training.metrics import read_metrics
from tests.builders import make_folder, make_store
from tests.spread_run import STEPS, small_experiment


def start(store, workdir, mesh, *, last=STEPS, devices=4, coordinator="", processes=1, rank=0):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    words = [store, workdir, mesh, last, coordinator, processes, rank]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spread_run", *map(str, words)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A store, and the run of one device on it."""
    folder = tmp_path_factory.mktemp("spread")
    source = make_folder(folder, episodes=20, steps=11)
    store = make_store(folder, source=source)
    train_run(small_experiment(store), folder / "alone")
    return store, folder / "alone"


def without_key_bias(params):
    """Softmax does not feel a bias of all keys: its gradient is rounding, which Adam enlarges."""
    stack = params["params"]["stack"]
    values = jnp.split(stack.key_value_bias, 2, axis=-1)[1]
    return {**params["params"], "stack": stack._replace(key_value_bias=values)}


def assert_same_run(workdir, expected):
    ours, theirs = load_run(workdir), load_run(expected)
    assert ours.steps == theirs.steps == STEPS
    both = (without_key_bias(ours.params), without_key_bias(theirs.params))
    for got, wanted in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    for name in ("loss", "validation_loss"):
        last = [
            [line[name] for line in read_metrics(run / "metrics.jsonl") if name in line][-1]
            for run in (workdir, expected)
        ]
        assert last[0] == pytest.approx(last[1], rel=1e-5)


def test_a_run_goes_on_upon_another_mesh_and_ends_as_on_one_device(alone, tmp_path):
    store, expected = alone
    finish(start(store, tmp_path / "run", "data=2,sequence=2", last=2))
    assert read_metrics(tmp_path / "run/metrics.jsonl")[-1]["step"] == 2
    finish(start(store, tmp_path / "run", "sequence=2,model=2"))
    assert_same_run(tmp_path / "run", expected)


def test_two_processes_train_the_run_of_one(alone, tmp_path):
    store, expected = alone
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = {"devices": 2, "coordinator": address, "processes": 2}
    mesh, workdir = "data=2,sequence=2", tmp_path / "run"
    started = [start(store, workdir, mesh, rank=rank, **joined) for rank in (0, 1)]
    for process in started:
        finish(process)
    assert_same_run(workdir, expected)


@pytest.mark.parametrize(
    ("changes", "mesh", "message"),
    [
        ({}, "sequence=3", "takes 3 devices, got 1; on 1 would work: data=1,sequence=1,model=1"),
        ({("agent", "model", "core", "scheme"): "vanilla"}, "data=1", "needs --scheme blockwise"),
    ],
)
def test_what_cannot_be_spread_is_refused(changes, mesh, message):
    experiment = preset_of("at", "cpu")
    for path, value in changes.items():
        experiment = replace_in(experiment, path, value)
    with pytest.raises(InputError, match=message):
        mesh_for(experiment, MeshConfig.parse(mesh))


def test_what_does_not_fit_is_refused_before_it_is_run(alone, tmp_path, monkeypatch):
    small = dataclasses.replace(run.device_at_hand(), usable_bytes=1000)
    monkeypatch.setattr(run, "device_at_hand", lambda: small)
    with pytest.raises(InputError, match=r"takes 0\.0 GB on each device, which has 0\.0 GB"):
        train_run(small_experiment(alone[0]), tmp_path / "run", mesh=MeshConfig())
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_method_without_sequences_takes_no_mesh():
    with pytest.raises(InputError, match="--mesh means nothing to method bc10"):
        mesh_for(preset_of("bc10", "cpu"), MeshConfig())


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (None, {"rank": 1}, "belong to a --mesh"),
        ("data=2", {"processes": 2}, "need the --coordinator"),
        ("rows=2", {}, "--mesh must be like data=2,sequence=4,model=1"),
        ("data=2", {"coordinator": "here", "processes": 2}, "--coordinator must be host:port"),
    ],
)
def test_processes_that_cannot_join_are_refused(mesh, options, message):
    with pytest.raises(InputError, match=message):
        join_mesh(mesh, **{"coordinator": None, "processes": 1, "rank": 0, **options})
