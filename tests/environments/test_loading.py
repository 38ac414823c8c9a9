"""Tests of importing dm_control on machines that lack something."""

import os
import subprocess
import sys

import pytest

from agentic_bpt.environments import loading
from agentic_bpt.errors import InputError


def test_a_mujoco_that_is_too_new_is_named_with_its_partner(monkeypatch):
    versions = {"mujoco": "4.0.0", "dm_control": "1.0.50"}
    monkeypatch.setattr(loading, "version", versions.__getitem__)
    with pytest.raises(InputError, match=r"dm_control 1\.0\.50 does not work with mujoco 4\.0\.0"):
        loading.check_versions()
    versions["mujoco"] = "3.17.0"
    loading.check_versions()


def test_a_renderer_that_does_not_load_never_stops_a_step():
    program = """
import numpy as np
from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
environment = Environment("cartpole_swingup")
environment.reset(0)
print("reward", environment.step(np.zeros(1)).reward)
try:
    environment.render()
except InputError as error:
    print("refused:", error)
"""
    environment = dict(os.environ, MUJOCO_GL="no_such_renderer")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "reward 0." in done.stdout or "reward 4." in done.stdout
    assert "refused: no OpenGL renderer works here" in done.stdout
    assert "MUJOCO_GL=no_such_renderer does not work here" in done.stderr
