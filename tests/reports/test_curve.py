"""Return against N: the numbers that a page says."""

import io

import pytest
from PIL import Image

from agentic_bpt.reports.results import read_result
from agentic_bpt.reports.trajectory_count import (
    Comparison,
    Cost,
    Series,
    along_chain,
    chain_lines,
    cost_lines,
    curve_png,
    grid_lines,
    rise,
)
from tests.reports.report_builders import write_result


@pytest.fixture
def comparison(tmp_path):
    def results(name, *returns):
        return [
            read_result(write_result(tmp_path / f"{name}{seed}", seed=seed, returns=of))
            for seed, of in enumerate(returns)
        ]

    one = results("one", [[10.0, 30.0], [20.0, 20.0]], [[30.0, 50.0], [40.0, 60.0]])
    two = results("two", [[100.0, 90.0], [100.0, 80.0]])
    costs = [Cost(1, 2 << 20, 1234.5, 100, 0.0425, 7.0), Cost(2, 3 << 20, 99.0, 100, None, 8.0)]
    series = [Series("equal updates", {1: one, 2: two})]
    return Comparison("walker_run", series, (1, 2), {"DT": results("dt", [[5.0, 7.0]])}, costs)


def test_along_the_chain_is_the_mean_over_seeds_and_chains(comparison):
    one, two = comparison.series[0].by_trajectories.values()
    assert [interval.value for interval in along_chain(one)] == [25.0, 40.0]
    assert rise(one).value == pytest.approx((20 + 0 + 20 + 20) / 4)
    assert rise(two).value == pytest.approx(-15.0)
    assert (rise(two).low, rise(two).high) == (-20.0, -10.0)


def test_lines_say_what_was_measured(comparison):
    chain = "\n".join(chain_lines(comparison))
    assert "| 1 | 2 | 25.0 | 40.0 | 15.0 [" in chain
    assert "| 2 | 1 | 100.0 | 85.0 | -15.0 [" in chain
    grid = grid_lines(comparison)
    mean = grid[grid.index("**equal updates: the mean of n episodes**") :]
    assert any(line.startswith("| 1 | 1,000 | 2 | 25.0 [") and " 32.5 [" in line for line in mean)
    assert "| DT | 1,000 | 1 | 5.0 | 6.0 |" in mean
    assert cost_lines(comparison)[2:] == [
        "| 1 | 100 | 2 MiB | 42 ms | 1,234 | 7 s |",
        "| 2 | 100 | 3 MiB | - | 99 | 8 s |",
    ]


def test_the_curve_is_a_picture(comparison):
    with Image.open(io.BytesIO(curve_png(comparison))) as picture:
        assert picture.size == (2400, 840)
        assert len(picture.getcolors(1 << 24)) > 8
