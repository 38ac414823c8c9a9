"""What many tests share: where the reference episodes lie, if they are there."""

import os
import signal
from pathlib import Path

import pytest

# A shell starts background jobs with SIGINT ignored, which children inherit; tests that interrupt
# need Python's own answer to it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

# Many tests, and the processes that they start, compile the same programs: JAX keeps them. Each
# worker has a place of its own, for JAX does not write them whole; deleting it loses nothing.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "jax" / _WORKER)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"


# Most programs run for milliseconds: unoptimised, they are compiled in half the time.
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {UNOPTIMISED}".strip()


def _shared(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not beside the repository: nothing to compare with")
    return folder


@pytest.fixture
def reference_episodes() -> Path:
    """Give the folder of episodes that ExoRL's own code wrote, with its relabelled returns."""
    return _shared("reference_episodes")


@pytest.fixture
def rnd_episodes() -> Path:
    """Give the folder of whole runs of URLB's own RND agent."""
    return _shared("rnd_episodes")
