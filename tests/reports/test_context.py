"""Scores of hidden tasks: between random and the target of each chain, against N."""

from typing import Any

import numpy as np
import pytest

from agentic_bpt.reports.context import (
    Agent,
    context_lines,
    context_png,
    difference,
    difference_lines,
    part_lines,
    rollout_score,
    scores,
)


def document(shift: float = 0.0, seed: int = 0) -> dict:
    """Three chains of two rollouts; in the last one's task random acting reaches the target."""
    return {
        "seed": seed,
        "tasks": [None] * 3,
        "best_returns": [20.0, 30.0, 6.0],
        "random": {"returns": [[10.0, 10.0], [8.0, 12.0], [5.0, 7.0]]},
        "conditions": [
            {"context": "none", "returns": [[10.0, 15.0], [10.0 + shift, 30.0], [9.0, 9.0]]},
            {"context": "right", "returns": [[20.0, 20.0], [30.0, 30.0], [9.0, 9.0]]},
        ],
    }


AGENTS = [
    Agent("DT", 1, False, [document()]),
    Agent("AT, N = 2", 2, False, [document(), document(20, seed=1)]),
    Agent("told", 2, True, [document(10)]),
]


def test_a_score_is_0_at_random_and_in_units_of_the_mean_distance_to_the_targets():
    np.testing.assert_allclose(scores(document(), "none"), [[0, 50], [0, 200], [30, 30]])
    assert scores(document(), "foreign") is None


def test_a_rollout_is_averaged_over_chains_and_seeds():
    found: Any = rollout_score(AGENTS[1], "none", 0)
    assert found.value == pytest.approx((0 + 0 + 30 + 0 + 200 + 30) / 6)
    assert found.low <= found.value <= found.high
    last: Any = rollout_score(AGENTS[1], "none", -1)
    assert last.value == pytest.approx((50 + 200 + 30) / 3)


def test_the_table_has_a_row_an_agent_and_a_dash_for_what_was_not_acted():
    lines = context_lines(AGENTS)
    assert len(lines) == 2 + len(AGENTS)
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells[:2] == ["AT, N = 2", "2"]
    assert cells[2].startswith("43 [")
    assert cells[3].startswith("110 [")
    assert cells[4:6] == ["-", "-"]


def test_differences_are_of_the_same_chains_and_seeds():
    dt, at, told = AGENTS
    found: Any = difference(at, "right", dt, "none")  # seed 0 only
    assert found.value == pytest.approx((100 + 200 + 0) / 3)
    found = difference(at, "right", at, "none")
    assert found.value == pytest.approx((100 + 200 + 0 + 100 + 0 + 0) / 6)
    assert difference(at, "shuffled", dt, "none") is None
    other = Agent("DT", 1, False, [document(seed=7)])
    assert difference(at, "right", other, "none") is None
    lines = difference_lines([at, told, dt])
    assert len(lines) == 3
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert [cell.split(" ")[0] for cell in cells] == ["AT,", "100", "-", "67", "50"]
    found = difference(at, "none", at, "none", rollout=-1)
    assert found.value == pytest.approx((50 + 200 + 0 + 50 + 0 + 0) / 6)


def test_parts_are_named_tasks_or_stretches_of_a_parameter():
    named = document() | {"tasks": ["run", "walk", "run"], "parameters": [[0.0], [1.0], [0.0]]}
    lines = part_lines([Agent("AT, N = 2", 2, False, [named]), Agent("DT", 1, False, [named])])
    assert lines[0] == "| agent, after | run (2 chains) | walk (1 chains) |"
    # run: random 10 and 6, best 20 and 6, returns 20 and 9; walk: 10, 30, 30.
    assert lines[2] == "| AT, N = 2, the right task | 130 | 100 |"
    assert lines[3] == "| DT, nothing | 30 | 0 |"
    held_out = document() | {"parameters": [[2.1], [-2.0], [1.9]]}
    (head, *_) = part_lines([Agent("told", 2, True, [held_out])])
    assert head == "| agent, after | -2.0 to -2.0 (1 chains) | 1.9 to 2.1 (2 chains) |"
    goals = document() | {"parameters": [[0.0, 1.0]] * 3}
    assert part_lines([Agent("AT", 2, False, [goals])]) == []


def test_the_picture_is_drawn():
    assert context_png(AGENTS).startswith(b"\x89PNG")
