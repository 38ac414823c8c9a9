"""Small explorers: the tests share them, so that each is compiled once."""

import pytest

from agentic_bpt.exploration.actor_critic import LearnerConfig
from agentic_bpt.exploration.rnd import RndConfig

SMALL = {
    "width": 16,
    "batch_size": 16,
    "uniform_steps": 50,
    "updates_per_call": 8,
    "learning_rate": 3e-3,
    "discount": 0.5,
    "actor_every_updates": 2,
}


@pytest.fixture(scope="session")
def small_td3() -> LearnerConfig:
    return LearnerConfig(**SMALL)


@pytest.fixture(scope="session")
def small_rnd() -> RndConfig:
    return RndConfig(representation_width=8, **SMALL)
