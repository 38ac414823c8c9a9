"""The GPT that the experiments train and compile, and their search for the longest context."""

import compiled_bytes
import devices
import in_context
import jax
import numpy as np
import pytest
import section31
import table2
from compiled_bytes import Setup, bytes_taken, largest_power
from language_model import GPTS, gpt_loss, init_gpt, sinusoids

from agentic_bpt.blockwise.core import SCHEMES, CoreConfig
from agentic_bpt.environments.hidden_tasks import hidden_tasks
from agentic_bpt.environments.tasks import task_spec

VOCABULARY = 17
PARAMETERS = {"1B": 1.3, "3B": 2.7, "7B": 6.7, "13B": 13.0, "30B": 30.0, "70B": 70.0}
"""Billions, as the paper's Table 1 has them."""


def test_the_models_have_the_parameters_of_table_1():
    for name, gpt in GPTS.items():
        billions = (12 * gpt.layers * gpt.width**2 + 50_257 * gpt.width) / 1e9
        assert billions == pytest.approx(PARAMETERS[name], rel=0.08)
        assert gpt.width % gpt.heads == 0


def test_the_loss_begins_at_chance_and_is_that_of_every_scheme():
    tokens_BL = jax.random.randint(jax.random.key(1), (2, 40), 0, VOCABULARY)
    losses = []
    for scheme in SCHEMES:
        core = CoreConfig(layers=2, width=16, heads=2, scheme=scheme, query_block=16, key_block=16)
        params = init_gpt(jax.random.key(0), core, VOCABULARY)
        losses.append(float(gpt_loss(params, tokens_BL, core)))
    assert losses[0] == pytest.approx(np.log(VOCABULARY), rel=0.02)
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_the_last_token_is_predicted_and_seen_by_nothing():
    core = CoreConfig(layers=1, width=16, heads=2, scheme="vanilla")
    params = init_gpt(jax.random.key(0), core, VOCABULARY)
    tokens_BL = np.arange(12)[None]
    gradients_VD = jax.grad(gpt_loss)(params, tokens_BL, core)["embed"]
    assert [bool(np.any(row)) for row in gradients_VD] == [True] * 11 + [False] * 6
    other_BL = np.where(tokens_BL == 11, 3, tokens_BL)
    assert gpt_loss(params, tokens_BL, core) != gpt_loss(params, other_BL, core)


def test_positions_are_told_apart():
    rows_LD = np.asarray(sinusoids(50, 8))
    assert len(np.unique(rows_LD.round(6), axis=0)) == 50


@pytest.mark.parametrize(("limit", "longest"), [(0, 0), (1, 1), (100, 64), (64, 64), (9_999, 256)])
@pytest.mark.parametrize("start", [1, 16, 256])
def test_the_longest_context_is_found_from_any_start(limit, longest, start):
    assert largest_power(lambda n: n <= limit, start, most=256) == longest


@pytest.mark.parametrize(("unknown", "longest"), [(8, None), (16, None), (32, 8)])
def test_what_the_compiler_did_not_say_is_not_taken_for_too_large(unknown, longest):
    fits = lambda n: None if n == unknown else n <= 8  # noqa: E731
    assert largest_power(fits, 4, most=256) == longest


def test_below_what_the_compiler_did_not_say_nothing_is_known():
    assert largest_power(lambda n: None if n == 8 else n <= 4, 16, most=256) is None


def test_what_was_compiled_is_not_compiled_again_but_by_other_compilers(monkeypatch, tmp_path):
    setup = Setup("1B", "a100-80gb", 1, "blockwise", 1024)
    monkeypatch.setattr(compiled_bytes, "BYTES", tmp_path / "bytes.json")
    monkeypatch.setattr(compiled_bytes, "missing_compiler", lambda device: None)
    answers = [{"bytes": 5}, "unknown: it was killed"]
    monkeypatch.setattr(compiled_bytes, "answer_of", lambda *_, **__: answers.pop(0))
    assert [bytes_taken(setup), bytes_taken(setup)] == [5, 5]
    monkeypatch.setattr(compiled_bytes, "compiler_versions", lambda: {"jax": "another"})
    assert bytes_taken(setup) is None


def test_a_cell_of_table_2_is_ours_beside_the_papers(monkeypatch):
    monkeypatch.setattr(table2, "bytes_taken", lambda setup: setup.positions * 10**6)
    row = table2.Row("1B", "a100-80gb", 1, (16, 64, 128))
    assert table2.cell(row, "vanilla", 16) == "64K, 66 GB (16K)"
    monkeypatch.setattr(table2, "bytes_taken", lambda setup: None)
    assert table2.cell(row, "vanilla", 16) == "unknown (16K)"


def test_the_agents_of_a_hidden_task_differ_in_n_and_in_being_told_only():
    for hidden in in_context.HIDDEN.values():
        assert hidden_tasks(hidden.hidden_task).domain == task_spec(in_context.TASK).domain
    assert len({in_context.stem(*agent) for agent in in_context.AGENTS.values()}) == len(
        in_context.AGENTS
    )
    for trajectories, told in in_context.AGENTS.values():
        assert in_context.evaluation_of(trajectories).prompt_trajectories == trajectories - 1
        assert not told or trajectories == 1


@pytest.mark.parametrize("name", devices.DEVICES)
def test_a_device_without_its_compiler_is_not_answered_by_a_formula(name, monkeypatch):
    missing = lambda device: "install it" if device.name == name else None  # noqa: E731
    monkeypatch.setattr(devices, "missing_compiler", missing)
    with pytest.raises(SystemExit, match=f"{name} has no compiler here: install it"):
        devices.main()


def test_the_formulas_are_those_of_section_31():
    s, h, c = shape = section31.Shape(4_096, 1_024, 512)
    numbers = {scheme: section31.formula(scheme, shape) for scheme in SCHEMES}
    bytes_of = lambda scheme, part: 2 * s * h * getattr(numbers[scheme], part)  # noqa: E731
    assert bytes_of("vanilla", "attention") == 2 * s**2 * (h // 128)
    assert bytes_of("memory_efficient", "attention") == 2 * s * h
    assert bytes_of("memory_efficient", "feedforward") == 8 * s * h
    assert bytes_of("blockwise", "feedforward") == max(2 * s * h, 19 * c * h)
