"""What a set of cells is predicted to take, on devices that need not be present."""

import pytest

from agentic_bpt.blockwise.devices import DEVICES
from agentic_bpt.suites.cell import State, record, state_of
from agentic_bpt.suites.plan import SHARE_OF_PEAK, estimates, left_seconds, runnable
from agentic_bpt.suites.table5 import PRESETS, Row, cells_of
from tests.builders import make_store


@pytest.fixture
def cells(tmp_path):
    store = make_store(tmp_path, episodes=40)
    rows = [Row("cartpole_swingup", store, "")]
    return cells_of(PRESETS["gpu"], rows, seeds=1, steps=None, workdir=tmp_path)


@pytest.mark.parametrize(("name", "published"), [("a100-80gb", 19.5e12), ("h100-80gb", 67e12)])
def test_peaks_are_those_that_nvidia_publishes(name, published):
    assert DEVICES[name].float32_peak == pytest.approx(published, rel=0.01)


def test_time_is_operations_over_a_share_of_the_peak(cells):
    estimated = estimates(cells, {"cartpole_swingup": 1000}, "h100-80gb")
    found = {one.cell.column: one for one in estimated}
    # The largest term: 200,000 updates x 4 chains x 3 layers, attention over 32,000 positions of
    # width 128 forwards and, at 2.5 times the price, backwards; half of the square is causal.
    attention = 200_000 * 4 * 3 * 3.5 * (2 * 2 * 32_000**2 * 128 / 2)
    seconds = attention / (SHARE_OF_PEAK * 66.9e12)
    assert found["at-n32-blockwise"].training_seconds == pytest.approx(seconds, rel=0.05)


def test_out_of_memory_is_judged_anew(cells):
    steps_of = {"cartpole_swingup": 1000}
    (cell,) = [cell for cell in cells if cell.column == "at-n32-blockwise"]
    record(cell, State("oom", "oom: 5 GB predicted of 4"))
    (found,) = estimates([cell], steps_of, "h100-80gb")
    assert found.state.kind == "pending"
    assert left_seconds([found]) == found.training_seconds
    assert runnable([found]) == [cell]
    assert state_of(cell).kind == "pending"


def test_what_trains_once_or_not_at_all_counts_so(cells):
    found = {o.cell.column: o for o in estimates(cells, {"cartpole_swingup": 1000}, "h100-80gb")}
    dt, at = found["dt"], found["at-n4-blockwise"]
    assert dt.training_seconds
    assert at.training_seconds
    again = dt._replace(state=State("failed", "why"))
    assert left_seconds([dt, again, at]) == dt.training_seconds + at.training_seconds
    assert left_seconds([dt, dt._replace(state=State("done"))]) == 0
    assert left_seconds([at._replace(state=State("oom"))]) == 0


def test_no_time_is_said_where_none_is_taken_or_no_speed_is_known(cells):
    steps_of = {"cartpole_swingup": 1000}
    found = {one.cell.column: one for one in estimates(cells, steps_of, "h100-80gb")}
    assert found["bc10"].training_seconds is None
    assert found["at-n32-vanilla"].training_seconds is None
    vanilla, blockwise = found["at-n32-vanilla"].bytes, found["at-n32-blockwise"].bytes
    assert vanilla
    assert blockwise
    assert vanilla.total > 10 * blockwise.total
    on_tpu = estimates(cells, steps_of, "tpu-v4")
    assert all(one.training_seconds is None for one in on_tpu)
    assert any(one.bytes for one in on_tpu)
