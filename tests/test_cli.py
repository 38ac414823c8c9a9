"""The whole job through the command line, in small: 20 decisions an episode, a tiny transformer."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agentic_bpt import cli
from agentic_bpt.whole_file import held
from tests.builders import readme_example

TASK = "cartpole_swingup"
SMALL = ["--width", "16", "--layers", "1", "--batch", "4", "--steps", "6"]


def run(*words: str | Path) -> None:
    """Run one command in this process."""
    arguments = [str(word) for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["agentic-bpt", *arguments])
        cli.main()


def refusal(capsys, *words: str | Path) -> str:
    """Run a command that must fail with one line, and give that line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """A folder with collected episodes, their store, and two trained and evaluated runs."""
    folder = tmp_path_factory.mktemp("job")
    collected = ["--expl-agent", "random", "--episodes", "8", "--action-repeat", "50"]
    run("collect", "--task", TASK, *collected, "--out", folder / "exorl")
    source = folder / "exorl" / "cartpole" / "random"
    run("ingest", source, "--task", TASK, "--relabel", "stored", "--out", folder / "stores")
    (store,) = (folder / "stores").glob("*.h5")
    store.rename(folder / "store.h5")
    at = ["--method", "at", "--trajectories", "2", *SMALL]
    bc10 = ["--method", "bc10", "--steps", "6"]
    for name, options in (("at", at), ("bc10", bc10)):
        run("train", *options, "--store", folder / "store.h5", "--workdir", folder / name)
        run("evaluate", folder / name, "--trajectories", "2", "--chains", "5")
    return folder


