"""The step that is planned is the step that is trained."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from agentic_bpt.datasets.store import Store
from agentic_bpt.errors import InputError
from agentic_bpt.experiment import override, replace_in
from agentic_bpt.methods import preset_of
from agentic_bpt.planner.step import EpisodeShape, positions_of, training_step
from agentic_bpt.run import episode_steps, make_parts
from agentic_bpt.training.optimizer import make_optimizer
from agentic_bpt.training.step import init_state, make_train_step
from tests.builders import make_store


def program(function, state, batch) -> str:
    """What is handed to the compiler, but for the numbers that a data set fixes."""
    text = jax.jit(function, donate_argnums=0).lower(state, batch).as_text()
    return re.sub(r"dense<[^>]*>", "dense", text)


def test_same_program_as_in_training(tmp_path):
    experiment = preset_of("at", "cpu")
    core = ("agent", "model", "core")
    for path, value in (
        ((*core, "width"), 16),
        ((*core, "layers"), 1),
        ((*core, "scheme"), "vanilla"),
        (("agent", "chain", "trajectories"), 2),
        (("batch",), 4),
        (("accumulate",), 2),
    ):
        experiment = replace_in(experiment, path, value)
    with Store.open(make_store(tmp_path)) as store:
        parts = make_parts(experiment, store)
        optimizer = make_optimizer(experiment.optimizer, steps=experiment.loop.steps)
        state, batch = init_state(parts.params, optimizer), parts.batch_at(0)
        function = make_train_step(parts.loss, optimizer, accumulate=experiment.accumulate)
        longest = int(store.lengths.max())
        acting = episode_steps(store)
    trained = program(function, state, batch)

    planned = training_step(experiment, EpisodeShape(5, 1, longest))
    shapes = lambda tree: jax.tree.map(lambda x: (np.shape(x), x.dtype), tree)  # noqa: E731
    assert shapes(planned.batch) == shapes(batch)
    # The timestep embedding has rows for the episodes of acting, which are longer here.
    planned = training_step(experiment, EpisodeShape(5, 1, acting))
    assert shapes(planned.state) == shapes(state)
    assert program(planned.function, planned.state, batch) == trained


def test_positions_count_every_token():
    experiment = preset_of("at", "paper")
    assert positions_of(experiment, EpisodeShape(24, 6, 1000)) == 32 * 1000 * 4
    joint = override(experiment, "layout", [("agent", "model")], "joint")
    assert positions_of(joint, EpisodeShape(24, 6, 1000)) == 32 * 1000


def test_a_method_without_chains_has_no_step():
    experiment = dataclasses.replace(preset_of("bc10", "cpu"), batch=8)
    with pytest.raises(InputError, match="bc10 learns from single steps"):
        training_step(experiment, EpisodeShape(5, 1, 10))
