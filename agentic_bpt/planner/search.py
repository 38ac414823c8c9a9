"""The largest count that fits, in few questions: each question is a compilation."""

import math
from collections.abc import Callable

MAX_QUESTIONS = 12
LARGEST = 2**18
"""No more trajectories are asked for: 262,144 of 1,000 timesteps of 5 tokens fit into 31 bits."""


def largest_that_fits(
    bytes_at: Callable[[int], int | None], limit: int, *, start: int
) -> tuple[int | None, bool]:
    """Search the largest n with bytes_at(n) <= limit: 0 if not even 1 fits, None if not known.

    Bytes grow almost as a power of n, so a line through two points on logarithmic axes leads near
    the answer, which is then verified: n fits and n + 1 does not.

    Returns:
        The largest n found to fit, and whether n + 1 was found not to.
    """
    known: dict[int, int] = {}
    low, high = 0, LARGEST + 1  # low fits, high does not
    guess = min(max(1, start), LARGEST)
    for _ in range(MAX_QUESTIONS):
        found = bytes_at(guess)
        if found is None:
            return (low or None), False
        known[guess] = found
        if found <= limit:
            low = guess
        else:
            high = guess
        if high - low == 1:
            return low, high <= LARGEST
        guess = _next_guess(known, limit, low, high)
    return low, False


def _next_guess(known: dict[int, int], limit: int, low: int, high: int) -> int:
    """Follow the line through the two known points nearest the limit, kept between the bounds."""
    nearest = sorted(known, key=lambda n: abs(math.log(known[n] / limit)))[:2]
    if len(nearest) == 1:
        slope, n = 1.0, nearest[0]
    else:
        n, other = nearest
        slope = math.log(known[n] / known[other]) / math.log(n / other)
    reach = math.log(limit / known[n]) / max(slope, 0.1)
    guess = math.floor(n * math.exp(min(reach, math.log(LARGEST))))
    return min(max(guess, low + 1), high - 1)
