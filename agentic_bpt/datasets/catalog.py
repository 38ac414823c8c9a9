"""The published ExoRL archives: where each lies, and its size and checksum where they are known."""

from dataclasses import dataclass

from agentic_bpt.environments.tasks import DOMAINS
from agentic_bpt.errors import InputError

PUBLISHED_ADDRESS = "https://dl.fbaipublicfiles.com/exorl"  # ExoRL's README
EXPL_AGENTS = (
    "aps", "diayn", "disagreement", "icm", "icm_apt", "proto", "random", "rnd", "smm",
)  # fmt: skip

# (bytes, SHA-256) as the corax project's checksums give them.
_KNOWN: dict[tuple[str, str], tuple[int, str | None]] = {
    ("cartpole", "proto"): (
        587_145_013,
        "0384fa7c899777150335b0d602c6b3d945cdc856adbd81341d1eb8848854a042",
    ),
    ("cheetah", "proto"): (
        2_280_144_517,
        "f18e42150977604b6244a5cdf97aa3e2d078700ab60440050b12b98f60dd00d8",
    ),
    ("jaco", "proto"): (
        2_502_210_180,
        "c8da7ff91856e1865deef46f964f4ed5d7663312769a941b71a9706a8a049476",
    ),
    ("point_mass_maze", "proto"): (
        527_876_713,
        "1839c8d7426fb43c33dcabfb1adf6d4128e43c94989a3d0f053244f4a7da5064",
    ),
    ("quadruped", "proto"): (
        7_768_551_121,
        "b9d613aaaadfd8bf75a9a9a52e3e61f27a473d5ab9b1bcd39c25056ab23234a5",
    ),
    ("walker", "proto"): (
        2_584_420_588,
        "a34d0edf628d4824d90d1bf6cb69b2d97bf0c753a09a04bffc3deab130277b42",
    ),
    ("walker", "rnd"): (2_585_461_986, None),
}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What is known of one published zip."""

    domain: str
    """ExoRL's word for the body and its surroundings, such as `walker`"""
    expl_agent: str
    """the exploration algorithm that collected the episodes, such as `rnd`"""
    size_bytes: int | None
    """None where it is not known"""
    sha256: str | None
    """64 hexadecimal digits; None where it is not known"""

    @property
    def name(self) -> str:
        """Its place under the published address, a mirror, or the folder of data sets."""
        return f"{self.domain}/{self.expl_agent}.zip"


def published_archive(domain: str, expl_agent: str) -> Archive:
    """Look up an archive.

    Raises:
        InputError: no such domain or exploration algorithm was published.
    """
    for what, given, known in (
        ("domain", domain, DOMAINS),
        ("expl_agent", expl_agent, EXPL_AGENTS),
    ):
        if given not in known:
            raise InputError(f"unknown {what}: choose one of {', '.join(known)}; got {given!r}")
    size_bytes, sha256 = _KNOWN.get((domain, expl_agent), (None, None))
    return Archive(domain=domain, expl_agent=expl_agent, size_bytes=size_bytes, sha256=sha256)
