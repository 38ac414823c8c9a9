"""Each planted fault has its sentence, and a healthy agent has none."""

import dataclasses
import re

import numpy as np
import pytest

from agentic_bpt.datasets.hindsight import chain_of_hindsight
from agentic_bpt.datasets.sampler import pad_chains
from agentic_bpt.datasets.trajectory import Trajectory
from agentic_bpt.evaluation.context_use import Change, ContextUse, measure_context
from agentic_bpt.evaluation.diagnose import Measures, verdict
from agentic_bpt.evaluation.imitation import ChainMeasures, fit_baselines, measure_chains
from agentic_bpt.evaluation.target_use import AskedTarget, EvaluationUse
from agentic_bpt.models.tokens import Scales

CHAIN = ChainMeasures(
    agent_N=[0.4, 0.1],
    mean_N=[0.3, 0.3],
    linear_N=[0.2, 0.2],
    at_bounds=0.3,
    data_at_bounds=0.35,
    far_O=[0.0, 0.0005],
    constant=[],
    completed_timesteps_N=[0.0, 0.1],
    completed_trajectories_N=[0.0, 1.0],
)
EVALUATION = EvaluationUse(
    file="evaluation-x.json",
    steps=10,
    target=500.0,
    return_N=[400.0, 510.0],
    random=30.0,
    reached_N=[0.2, 0.6],
    target_K=[250.0, 500.0],
    return_K=[240.0, 455.0],
    slope=0.86,
    slope_low=0.7,
    slope_high=1.0,
)
CONTEXT = ContextUse(
    action_error=0.2,
    loss=0.1,
    changes={
        "dropped": Change(action=0.1, loss=0.05, loss_low=0.04, loss_high=0.06),
        "foreign": Change(action=0.08, loss=0.02, loss_low=-0.01, loss_high=0.05),
        "reversed": Change(action=0.001, loss=0.0, loss_low=-0.01, loss_high=0.01),
    },
)
HEALTHY = Measures(
    trajectories=2,
    loss="last",
    imitates=True,
    layout_has_completion=True,
    return_std=100.0,
    return_scale=550.0,
    best_return=550.0,
    training=CHAIN,
    validation=CHAIN,
    asked=[AskedTarget(target=500.0, quantile=0.8, near=0.1)],
    evaluations=[EVALUATION],
    context=CONTEXT,
)


def changed(part: str, **fields) -> Measures:
    """The healthy measures with fields of one part changed; "" is the whole."""
    places = {
        "": lambda: dataclasses.replace(HEALTHY, **fields),
        "asked": lambda: changed("", asked=[dataclasses.replace(HEALTHY.asked[0], **fields)]),
        "evaluation": lambda: changed("", evaluations=[dataclasses.replace(EVALUATION, **fields)]),
        "context": lambda: changed("", context=dataclasses.replace(CONTEXT, **fields)),
        "training": lambda: changed("", training=dataclasses.replace(CHAIN, **fields)),
        "validation": lambda: changed("", validation=dataclasses.replace(CHAIN, **fields)),
        "both": lambda: dataclasses.replace(
            changed("training", **fields), validation=dataclasses.replace(CHAIN, **fields)
        ),
    }
    return places[part]()


def changes_of(action: float, **losses: float) -> dict[str, Change]:
    """Changes of this much action and of these losses, give or take 0.005."""
    return {
        name: Change(action=action, loss=loss, loss_low=loss - 0.005, loss_high=loss + 0.005)
        for name, loss in losses.items()
    }


def test_nothing_stands_out_where_nothing_is_wrong():
    assert verdict(HEALTHY) == ("nothing stands out: no threshold of this diagnosis is crossed",)


