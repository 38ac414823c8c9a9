import re

import pytest

from agentic_bpt.datasets.catalog import DOMAINS, EXPL_AGENTS, PUBLISHED_ADDRESS, published_archive
from agentic_bpt.errors import InputError


def test_54_archives_were_published():
    names = {published_archive(domain, agent).name for domain in DOMAINS for agent in EXPL_AGENTS}
    assert len(names) == 54
    assert {"walker/rnd.zip", "point_mass_maze/icm_apt.zip"} < names
    assert PUBLISHED_ADDRESS == "https://dl.fbaipublicfiles.com/exorl"


def test_what_is_known_of_an_archive():
    proto = published_archive("quadruped", "proto")
    assert proto.size_bytes == 7_768_551_121
    assert proto.sha256 is not None
    assert proto.sha256.startswith("b9d613aaaadfd8bf")
    rnd = published_archive("walker", "rnd")
    assert (rnd.size_bytes, rnd.sha256) == (2_585_461_986, None)
    assert published_archive("walker", "smm").size_bytes is None


def test_a_checksum_is_known_for_each_domain_once():
    sums = [published_archive(domain, "proto").sha256 for domain in DOMAINS]
    assert len(set(sums)) == 6
    assert all(digits and re.fullmatch("[0-9a-f]{64}", digits) for digits in sums)


@pytest.mark.parametrize(
    ("domain", "expl_agent", "message"),
    [
        ("hopper", "rnd", r"unknown domain: .*cartpole, cheetah, jaco.*walker; got 'hopper'"),
        ("walker", "td3", r"unknown expl_agent: .*aps, diayn.*rnd, smm; got 'td3'"),
        ("../walker", "rnd", r"unknown domain"),
    ],
)
def test_an_unknown_name_gives_the_known_ones(domain, expl_agent, message):
    with pytest.raises(InputError, match=message):
        published_archive(domain, expl_agent)
