"""The loop: what it writes, and how it stops."""

import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.errors import InputError
from agentic_bpt.training.checkpoint import Checkpoints
from agentic_bpt.training.loop import Hook, LoopConfig, train
from agentic_bpt.training.metrics import MetricsWriter
from agentic_bpt.training.step import TrainState

CONFIG = LoopConfig(steps=10, log_every_steps=2, checkpoint_every_steps=4)


def start() -> TrainState:
    return TrainState({"w": jnp.zeros(2)}, (), jnp.zeros((), jnp.int32))


def add_batch(state: TrainState, batch):
    params = {"w": state.params["w"] + batch}
    return TrainState(params, (), state.step + 1), {"loss": params["w"].sum()}


def run(folder, state=None, step_function=add_batch, batch_at=float, **options):
    """Train in a folder; gives the last state and the steps of its checkpoints."""
    checkpoints = Checkpoints(folder / "checkpoints")
    state = start() if state is None else state
    metrics = MetricsWriter(folder, resume_step=int(state.step))
    try:
        state = train(
            state,
            config=CONFIG,
            step_function=step_function,
            batch_at=batch_at,
            tokens_per_batch=1,
            checkpoints=checkpoints,
            saved_beside={},
            metrics=metrics,
            **options,
        )
    finally:
        metrics.close()
        checkpoints.close()
    return state


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_step_s_uses_batch_s_and_the_last_state_is_kept(tmp_path):
    state = run(tmp_path)
    assert state.params["w"].tolist() == [sum(range(10))] * 2
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest_step == 10
    saved = checkpoints.restore({"state": start()})
    assert np.array_equal(saved["state"][0]["w"], state.params["w"])
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6, 8, 10]


def test_hooks_are_called_when_due_and_at_the_end(tmp_path):
    hook = Hook(4, lambda state: {"measured": float(state.step)})
    run(tmp_path, hooks=[hook])
    assert [x["measured"] for x in lines(tmp_path) if "measured" in x] == [4.0, 8.0, 10.0]


def test_a_loss_that_is_not_finite_names_the_step_and_the_last_good_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"loss is nan at step 7.*checkpoints/4"):
        run(tmp_path, batch_at=lambda step: float("nan") if step == 6 else 1.0)
    assert Checkpoints(tmp_path / "checkpoints").latest_step == 4


def test_a_gradient_that_is_not_finite_is_not_kept(tmp_path):
    def spoil(state, batch):
        state, values = add_batch(state, 1.0)
        return state, values | {"gradient_norm": jnp.where(state.step == 4, jnp.nan, 1.0)}

    with pytest.raises(InputError, match=r"gradient norm is nan at step 4.*none was written yet"):
        run(tmp_path, step_function=spoil)


def test_ctrl_c_within_an_update_ends_it_and_keeps_its_state(tmp_path):
    donating = jax.jit(add_batch, donate_argnums=0)

    def interrupted(state, batch):
        if int(state.step) == 6:  # the old state is given away, the new one not yet there
            state, values = donating(state, batch)
            signal.raise_signal(signal.SIGINT)
            return state, values
        return donating(state, batch)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, step_function=interrupted, batch_at=lambda step: 1.0)
    assert signal.getsignal(signal.SIGINT) is before
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest_step == 7
    assert checkpoints.restore({"state": start()})["state"][0]["w"].tolist() == [7.0, 7.0]


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def impatient(state, batch):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return add_batch(state, batch)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, step_function=impatient)
    assert Checkpoints(tmp_path / "checkpoints").latest_step is None


def test_metrics_of_steps_that_are_redone_are_dropped(tmp_path):
    run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # cut short by a crash
    MetricsWriter(tmp_path, resume_step=5).close()
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]


def test_no_checkpoint_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="holds no checkpoint"):
        Checkpoints(tmp_path / "checkpoints").restore({"state": start()})


@pytest.mark.parametrize("message", ["RESOURCE_EXHAUSTED: Error writing", "No space left"])
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch, message):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, {"state": start()})

    def full(*arguments, **options):
        raise ValueError(message)

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(InputError, match=r"disk is full at step 2.*the one of step 1 is whole"):
        checkpoints.save(2, {"state": start()})
    assert Checkpoints(tmp_path / "checkpoints").latest_step == 1