FAULTS = [
    ("both", {"agent_N": [0.1, 0.299]}, "no better than their mean .*has 0.2: train on"),
    (
        "both",
        {"agent_N": [0.1, 0.4], "linear_N": [0.1, 0.3]},
        "no better than their mean .*as good as random",
    ),
    ("validation", {"linear_N": [0.2, 0.09]}, "a linear function .*0.09 against 0.1"),
    ("validation", {"agent_N": [0.4, 0.13]}, "is 1.30 times that on training .*overfits"),
    ("evaluation", {"slope": 0.0, "slope_low": None}, "0.00 .one chain, no interval. gained"),
    (
        "asked",
        {"target": 850.0, "near": 0.0},
        "target of 850 is above every return .*best 550.*hardly a chain aimed there: ask for less",
    ),
    ("asked", {"near": 0.004}, "target of 500 is rare in training: 0.4% of chains"),
    (
        "evaluation",
        {"slope": 0.02, "slope_low": -0.1},
        r"not follow the target: 0.02 \[-0.10, 1.00\] gained",
    ),
    ("evaluation", {"random": 460.0}, "return of 455 is no better than a random policy's 460"),
    ("", {"return_std": 5.0}, "nearly alike"),
    ("validation", {"at_bounds": 0.9}, "are clipped: 90% lie at .*35% of the data's"),
    ("validation", {"at_bounds": 0.05}, "too timid: 5% lie"),
    ("validation", {"far_O": [0.0, 0.02]}, "1 of 2 observations .*number 1 most .2.00%"),
    ("training", {"constant": [1]}, r"never change in training: \[1\]"),
    ("evaluation", {"reached_N": [0.0, 0.0]}, "100% of training chains and in 0% at test"),
    ("evaluation", {"reached_N": [0.9, 0.9]}, "0% of trajectories before the last .*90% at test"),
    (
        "context",
        {"changes": changes_of(0.009, dropped=0.05)},
        "do not change the action: the context is not used",
    ),
    (
        "context",
        {"changes": changes_of(0.1, dropped=-0.01, foreign=0.1)},
        "worse: .*from 0.1 to 0.09",
    ),
    (
        "context",
        {"changes": changes_of(0.1, dropped=0.004, foreign=0.0)},
        "but are not seen to improve it",
    ),
]


@pytest.mark.parametrize(("part", "fields", "expected"), FAULTS)
def test_a_fault_has_its_sentence_and_no_other(part, fields, expected):
    (sentence,) = verdict(changed(part, **fields))
    assert re.search(expected, sentence), sentence


def test_errors_on_positions_without_the_loss_are_no_fault():
    assert verdict(changed("both", agent_N=[9.0, 0.1])) == verdict(HEALTHY)
    everywhere = dataclasses.replace(changed("both", agent_N=[9.0, 0.1]), loss="all")
    assert "no better than their mean" in verdict(everywhere)[0]


def test_a_split_with_wilder_or_tamer_actions_is_not_overfitting():
    for agent, mean in ((0.13, 0.4), (0.1, 0.2)):
        measures = changed("validation", agent_N=[0.4, agent], mean_N=[0.3, mean])
        assert verdict(measures) == verdict(HEALTHY)


def test_a_method_that_does_not_imitate_is_not_blamed_for_acting_otherwise():
    measures = changed("both", agent_N=[1.0, 1.0], at_bounds=0.05)
    assert len(verdict(measures)) == 2
    other = dataclasses.replace(measures, imitates=False)
    assert verdict(other) == verdict(HEALTHY)


def test_one_chain_says_nothing_of_whether_the_context_helps():
    alone = Change(action=0.1, loss=-0.01, loss_low=None, loss_high=None)
    assert verdict(changed("context", changes={"dropped": alone})) == verdict(HEALTHY)


def test_the_best_return_itself_is_not_above_the_data():
    assert verdict(changed("asked", target=550.0 * (1 + 1e-9))) == verdict(HEALTHY)


def chain_at(number: int):
    """Chains whose actions are a function of the observation."""
    generator = np.random.default_rng(number)
    parts = []
    for reward in (0.0, 1.0, 2.0):
        observations = generator.normal(size=(20, 2)).astype(np.float32)
        actions = np.tanh(observations[:, :1])
        parts.append(Trajectory(observations, actions, np.full(20, reward, "f4"), observations[-1]))
    return pad_chains([chain_of_hindsight(parts)], length=60, loss="last")


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        (lambda batch: np.full((60, 1), 0.1), ["no better than their mean", "context is not used"]),
        (lambda batch: np.tanh(batch.observations_BLO[0, :, :1]), ["context is not used"]),
    ],
)
def test_agents_that_are_constant_or_see_no_context_are_found_out(predict, expected):
    scales = Scales(np.zeros(2), np.ones(2), np.float32(40), np.float32(2))
    baselines = fit_baselines(chain_at, range(8, 12), scales)
    options = {"trajectories": 3, "baselines": baselines, "scales": scales}
    training = measure_chains(predict, chain_at, chains=8, **options)
    context = measure_context(
        lambda batch: np.clip(predict(batch) + 0.1, -1, 1), chain_at, chains=8, completion="reached"
    )
    measures = dataclasses.replace(
        HEALTHY, trajectories=3, training=training, validation=None, context=context
    )
    sentences = verdict(measures)
    assert len(sentences) == len(expected)
    for sentence, words in zip(sentences, expected, strict=True):
        assert words in sentence
