"""The one exception that is a user's mistake, and how a process is told to say its reason last."""

REASON_LAST = {"JAX_TRACEBACK_FILTERING": "off"}
"""Environment of a process whose last line is its reason: filtered, a traceback ends in a remark of
JAX's."""


class InputError(ValueError):
    """Say in one line what was wrong, where (file, key, row), and what to do.

    The command line prints the message without a traceback and exits with a non-zero code.
    """
