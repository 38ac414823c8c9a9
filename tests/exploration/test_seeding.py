"""Streams of random numbers: the same for the same arguments, unlike for any other."""

from agentic_bpt.exploration.seeding import Purpose, generator, integer_seed


def test_streams_depend_on_seed_counter_and_purpose():
    arguments = [(0, 0, Purpose.ACTIONS), (1, 0, Purpose.ACTIONS), (0, 1, Purpose.ACTIONS)]
    arguments += [(0, 0, Purpose.RESET), (0, 0, Purpose.UPDATES), (0, 0, Purpose.PARAMETERS)]
    draws = {generator(*each).random() for each in arguments}
    seeds = {integer_seed(*each) for each in arguments}
    assert (len(draws), len(seeds)) == (6, 6)
    assert generator(7, 8, Purpose.RESET).random() == generator(7, 8, Purpose.RESET).random()
    assert integer_seed(7, 8, Purpose.RESET) == integer_seed(7, 8, Purpose.RESET)
