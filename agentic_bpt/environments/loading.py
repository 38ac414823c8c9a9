"""Import and load dm_control without a missing renderer or a known warning in the way."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version

from agentic_bpt.errors import InputError

_FIRST_BROKEN_MUJOCO = 4  # every dm_control suite.load fails from this major version on


def check_versions() -> None:
    """Refuse a mujoco that the installed dm_control cannot load.

    Raises:
        InputError: mujoco 4 or newer, which dm_control 1.0 does not rule out itself.
    """
    mujoco = version("mujoco")
    if int(mujoco.split(".")[0]) >= _FIRST_BROKEN_MUJOCO:
        raise InputError(
            f"dm_control {version('dm_control')} does not work with mujoco {mujoco}: "
            f"pip install 'mujoco>=3.17,<{_FIRST_BROKEN_MUJOCO}'"
        )


def import_dm_control() -> None:
    """Import dm_control with a renderer if one works, and without one if none does.

    `MUJOCO_GL` (egl, osmesa, glfw, off) chooses the renderer where it is set. A choice that does
    not work is warned of and replaced by `off`, so that stepping never fails for want of a picture.

    Raises:
        InputError: the installed mujoco does not work with dm_control.
    """
    check_versions()
    with warnings.catch_warnings():
        # Without a display GLFW only warns, and dm_control then settles for it though it cannot
        # draw. As an error the warning makes dm_control go on to EGL and OSMesa.
        warnings.filterwarnings("error", module="glfw")
        try:
            from dm_control import _render
        except (AttributeError, ImportError, OSError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            del _render
            return
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "off"
    from dm_control import _render

    del _render
    warnings.warn(
        f"MUJOCO_GL={chosen} does not work here ({reason}): going on without pictures",
        RuntimeWarning,
        stacklevel=2,
    )


@contextlib.contextmanager
def known_warnings_silenced() -> Iterator[None]:
    """Keep absl from logging that the cheetah's model uses the deprecated `settotalmass`."""

    def is_news(record: logging.LogRecord) -> bool:
        return "settotalmass" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
