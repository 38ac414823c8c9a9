"""The stack over many devices and processes against one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.core import CoreConfig, init_stack
from agentic_bpt.blockwise.mesh import MeshConfig, make_mesh, working_meshes
from agentic_bpt.blockwise.parallel import (
    GATHER_BYTES,
    apply_stack_parallel,
    choose_exchange,
    shard_sequence,
    unshard_sequence,
)
from agentic_bpt.blockwise.processes import join_processes
from tests.blockwise.mesh_checks import CASES
from tests.blockwise.oracle import TOLERANCE

ROOT = Path(__file__).resolve().parents[2]


def start(script: str, *words: str, devices: int) -> subprocess.Popen:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.blockwise.{script}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )


def answer(process: subprocess.Popen) -> dict:
    stdout, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checks() -> dict:
    return answer(start("mesh_checks", devices=8))


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_one_device(checks, case):
    value_error, gradient_error = checks["cases"][case]
    assert value_error <= TOLERANCE
    assert gradient_error <= TOLERANCE


def test_twenty_steps_of_descent_end_where_one_device_ends(checks):
    distance, moved = checks["descent"]
    assert moved > 0.1
    assert distance <= 1e-3


def test_an_error_of_1_percent_in_one_shards_gradient_is_seen():
    distance, _ = answer(start("mesh_checks", "--fault", devices=8))["descent"]
    assert distance > 1e-3


def test_a_loss_in_blocks_on_each_shard(checks):
    assert checks["loss"] <= TOLERANCE


def test_bytes_of_a_device_fall_as_1_over_shards(checks):
    found = {int(shards): count for shards, count in checks["bytes"].items()}
    assert found[1] > 8 * 32_768 * 32 * 4  # sequences that it holds
    for shards in (2, 4, 8):
        assert shards * found[shards] <= 1.25 * found[1], found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_give_the_numbers_of_one():
    address = f"127.0.0.1:{free_port()}"
    started = [start("joined_process", str(r), "2", address, "120", devices=2) for r in (0, 1)]
    for process in started:
        found = answer(process)
        assert found["processes"] == 2
        assert found["error"] <= TOLERANCE


def test_a_process_that_never_joins_is_named_after_a_time_limit():
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    alone = [start("joined_process", str(r), "2", addresses[r], "4", devices=1) for r in (0, 1)]
    for rank, process in enumerate(alone):
        message = answer(process)["message"]
        late = f"rank {1 - rank} of 2 did not join at {addresses[rank]} within 4 s"
        assert message.startswith(late)
        assert "\n" not in message


@pytest.mark.parametrize(
    ("coordinator", "rank", "message"),
    [
        ("localhost", 0, "coordinator must be host:port of rank 0, got 'localhost'"),
        ("localhost:99999", 0, "coordinator must be host:port of rank 0, got 'localhost:99999'"),
        ("localhost:80", 2, r"rank must be in 0 \.\. 1, got 2"),
    ],
)
def test_what_cannot_be_joined_is_refused(coordinator, rank, message):
    with pytest.raises(ValueError, match=message):
        join_processes(coordinator, 2, rank)


def test_a_taken_port_is_said():
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} cannot be used here"):
            join_processes(f"localhost:{port}", 2, 0)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_order_of_shards_shares_out_causal_work_evenly(shards):
    length = 8 * shards * 2
    positions_BL = shard_sequence(np.arange(length)[None], shards=shards)
    assert isinstance(positions_BL, np.ndarray)
    owned_PL = positions_BL.reshape(shards, -1)
    pairs_PP = (owned_PL[:, None, :, None] >= owned_PL[None, :, None, :]).sum((2, 3))
    assert (pairs_PP.sum(axis=1) == length * (length + 1) // 2 // shards).all()
    # And between any two shards, at every step of a ring.
    assert (pairs_PP[~np.eye(shards, dtype=bool)] == 2 * 8**2).all()


def test_sequences_come_back_from_shard_order():
    x_BLD = np.random.default_rng(0).normal(size=(2, 21, 3))
    ordered = shard_sequence(x_BLD, shards=4, fill=7)
    assert ordered.shape == (2, 24, 3)
    assert (unshard_sequence(ordered, shards=4, length=24)[:, 21:] == 7).all()
    assert (unshard_sequence(ordered, shards=4, length=21) == x_BLD).all()
    assert (shard_sequence(jnp.asarray(x_BLD), shards=4, fill=7) == ordered).all()


def test_a_mesh_is_read_and_written():
    mesh = MeshConfig.parse("data=2, sequence=4")
    assert (mesh.data, mesh.sequence, mesh.model, mesh.devices) == (2, 4, 1, 8)
    assert MeshConfig.parse(str(mesh)) == mesh


@pytest.mark.parametrize("text", ["", "data", "data=2,data=2", "rows=2", "data=-1", "data=x"])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(ValueError, match="mesh must be like data=2,sequence=4,model=1"):
        MeshConfig.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=4,sequence=1", r"takes 4 devices, got 8"),
        ("data=8", r"data=8 does not divide the batch of 4"),
        ("model=8", r"model=8 does not divide 4 heads"),
        ("model=4,data=2", r"model=4 does not divide 2 key-value heads"),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_with_those_that_would(text, message):
    config = CoreConfig(width=32, heads=4, kv_heads=2)
    would = "on 8 would work: data=4,sequence=2,model=1"
    with pytest.raises(ValueError, match=message) as caught:
        MeshConfig.parse(text).require(config, batch=4, devices=8)
    assert "\n" not in str(caught.value)
    assert "; on 8 would work: " in str(caught.value)
    assert would.split(": ")[1] in str(caught.value)
    for mesh in working_meshes(config, batch=4, devices=8):
        mesh.require(config, batch=4, devices=8)


def test_a_mesh_of_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"mesh data=64,sequence=1,model=1: takes 64 devices, got"):
        make_mesh(data=64)


def test_only_the_blockwise_scheme_runs_over_a_mesh():
    config = CoreConfig(layers=1, width=16, scheme="vanilla")
    params = jax.eval_shape(lambda: init_stack(jax.random.key(0), config))
    x_BLD = jax.ShapeDtypeStruct((1, 4, 16), jnp.float32)
    mesh = make_mesh(devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="scheme is blockwise and the engine portable"):
        apply_stack_parallel(params, x_BLD, config=config, mesh=mesh)


def test_large_keys_go_round_a_ring():
    mesh = jax.sharding.AbstractMesh((1, 4, 1), ("data", "sequence", "model"))
    config = CoreConfig(width=128)
    limit = GATHER_BYTES // (2 * (4 + 4) * 128)  # keys, values and their gradients, float32
    choose = lambda exchange, positions: choose_exchange(  # noqa: E731
        exchange, config=config, batch=1, positions=positions, mesh=mesh
    )
    assert [choose("auto", limit), choose("auto", limit + 1)] == ["gather", "ring"]
    assert [choose("ring", 8), choose("gather", 2**30)] == ["ring", "gather"]
    with pytest.raises(ValueError, match="exchange must be one of"):
        choose("carrier pigeon", 8)
