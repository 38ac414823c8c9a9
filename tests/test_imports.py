"""Imports go one way, and looking at data or reports starts no device."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "agentic_bpt"

ALLOWED = {
    "errors": set(),
    "made_by": set(),
    "progress": set(),
    "whole_file": {"errors"},
    "blockwise": set(),
    "environments": {"errors"},
    "datasets": {"errors", "made_by", "whole_file", "environments"},
    "exploration": {
        "errors",
        "whole_file",
        "environments",
        "datasets",
        "training",
        "progress",
    },
    "models": {"blockwise", "datasets"},
    "training": {"errors", "progress", "whole_file"},
    "evaluation": {"errors", "whole_file", "blockwise", "datasets", "environments", "models"},
    "reports": {"errors", "whole_file", "evaluation"},
}
"""Part -> parts it may import; what stands above them (methods, run, cli, ...) may import all."""


def imports_of(path: Path) -> set[str]:
    """Parts of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("agentic_bpt.")}
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part):
    files = list((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    for path in files:
        assert imports_of(path) <= ALLOWED[part] | {part}, path


def test_reports_take_only_the_protocol_from_evaluation():
    for path in (PACKAGE / "reports").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and "agentic_bpt.evaluation" in (node.module or ""):
                assert node.module == "agentic_bpt.evaluation.protocol", path


@pytest.mark.parametrize("part", ["environments", "datasets", "reports"])
def test_no_device_is_started_by(part):
    names = [f"agentic_bpt.{part}.{path.stem}" for path in (PACKAGE / part).glob("[a-z]*.py")]
    code = f"import sys, {', '.join(names)}\nassert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
