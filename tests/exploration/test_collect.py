"""Collecting: the same episodes from the same seed, stopped or not; what is on disk; refusals."""

import dataclasses
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt.datasets.exorl import episode_files, read_episode
from agentic_bpt.datasets.relabel import relabel
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.exploration import collect as module
from agentic_bpt.exploration.actor_critic import LearnerConfig
from agentic_bpt.exploration.collect import STATE_NAME, CollectResult, collect


@pytest.fixture
def run(small_rnd, small_td3) -> Callable[..., CollectResult]:
    """Collect short episodes: 50 decisions, each held for 20 control steps."""
    configs = {"random": None, "rnd": small_rnd, "td3": small_td3}

    def run(out: Path, episodes: int, expl_agent: str = "random", **changes) -> CollectResult:
        options = {"task": "cartpole_swingup", "seed": 3, "action_repeat": 20, "progress": False}
        options |= {"config": configs[expl_agent], **changes}
        return collect(expl_agent=expl_agent, episodes=episodes, out=out, **options)

    return run


def contents(result: CollectResult) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (result.folder / "buffer").iterdir()}


def raise_at(monkeypatch, name: str, call: int, error: BaseException) -> None:
    """Let the `call`-th call of a function of the module fail before it does anything."""
    original, calls = getattr(module, name), []

    def failing(*args, **kwargs):
        calls.append(None)
        if len(calls) == call:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize(("expl_agent", "environments"), [("random", 2), ("rnd", 1), ("td3", 2)])
def test_stopped_at_any_point_it_gives_the_files_of_one_never_stopped(
    expl_agent, environments, run, tmp_path, monkeypatch
):
    total, many = 5 * environments, {"environments": environments}
    whole = run(tmp_path / "whole", total, expl_agent, **many)
    assert len(contents(whole)) == total
    part = run(tmp_path / "part", 2 * environments, expl_agent, **many)
    assert part.episodes == 2 * environments
    # Killed when round 3 is on disk and the state that knows of it is not.
    raise_at(monkeypatch, "save_state", 2, RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "part", total, expl_agent, **many)
    monkeypatch.undo()
    assert len(contents(part)) == 4 * environments
    rest = run(tmp_path / "part", total, expl_agent, **many)
    assert (rest.episodes, rest.interrupted) == (total, False)
    assert contents(rest) == contents(whole)


def test_workers_change_nothing(run, tmp_path):
    alone = run(tmp_path / "alone", 6, "td3", environments=3)
    shared = run(tmp_path / "shared", 6, "td3", environments=3, workers=2)
    assert contents(shared) == contents(alone)


def test_random_episodes_do_not_depend_on_the_number_of_environments(run, tmp_path):
    one = run(tmp_path / "one", 4)
    two = run(tmp_path / "two", 4, environments=2)
    assert contents(one) == contents(two)


def test_explorers_and_seeds_give_other_episodes(run, tmp_path):
    results = [run(tmp_path, 4, expl_agent) for expl_agent in ("random", "rnd", "td3")]
    results.append(run(tmp_path / "other seed", 4, "td3", seed=4))
    last = [
        read_episode(episode_files(result.folder)[-1], domain="cartpole").action
        for result in results
    ]
    for one, other in itertools.combinations(last, 2):
        assert (one[1:] != other[1:]).mean() > 0.5


def test_ctrl_c_keeps_whole_episodes(run, tmp_path, monkeypatch):
    steps = []
    original = Environment.step

    def step(self, action):
        steps.append(None)
        if len(steps) == 2 * 50 + 30:
            signal.raise_signal(signal.SIGINT)
        return original(self, action)

    monkeypatch.setattr(Environment, "step", step)
    result = run(tmp_path, 5)
    assert (result.episodes, result.interrupted) == (2, True)
    assert sorted(contents(result)) == ["episode_000000_50.npz", "episode_000001_50.npz"]


