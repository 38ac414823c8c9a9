import sys

import pytest

from agentic_bpt.made_by import command_line, made_by


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["/usr/bin/agentic-bpt", "train", "--workdir", "my run"],
            "agentic-bpt train --workdir 'my run'",
        ),
        (["/lib/agentic_bpt/__main__.py", "doctor"], "agentic-bpt doctor"),
        (["experiments/in_context.py", "speed", "0"], "python experiments/in_context.py speed 0"),
    ],
)
def test_a_command_is_what_a_shell_would_take(monkeypatch, argv, expected):
    monkeypatch.setattr(sys, "argv", argv)
    assert command_line() == expected


def test_versions_are_those_of_this_package_and_of_those_asked_for():
    import numpy

    versions = made_by("numpy")["versions"]
    assert set(versions) == {"agentic-bpt", "numpy"}
    assert versions["numpy"] == numpy.__version__
