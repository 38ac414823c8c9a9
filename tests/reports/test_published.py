"""The published numbers: as printed, and found for the right method."""

from agentic_bpt.reports.published import TABLE, published_entry, published_row


def test_columns_average_to_the_published_averages():
    averages = {"BC-10%": 36.11, "DT": 45.51, "AT N=4": 83.02, "AT+BPT N=32": 111.13}
    for column, average in averages.items():
        entries = [published_row(task) for task in TABLE if task != "jaco_reach"]
        entries.append(published_row("jaco_reach_top_left"))
        values = [row[column] for row in entries if row is not None]
        assert len(values) == 6
        # The paper's own averages are off by up to a hundredth.
        assert abs(sum(float(value) for value in values) / 6 - average) < 0.011, column


def test_each_method_finds_its_own_entry():
    assert published_entry("cheetah_run", "bc10", {}) == 34.66
    assert published_entry("cheetah_run", "dt", {"trajectories": 4}) == 67.53
    assert published_entry("cheetah_run", "at", {"trajectories": 4}) == 125.68
    long = {"trajectories": 32, "scheme": "memory_efficient"}
    assert published_entry("cheetah_run", "at", long) == "oom"
    assert published_entry("jaco_reach_top_left", "at", {"trajectories": 128}) == 89.51
    assert published_entry("cheetah_run", "at", {"trajectories": 8}) is None
    assert published_entry("cheetah_run", "at", {"trajectories": 32}) is None
    assert published_entry("quadruped_walk", "at", {"trajectories": 4}) is None
