"""The largest count that fits, in few questions: each question is a compilation."""

import math
from collections.abc import Callable

MAX_QUESTIONS = 16
LINE_QUESTIONS = 6
"""By then a line has led to the answer or does not."""
FINENESS = 200
"""Above so many, the answer is the largest up to a half of a percent: each question takes long."""
LARGEST = 2**18
"""No more trajectories are asked for: 262,144 of 1,000 timesteps of 5 tokens fit into 31 bits."""


def largest_that_fits(
    bytes_at: Callable[[int], int | None], limit: int, *, start: int
) -> tuple[int | None, bool]:
    """Search the largest n with bytes_at(n) <= limit: 0 if not even 1 fits, None if not known.

    Bytes grow almost as a power of n, so a line through two points on logarithmic axes leads near
    the answer; where they jump and it does not, the interval is halved. The answer is verified: n
    fits and n + 1 does not (beyond `FINENESS`, one in `FINENESS` more).

    Returns:
        The largest n found to fit, and whether that is verified.
    """
    known: dict[int, int] = {}
    low, high = 0, LARGEST + 1  # low fits, high does not
    guess = min(max(1, start), LARGEST)
    for question in range(1, MAX_QUESTIONS + 1):
        found = bytes_at(guess)
        if found is None:
            return (low or None), False
        known[guess] = found
        if found <= limit:
            low = guess
        else:
            high = guess
        step = max(1, guess // FINENESS)
        if low == LARGEST or (high <= LARGEST and high - low <= step):
            return low, high <= LARGEST
        if question >= LINE_QUESTIONS:
            guess = math.isqrt(max(low, 1) * high)
        elif guess == low:
            guess = max(_on_the_line(known, limit), low + step)
        else:
            guess = min(_on_the_line(known, limit), high - step)
        guess = min(max(guess, low + 1), high - 1)
    return low, False


def _on_the_line(known: dict[int, int], limit: int) -> int:
    """Follow the line through the two known points nearest the limit to where it meets it."""
    nearest = sorted(known, key=lambda n: abs(math.log(known[n] / limit)))[:2]
    if len(nearest) == 1:
        slope, n = 1.0, nearest[0]
    else:
        n, other = nearest
        slope = math.log(known[n] / known[other]) / math.log(n / other)
    reach = math.log(limit / known[n]) / max(slope, 0.5)
    return math.floor(n * math.exp(min(reach, math.log(LARGEST))))
