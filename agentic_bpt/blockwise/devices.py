"""DEVICES: what a compiler must know of an accelerator that is not present, as data.

NVIDIA descriptions are texts of XLA's `GpuTargetConfigProto`. Those of A100, H100 and H200 have the
values of XLA's own sources (`xla/backends/gpu/target_config/specs`). XLA describes no L4 and no RTX
4090: theirs are from NVIDIA's Ada white paper and product data, and are marked unverified. TPUs are
described by libtpu; their memory is the limit that its compiler names when it refuses a program.
"""

import dataclasses

GIB = 2**30
CUDA_SHARE = 0.95
"""Of a GPU's memory; the rest is left to the driver, CUDA libraries and the compiled code."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator (of a TPU: one chip, its cores together)."""

    name: str
    """As on the command line."""
    platform: str
    """"cuda", "tpu" or "cpu"."""
    usable_bytes: int
    """Bytes that one program can have."""
    target: str = ""
    """cuda: text of the `GpuTargetConfigProto`; tpu: name of the smallest topology."""
    kind: str = ""
    """Name by which JAX calls the device where it is present."""
    verified: bool = True
    """Whether the description comes from XLA or its compiler."""
    float32_peak: float | None = None
    """Operations a second without tensor cores, by the description; None where it does not say."""
    mesh: str = ""
    """As `MeshConfig` writes it, where a program is spread over several; `usable_bytes` are those
    of each."""

    def over(self, mesh: str, count: int) -> "Device":
        """Describe `count` such devices, as a mesh."""
        return dataclasses.replace(self, name=f"{count} x {self.name}", mesh=mesh)


def _nvidia(
    name: str,
    kind: str,
    *,
    capability: tuple[int, int],
    cores: int,
    memory_bytes: int,
    bandwidth: int,
    cache_bytes: int,
    clock_ghz: float,
    shared_memory: int,
    fpus: int = 128,
    threads: int = 2048,
    verified: bool = True,
) -> Device:
    """Describe a GPU; `shared_memory` is per core, of which a block can have all but 1 KiB."""
    target = f"""gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32
shared_memory_per_block: 49152 shared_memory_per_core: {shared_memory}
threads_per_core_limit: {threads} core_count: {cores} fpus_per_core: {fpus}
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
memory_bandwidth: {bandwidth} l2_cache_size: {cache_bytes} clock_rate_ghz: {clock_ghz}
device_memory_size: {memory_bytes} shared_memory_per_block_optin: {shared_memory - 1024}
cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
registers_per_core_limit: 65536 registers_per_block_limit: 65536 }}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{kind}" """
    return Device(
        name=name,
        platform="cuda",
        usable_bytes=int(CUDA_SHARE * memory_bytes),
        target=target,
        kind=kind,
        verified=verified,
        float32_peak=2e9 * cores * fpus * clock_ghz,
    )


def _tpu(name: str, kind: str, *, topology: str, usable_gib: float) -> Device:
    return Device(
        name=name,
        platform="tpu",
        usable_bytes=int(usable_gib * GIB),
        target=topology,
        kind=kind,
    )


_ALL = (
    _nvidia(
        "a100-80gb",
        "NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        memory_bytes=85_100_068_864,
        bandwidth=2_039_040_000_000,
        cache_bytes=41_943_040,
        clock_ghz=1.41,
        shared_memory=167_936,
        fpus=64,
    ),
    _nvidia(
        "h100-80gb",
        "NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        cores=132,
        memory_bytes=84_942_979_072,
        bandwidth=3_352_320_000_000,
        cache_bytes=52_428_800,
        clock_ghz=1.98,
        shared_memory=233_472,
    ),
    _nvidia(
        "h200",
        "NVIDIA H200",
        capability=(9, 0),
        cores=132,
        memory_bytes=151_397_597_184,
        bandwidth=4_800_000_000_000,
        cache_bytes=52_428_800,
        clock_ghz=1.98,
        shared_memory=233_472,
    ),
    _nvidia(
        "l4",
        "NVIDIA L4",
        capability=(8, 9),
        cores=58,
        memory_bytes=22 * GIB + GIB // 4,  # 24 GB less ECC, rounded down
        bandwidth=300_000_000_000,
        cache_bytes=48 * 2**20,
        clock_ghz=2.04,
        shared_memory=102_400,
        threads=1536,
        verified=False,
    ),
    _nvidia(
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        capability=(8, 9),
        cores=128,
        memory_bytes=23 * GIB + GIB // 2,  # 24 GiB less what the driver keeps, rounded down
        bandwidth=1_008_000_000_000,
        cache_bytes=72 * 2**20,
        clock_ghz=2.52,
        shared_memory=102_400,
        threads=1536,
        verified=False,
    ),
    _tpu("tpu-v4", "TPU v4", topology="v4:2x2x1", usable_gib=30.75),
    _tpu("tpu-v5e", "TPU v5 lite", topology="v5e:2x2", usable_gib=15.75),
    _tpu("tpu-v5p", "TPU v5", topology="v5p:2x2x1", usable_gib=95.74),
    _tpu("tpu-v6e", "TPU v6 lite", topology="v6e:2x2", usable_gib=31.25),
)
DEVICES: dict[str, Device] = {device.name: device for device in _ALL}


def device_named(name: str) -> Device:
    """Look up a device.

    Raises:
        ValueError: it is not known; the known ones are listed.
    """
    if name not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}; got {name!r}")
    return DEVICES[name]
