"""The picture: every line where its numbers are, nothing hidden, and no size that breaks it."""

import io
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from report_builders import write_result

from agentic_bpt.evaluation.protocol import along_the_chain
from agentic_bpt.reports.plots import COLORS, chain_figure, chain_png
from agentic_bpt.reports.results import Result, read_results


def results_of(tmp_path: Path, *runs: dict[str, Any]) -> list[Result]:
    return read_results([write_result(tmp_path / str(i), **run) for i, run in enumerate(runs)])


def test_lines_bands_and_dataset_are_drawn_at_their_values(tmp_path: Path):
    returns = np.random.default_rng(0).normal(200, 30, (6, 4))
    results = results_of(tmp_path, {"returns": returns}, {"returns": returns + 9, "seed": 1})
    chain_axes, data_axes = chain_figure(results).axes
    points = {str(line.get_label()): line.get_xydata() for line in chain_axes.get_lines()}
    expected = along_the_chain(np.stack([returns, returns + 9]))
    np.testing.assert_allclose(
        np.asarray(points["at, 2 seeds"]), [(n + 1, i.value) for n, i in enumerate(expected)]
    )
    np.testing.assert_allclose(
        np.asarray(points["random"])[:, 1], np.linspace(20, 25, 24).reshape(6, 4).mean(axis=0)
    )
    bands = [c for c in chain_axes.collections if isinstance(c, FillBetweenPolyCollection)]
    top = max(i.high for i in expected if i.high is not None)
    assert np.asarray(bands[1].get_paths()[0].vertices).max() == pytest.approx(top)
    dashed = [np.asarray(line.get_xydata())[0, 1] for line in chain_axes.get_lines()[-2:]]
    assert dashed == [119.0, 114.5]
    assert sum(bar.get_width() for bar in data_axes.patches if isinstance(bar, Rectangle)) == 100
    assert chain_axes.get_ylim() == data_axes.get_ylim()
    assert data_axes.get_ylim()[0] == 0.0


def test_colours_and_dashes_tell_more_methods_apart_than_there_are_colours(tmp_path: Path):
    runs = [{"settings": {"x": i}} for i in range(len(COLORS) + 2)]
    chain_axes = chain_figure(results_of(tmp_path, *runs)).axes[0]
    looks = {
        (line.get_color(), line.get_linestyle())
        for line in chain_axes.get_lines()
        if str(line.get_label()).startswith("at")
    }
    assert len(looks) == len(runs)


def test_legend_lies_under_the_panels_and_inside_the_picture(tmp_path: Path):
    runs = [{"settings": {"scheme": "a long name of a scheme", "x": i}} for i in range(5)]
    runs.append({"settings": {"scheme": "an even longer name " * 6, "x": 5}})
    figure = chain_figure(results_of(tmp_path, *runs))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert box.y0 >= 0
    assert all(box.y1 <= axes.get_window_extent().y0 for axes in figure.axes)


def test_labels_of_near_dashed_lines_do_not_overlap(tmp_path: Path):
    figure = chain_figure(results_of(tmp_path, {}))
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[1].texts if isinstance(text, Annotation)]
    best, tenth = (label.get_window_extent() for label in labels)
    assert [label.get_text() for label in labels] == ["best 119", "best tenth 114"]
    assert best.y0 >= tenth.y1
    assert max(best.x1, tenth.x1) <= figure.bbox.width


@pytest.mark.parametrize(
    "shape", [(1, 1), (6, 1), (1, 5), (2, 64)], ids=lambda shape: f"{shape[0]}x{shape[1]}"
)
def test_any_number_of_chains_and_trajectories_can_be_drawn(tmp_path: Path, shape: tuple[int, int]):
    png = chain_png(results_of(tmp_path, {"returns": np.zeros(shape)}))
    pixels = matplotlib.image.imread(io.BytesIO(png))
    assert pixels.shape[:2] == (840, 1800)
    assert (pixels[..., :3] < 0.5).any()


def test_runs_left_out_of_the_table_are_left_out_of_the_picture(tmp_path: Path):
    bad = {"method": "dt", "returns": [[1.0, np.nan, 2.0]] * 2}
    chain_axes = chain_figure(results_of(tmp_path, {}, bad)).axes[0]
    labels = [str(line.get_label()) for line in chain_axes.get_lines()]
    assert "at, 1 seed" in labels
    assert not any(label.startswith("dt") for label in labels)
