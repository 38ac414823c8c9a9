"""The picture of all returns: every chain a point at its return, in the panel of its method."""

import io
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from report_builders import write_result

from agentic_bpt.reports.distributions import returns_figure, returns_png
from agentic_bpt.reports.results import Result, read_results


def results_of(tmp_path: Path, *runs: dict[str, Any]) -> list[Result]:
    return read_results([write_result(tmp_path / str(i), **run) for i, run in enumerate(runs)])


def test_points_and_means_are_drawn_at_their_values(tmp_path: Path):
    returns = np.random.default_rng(0).normal(200, 30, (6, 4))
    results = results_of(
        tmp_path,
        {"returns": returns},
        {"returns": returns + 9, "seed": 1},
        {"method": "dt", "returns": returns / 2},
    )
    at, dt, random = returns_figure(results).axes
    assert [axes.get_title("left") for axes in (at, dt, random)] == ["at", "dt", "random"]
    (points,) = [c for c in at.collections if isinstance(c, PathCollection)]
    x, y = np.asarray(points.get_offsets()).reshape(12, 4, 2).transpose(2, 0, 1)
    np.testing.assert_allclose(y, np.concatenate([returns, returns + 9]))
    assert (np.round(x) == np.arange(1, 5)).all()
    assert len(np.unique(x)) == x.size  # no chain hides another
    (bars,) = [c for c in at.collections if isinstance(c, LineCollection)]
    heights = [segment[0, 1] for segment in map(np.asarray, bars.get_segments())]
    np.testing.assert_allclose(heights, returns.mean(axis=0) + 4.5)
    assert at.get_ylim() == dt.get_ylim() == random.get_ylim()
    assert at.get_ylim()[0] == 0.0
    assert at.get_ylim()[1] > returns.max() + 9


@pytest.mark.parametrize("shape", [(1, 1), (2, 64)], ids=str)
def test_any_number_of_chains_and_methods_can_be_drawn(tmp_path: Path, shape: tuple[int, int]):
    runs = [{"returns": np.zeros(shape), "settings": {"x": i}} for i in range(3)]
    pixels = matplotlib.image.imread(io.BytesIO(returns_png(results_of(tmp_path, *runs))))
    assert pixels.shape[1] == 1800
    assert (pixels[..., :3] < 0.5).any()
