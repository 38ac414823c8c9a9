"""The one exception that is a user's mistake and not a fault of the program."""


class InputError(ValueError):
    """Say in one line what was wrong, where (file, key, row), and what to do.

    The command line prints the message without a traceback and exits with a non-zero code.
    """
