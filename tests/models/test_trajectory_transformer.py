"""What an action may depend on, checked by gradients; and that padding changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentic_bpt.blockwise.core import CoreConfig
from agentic_bpt.datasets.hindsight import chain_of_hindsight
from agentic_bpt.datasets.sampler import pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.models.losses import action_error
from agentic_bpt.models.tokens import LAYOUTS, Scales, Timesteps
from agentic_bpt.models.trajectory_transformer import (
    Sizes,
    TrajectoryTransformer,
    TrajectoryTransformerConfig,
    timesteps_of,
)

STEPS, TRAJECTORIES = 4, 2
SCALES = Scales(jnp.zeros(3), jnp.ones(3), jnp.float32(4), jnp.float32(1))


def batch_of(length: int = STEPS * TRAJECTORIES, seed: int = 0):
    generator = np.random.default_rng(seed)
    draw = lambda *shape: generator.uniform(0, 1, shape).astype(np.float32)  # noqa: E731
    trajectories = [
        Trajectory(draw(STEPS, 3), draw(STEPS, 2), draw(STEPS), draw(3))
        for _ in range(TRAJECTORIES)
    ]
    return pad_chains([chain_of_hindsight(trajectories)], length=length)


def build(layout: str):
    core = CoreConfig(layers=2, width=16, heads=2, feedforward=32)
    config = TrajectoryTransformerConfig(core=core, layout=layout)
    model = TrajectoryTransformer(config, Sizes(2, STEPS, TRAJECTORIES))
    batch = batch_of()
    params = model.init(jax.random.key(0), timesteps_of(batch), batch.valid_BL, SCALES)
    return model, params


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_action_depends_on_what_was_known_before_it_and_on_nothing_else(layout):
    model, params = build(layout)
    batch = batch_of()
    at = 5  # the second step of the second trajectory

    def action(raw):
        changed = batch._replace(**raw)
        return model.apply(params, timesteps_of(changed), batch.valid_BL, SCALES)[0, at].sum()

    names = (
        "observations_BLO", "actions_BLA", "rewards_BL", "returns_to_go_BL", "completions_BL",
    )  # fmt: skip
    gradients = jax.grad(action)({name: jnp.asarray(getattr(batch, name)) for name in names})
    influence = {
        name: np.abs(np.asarray(g[0]).reshape(STEPS * TRAJECTORIES, -1)).sum(axis=1)
        for name, g in gradients.items()
    }
    for name in ("observations_BLO", "returns_to_go_BL"):  # known when acting
        assert (influence[name][: at + 1] > 0).all(), name
        assert (influence[name][at + 1 :] == 0).all(), name
    for name in ("actions_BLA", "rewards_BL"):  # known only afterwards
        assert (influence[name][:at] > 0).all(), name
        assert (influence[name][at:] == 0).all(), name
    sees_completion = layout != "return-state-action-reward"
    assert ((influence["completions_BL"][:at] > 0) == sees_completion).all()
    assert (influence["completions_BL"][at:] == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_changes_no_action_and_no_loss(layout):
    model, params = build(layout)
    short, long = batch_of(), batch_of(length=STEPS * TRAJECTORIES + 3)

    def predict(batch):
        return model.apply(params, timesteps_of(batch), batch.valid_BL, SCALES)

    length = short.valid_BL.shape[1]
    assert np.abs(predict(long)[:, :length] - predict(short)).max() < 1e-6
    losses = [
        action_error(predict(batch), jnp.asarray(batch.actions_BLA), jnp.asarray(batch.loss_BL))
        for batch in (short, long)
    ]
    assert losses[0][1] == losses[1][1] == length
    assert np.isclose(losses[0][0], losses[1][0], rtol=1e-5)


def test_layouts_have_the_tokens_of_their_names():
    assert [len(layout.tokens) for layout in LAYOUTS.values()] == [4, 5, 1]
    for layout in LAYOUTS.values():
        assert "action" not in layout.known_before
        assert set(layout.known_before) | set(layout.known_after) == set(layout.tokens)


def test_the_published_sizes_by_shapes_alone():
    """3 layers of width 128 on 32 trajectories of 1,000 steps: about 0.6 million parameters."""
    model = TrajectoryTransformer(
        TrajectoryTransformerConfig(layout="return-state-action-reward"), Sizes(6, 1000, 32)
    )
    shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)  # noqa: E731
    L = 32_000
    scalar, number = shape(1, L), jax.ShapeDtypeStruct((1, L), jnp.int32)
    timesteps = Timesteps(
        shape(1, L, 24), scalar, number, number, shape(1, L, 6), scalar, scalar,
        shape(1, L, 6), scalar, scalar,
    )  # fmt: skip
    scales = Scales(shape(24), shape(24), shape(), shape())
    valid = jax.ShapeDtypeStruct((1, L), bool)
    out, params = jax.eval_shape(
        lambda *inputs: model.init_with_output(jax.random.key(0), *inputs), timesteps, valid, scales
    )
    assert out.shape == (1, L, 6)
    core = sum(leaf.size for leaf in jax.tree.leaves(params["params"]["stack"]))
    assert 590_000 < core < 600_000
