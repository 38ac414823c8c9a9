"""The GPT that the experiments train and compile, and their search for the longest context."""

import json

import jax
import language_model
import numpy as np
import pytest
from language_model import GPTS, Setup, bytes_taken, gpt_loss, init_gpt, largest_power, sinusoids

from agentic_bpt.blockwise.core import SCHEMES, CoreConfig

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
    gradients_VD = jax.grad(gpt_loss)(params, np.arange(12)[None], core)["embed"]
    assert [bool(np.any(row)) for row in gradients_VD] == [True] * 11 + [False] * 6


def test_positions_are_told_apart():
    rows_LD = np.asarray(sinusoids(50, 8))
    assert len(np.unique(rows_LD.round(6), axis=0)) == 50


@pytest.mark.parametrize(("limit", "longest"), [(0, 0), (1, 1), (100, 64), (64, 64), (9_999, 256)])
@pytest.mark.parametrize("start", [1, 16, 256])
def test_the_longest_context_is_found_from_any_start(limit, longest, start):
    assert largest_power(lambda n: n <= limit, start, most=256) == longest


def test_what_the_compiler_did_not_say_is_not_known():
    assert largest_power(lambda n: None, 8, most=256) is None


def test_what_was_compiled_is_not_compiled_again(monkeypatch, tmp_path):
    setup = Setup("1B", "a100-80gb", 1, "blockwise", 1024)
    path = tmp_path / "bytes.json"
    monkeypatch.setattr(language_model, "BYTES", path)
    path.write_text(json.dumps({"rows": [setup._asdict() | {"bytes": 5}]}))
    monkeypatch.setattr(language_model, "subprocess", None)
    assert bytes_taken(setup) == 5