def test_report_has_every_method_and_a_picture(job):
    run("report", job / "at", job / "bc10", "--out", job / "report")
    page = (job / "report" / "report.md").read_text()
    assert "| at" in page
    assert "| bc10" in page
    assert "random" in page
    assert (job / "report" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_result_file_says_how_it_came_about(job):
    (path,) = (job / "at").glob("evaluation-*.json")
    result = json.loads(path.read_text())
    assert [c["target_multiplier"] for c in result["conditions"]] == [1.0, 0.5, 0.75, 1.25]
    assert np.shape(result["conditions"][0]["returns"]) == (5, 2)
    assert result["command"].startswith("agentic-bpt evaluate")
    assert result["versions"]["mujoco"]
    assert len(result["dataset"]["data_hash"]) == 64


def test_chains_have_the_same_returns_whatever_else_is_evaluated(job):
    run("evaluate", job / "at", "--trajectories", "2", "--chains", "3")
    few, many = (
        json.loads(next((job / "at").glob(f"*chains{n}-*.json")).read_text()) for n in (3, 5)
    )
    for a, b in zip(few["conditions"], many["conditions"], strict=True):
        assert a["returns"] == b["returns"][:3]
    assert few["random"]["returns"] == many["random"]["returns"][:3]


def test_the_lines_of_the_readme_act_in_gymnasium(job):
    """The README's own words, with the run and the environment of this test put in."""
    lines = readme_example("agentic_bpt.load")
    lines = lines.replace("runs/at4", str(job / "at")).replace("trajectories=4", "trajectories=2")
    small = '"agentic_bpt/cartpole_swingup-v0", action_repeat=50'
    theirs = '"agentic_bpt/walker_run-v0", action_repeat=1'
    assert theirs in lines
    lines = lines.replace(theirs, small).replace("range(4)", "range(2)")
    names = {}
    exec(lines, names)
    assert names["episode"] == 1
    assert names["done"]
    assert np.isfinite(names["reward"])


def test_a_finished_run_is_not_trained_again_and_another_is_refused(job, capsys):
    at = ["train", "--store", job / "store.h5", "--workdir", job / "at", "--trajectories", "2"]
    before = (job / "at" / "metrics.jsonl").stat().st_mtime_ns
    run(*at, *SMALL)
    assert (job / "at" / "metrics.jsonl").stat().st_mtime_ns == before
    line = refusal(capsys, *at, *SMALL, "--learning-rate", "0.5")
    assert "optimizer.learning_rate is 0.001 there and 0.5 here" in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluate", "{job}/at", "--trajectories", "0"], "--trajectories must be at least 1"),
        (["evaluate", "{job}/nothing"], "is not a run"),
        (["evaluate", "{job}/bc10", "--prompt-trajectories", "1"], "leave out the prompt"),
        (["report", "{job}/nothing"], "{job}/nothing"),
        (["ingest", "{job}", "--task", "cartpole_swingup"], "{job}"),
        (
            ["ingest", "{job}/exorl/cartpole/random", "--task", "walker_run"],
            "choose a task of cartpole",
        ),
        (
            ["train", "--store", "{job}/store.h5", "--workdir", "{job}/z", "--hidden-task", "fly"],
            "walker_speed",
        ),
        (["memory", "--local", "--largest"], "--local runs one step"),
        (["in-context", "{job}/at"], "was not trained with --hidden-task"),
        (["diagnose", "{job}/nothing"], "is not a run"),
        (["table5", "--data", "{job}", "--tasks", "walker_fly"], "walker_run"),
        (["table5", "--data", "{job}", "--seeds", "0"], "--seeds and --workers must be at least 1"),
        (["table5", "--data", "{job}/none", "--tasks", "walker_run"], "no cell is left to run"),
        (["compare-trajectories", "--store", "{job}/no.h5"], "no.h5"),
        (
            ["compare-trajectories", "--store", "{job}/store.h5", "--trajectories", "99"],
            "leave it out of --trajectories",
        ),
        (["train", "--store", "{job}/no.h5", "--workdir", "{job}/x"], "no.h5"),
        (
            ["train", "--method", "bc10", "--layout", "joint", "--store", "s", "--workdir", "w"],
            "--layout means nothing to method bc10",
        ),
        (
            ["train", "--store", "{job}/store.h5", "--workdir", "{job}/y", "--trajectories", "99"],
            "lower --trajectories",
        ),
        (["collect", "--task", "walker_fly"], "walker_run"),
        (["collect", "--task", "walker_walk", "--action-repeat", "500"], "return_steps"),
        (["evaluate", "{job}/at", "--seed", "-1"], "--seed must be at least 0"),
        (["train", "--store", "{job}/store.h5", "--workdir", "{job}/x", "--seed", "-1"], "--seed"),
        (["ingest", "{job}/exorl/cartpole/random", "--task", TASK, "--seed", "-1"], "seed must"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(job, capsys, words, expected):
    line = refusal(capsys, *(word.format(job=job) for word in words))
    assert line.startswith("agentic-bpt: error: ")
    assert expected.format(job=job) in line


def test_the_advice_of_a_refused_training_can_be_followed(job, capsys, tmp_path):
    words = ["train", "--store", job / "store.h5", "--workdir", tmp_path / "run", *SMALL]
    assert "lower --trajectories" in refusal(capsys, *words, "--trajectories", "99")
    run(*words, "--trajectories", "2")
    assert (tmp_path / "run" / "experiment.json").exists()


def test_a_folder_that_a_collection_holds_is_refused(capsys, tmp_path):
    folder = tmp_path / "cartpole" / "random"
    words = ["collect", "--task", TASK, "--expl-agent", "random", "--episodes", "1"]
    with held(folder, refusal="here"):
        line = refusal(capsys, *words, "--action-repeat", "100", "--out", tmp_path)
    assert f"{folder}: another collection is at work here" in line


def test_a_run_in_use_is_refused(job, capsys):
    from agentic_bpt.run import only_run

    with only_run(job / "at"):
        line = refusal(
            capsys, "train", "--store", job / "store.h5", "--workdir", job / "at", *SMALL
        )
    assert "is in use by another run" in line


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_needs_no_heavy_import(words):
    code = (
        "import sys\n"
        "from agentic_bpt import cli\n"
        f"sys.argv = ['agentic-bpt', *{words!r}]\n"
        "try:\n    cli.main()\n"
        "finally:\n"
        "    heavy = {'jax', 'dm_control', 'mujoco', 'matplotlib', 'h5py'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: agentic-bpt" in done.stdout


def test_killed_training_resumes_bit_equal(job, tmp_path):
    """Kill -9 in the middle, go on, and compare with a run that was never stopped."""
    options = ["--trajectories", "2", "--width", "16", "--layers", "1", "--batch", "4"]
    options += ["--steps", "160", "--dropout", "0.1", "--checkpoint-every-steps", "20"]

    def command(workdir: Path) -> list[str]:
        program = [sys.executable, "-m", "agentic_bpt", "train", "--store", str(job / "store.h5")]
        return [*program, "--workdir", str(workdir), *options]

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while not any((killed / "checkpoints").glob("[0-9]*")) and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.2)  # some way beyond a checkpoint
    process.kill()
    process.wait()
    assert not (killed / "checkpoints" / "160").exists(), "killed too late to test anything"
    for workdir in (killed, whole):
        subprocess.run(command(workdir), check=True, stdout=subprocess.DEVNULL)
    from agentic_bpt.acting import load_run

    ours, theirs = load_run(killed), load_run(whole)
    assert ours.steps == theirs.steps == 160
    import jax

    equal = jax.tree.map(np.array_equal, ours.params, theirs.params)
    assert all(jax.tree.leaves(equal))
    texts = [(workdir / "metrics.jsonl").read_text() for workdir in (killed, whole)]
    losses = [
        [line["loss"] for line in map(json.loads, text.splitlines()) if "loss" in line]
        for text in texts
    ]
    assert len(losses[0]) == 8
    assert losses[0] == losses[1]
