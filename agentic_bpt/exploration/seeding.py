"""Random numbers as a function of the seed, a counter, and what they are for."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What random numbers are drawn for; each purpose has a stream of its own."""

    RESET = 0
    ACTIONS = 1
    UPDATES = 2
    PARAMETERS = 3


def generator(seed: int, counter: int, purpose: Purpose) -> np.random.Generator:
    """Make the generator of one episode or one call; nothing of it has to be saved."""
    return np.random.default_rng([seed, counter, int(purpose)])


def integer_seed(seed: int, counter: int, purpose: Purpose) -> int:
    """Derive a seed in 0 .. 2**32 - 1 for a library that takes an integer."""
    return int(np.random.SeedSequence([seed, counter, int(purpose)]).generate_state(1)[0])