def test_rows_are_aligned_as_exorl_has_them(tmp_path):
    options = {"seed": 0, "progress": False}
    result = collect("walker_walk", expl_agent="random", episodes=1, out=tmp_path, **options)
    assert result.folder == tmp_path / "walker" / "random"
    (file,) = episode_files(result.folder)
    assert file.name == "episode_000000_1000.npz"
    with np.load(result.folder / "buffer" / file.name) as arrays:
        assert "action_repeat" not in arrays
    episode = read_episode(file, domain="walker")
    assert not episode.action[0].any()
    assert episode.reward[0] == 0
    expected_T = relabel(episode, task="walker_walk", mode="control")
    np.testing.assert_allclose(episode.reward[1:], expected_T, atol=1e-6)
    assert 10 < expected_T.sum() < 60  # random: 32.6 on average
    assert result.steps_per_second > 100


def test_an_action_repeat_is_recorded_and_its_rewards_are_summed(run, tmp_path):
    result = run(tmp_path, 1, task="cartpole_balance")
    (file,) = episode_files(result.folder)
    episode = read_episode(file, domain="cartpole")
    assert episode.action_repeat == 20
    assert episode.observation.shape == (51, 5)
    assert 10 < episode.reward[1] <= 20


def test_killed_before_its_first_state_it_starts_again(run, tmp_path, monkeypatch):
    raise_at(monkeypatch, "save_state", 2, RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, 2)
    monkeypatch.undo()
    assert run(tmp_path, 2).episodes == 2


def test_other_settings_in_the_same_folder_are_refused_by_name(run, small_td3, tmp_path):
    run(tmp_path, 1, "td3")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"got seed 4 where it has 3$"):
        run(tmp_path, 2, "td3", seed=4)
    with pytest.raises(InputError, match=r"noise 0\.5 where it has 0\.2$"):
        run(tmp_path, 2, "td3", config=dataclasses.replace(small_td3, noise=0.5))
    with pytest.raises(InputError, match="task 'cartpole_balance' where it has"):
        run(tmp_path, 2, "td3", task="cartpole_balance")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_episodes_of_somebody_else_are_never_overwritten(run, tmp_path):
    result = run(tmp_path, 1)
    (result.folder / STATE_NAME).unlink()
    before = contents(result)
    with pytest.raises(InputError, match="not this collection's: give another output folder"):
        run(tmp_path, 2)
    assert contents(result) == before


def test_a_lost_episode_is_named(run, tmp_path):
    result = run(tmp_path, 3)
    (result.folder / "buffer" / "episode_000001_50.npz").unlink()
    with pytest.raises(InputError, match="episode 1 of 3 is gone"):
        run(tmp_path, 4)


def test_nothing_is_left_to_do(run, tmp_path):
    assert run(tmp_path, 2)[1:] != run(tmp_path, 1)[1:] == (2, 0.0, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expl_agent": "icm"}, "expected one of random, rnd, td3, got 'icm'"),
        ({"environments": 0}, "environments must divide the 1 episodes.*got 0"),
        ({"environments": 2}, "environments must divide the 1 episodes.*got 2"),
        ({"workers": 2}, r"workers must lie in 1\.\.1, the number of environments, got 2"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"name": "a/b"}, "name must be that of one folder, such as td3_walk; got 'a/b'"),
        ({"name": ".."}, "name must be that of one folder, such as td3_walk; got '..'"),
        ({"config": LearnerConfig()}, "expl_agent random has no settings"),
        ({"expl_agent": "rnd", "config": LearnerConfig()}, "rnd takes a RndConfig"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, changes, message):
    options = {"expl_agent": "random", "episodes": 1, "out": tmp_path, "progress": False}
    with pytest.raises(InputError, match=message):
        collect("cartpole_swingup", **{**options, **changes})
    assert list(tmp_path.iterdir()) == []


def test_the_bar_says_how_far_it_is(run, tmp_path, capsys):
    run(tmp_path, 2, progress=True)
    shown = capsys.readouterr()
    assert "2/2 episodes" in shown.err
    assert "steps/s, return" in shown.err
    assert shown.out == ""


def test_random_episodes_need_no_jax():
    check = "import sys, agentic_bpt.exploration.collect; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
