"""The largest count that fits, up to half a percent, takes few questions."""

import pytest

from agentic_bpt.planner.search import FINENESS, LARGEST, largest_that_fits


def asked(function):
    questions = []

    def bytes_at(n):
        questions.append(n)
        return function(n)

    return bytes_at, questions


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (lambda n: 24_600_000 * n + 13_000_000, 6),
        (lambda n: 110_000_000 * n * n + 50_000_000 * n + 10_000_000, 6),
        (lambda n: 24_600_000 * (n + n % 3) + 13_000_000, 6),
        (lambda n: 24_600_000 * (n + -n % 150) + 13_000_000, 16),
    ],
    ids=["blockwise", "vanilla", "padded", "in jumps"],
)
@pytest.mark.parametrize("start", [1, 100, 30_000])
def test_n_fits_and_hardly_more_does_not(function, most, start):
    limit = 80_000_000_000
    bytes_at, questions = asked(function)
    found, final = largest_that_fits(bytes_at, limit, start=start)
    assert final
    assert found is not None
    refused = [n for n in questions if function(n) > limit]
    assert function(found) <= limit
    assert min(refused) <= found + max(1, found // FINENESS)
    assert len(questions) == len(set(questions)) <= most


@pytest.mark.parametrize("most", [1, 7, FINENESS - 1, FINENESS])
def test_small_counts_are_exact(most):
    assert largest_that_fits(lambda n: n**2, most**2, start=3) == (most, True)


def test_not_even_one_fits():
    assert largest_that_fits(lambda n: 100 * n, 99, start=7) == (0, True)


def test_all_that_is_asked_for_fits():
    found, final = largest_that_fits(lambda n: n, 10**12, start=1)
    assert (found, final) == (LARGEST, False)


def test_what_is_not_known_does_not_fit():
    assert largest_that_fits(lambda n: None, 100, start=5) == (None, False)
    assert largest_that_fits(lambda n: 10 if n == 2 else None, 100, start=2) == (2, False)
