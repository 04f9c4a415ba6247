"""The chips that programs are estimated for, and the names of topologies."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from jaxformer.system.errors import InputError


class Chip(NamedTuple):
    """A chip and its links, by its maker. Rates are bytes a second out of one chip."""

    title: str
    peak: float  # bfloat16 operations a second, without sparsity
    memory: float  # bytes
    memory_rate: float
    link_rate: float  # within a group: all links of the chip, one direction
    group: int  # chips that these links join: a pod, or a box
    network_rate: float | None  # between groups: the chip's part of the network
    source: str
    clock: float | None = None  # Hz of the compiler's estimated cycles; None: has none
    dimensions: int = 0  # of a TPU's topology: 2 or 3
    cores: int = 1  # devices of a chip, as the compiler counts them
    target: Mapping[str, float] | None = None  # of a GPU: the rest of TARGET

    @property
    def is_tpu(self) -> bool:
        return self.dimensions > 0

    @property
    def target_config(self) -> str:
        """The text of a GPU's target configuration."""
        figures = {"rate": self.memory_rate, "memory": self.memory, "title": self.title}
        return TARGET % {**self.target, **figures}


# A TPU's link rate is its "interchip interconnect BW" in Gb/s over 8; its network rate
# is the "data center network bandwidth per Pod" over the chips of the pod. A GPU's link
# rate is half of what NVLink has in both directions, 600 GB/s of an A100 and 900 GB/s
# of the others. The peaks of Hopper are half of the 1,979 TFLOP/s that its datasheets
# print for sparse matrices.
DGX = "DGX H100/H200 User Guide: a ConnectX-7 of 400 Gb/s for each GPU"
TPU, NVIDIA = "Cloud TPU documentation, TPU", "NVIDIA {} datasheet; " + DGX
# What XLA asks of a GPU (GpuTargetConfigProto); shared memory is in bytes.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  fpus_per_core: %(fpus)d
  core_count: %(cores)d
  shared_memory_per_block: 49152
  shared_memory_per_core: %(shared)d
  shared_memory_per_block_optin: %(optin)d
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  l2_cache_size: %(cache)d
  clock_rate_ghz: %(clock)s
  cuda_compute_capability { major: %(major)d }
  memory_bandwidth: %(rate)d
  device_memory_size: %(memory)d
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA %(title)s"
"""
AMPERE = {
    "fpus": 64, "cores": 108, "shared": 167936, "optin": 166912, "cache": 41943040,
    "clock": 1.41, "major": 8,
}  # fmt: skip
HOPPER = {
    "fpus": 128, "cores": 132, "shared": 233472, "optin": 232448, "cache": 52428800,
    "clock": 1.98, "major": 9,
}  # fmt: skip
CHIPS = {
    "v4": Chip("TPU v4", 275e12, 32e9, 1200e9, 2400e9 / 8, 4096, None, f"{TPU} v4",
               1.05e9, 3, 2),
    "v5e": Chip("TPU v5e", 197e12, 16e9, 819e9, 1600e9 / 8, 256, 6.4e12 / 8 / 256,
                f"{TPU} v5e", 1.5e9, 2),
    "v5p": Chip("TPU v5p", 459e12, 95e9, 2765e9, 4800e9 / 8, 8960, None, f"{TPU} v5p",
                1.75e9, 3),
    "v6e": Chip("TPU v6e", 918e12, 32e9, 1600e9, 3200e9 / 8, 256, 25.6e12 / 8 / 256,
                f"{TPU} v6e", 1.75e9, 2),
    "a100": Chip("A100 SXM", 312e12, 80e9, 2039e9, 600e9 / 2, 8, 200e9 / 8,
                 "NVIDIA A100 datasheet; DGX A100 User Guide: 200 Gb/s for each GPU",
                 target=AMPERE),
    "h100": Chip("H100 SXM", 1979e12 / 2, 80e9, 3350e9, 900e9 / 2, 8, 400e9 / 8,
                 NVIDIA.format("H100"), target=HOPPER),
    "h200": Chip("H200 SXM", 1979e12 / 2, 141e9, 4800e9, 900e9 / 2, 8, 400e9 / 8,
                 NVIDIA.format("H200"), target=HOPPER),
}  # fmt: skip
KNOWN = (
    "one chip is v5e:1x1, v5p:1x1x1, v6e:1x1, a100, h100 or h200; several are such as "
    "v5e:2x4, v6e:4x4, v4:2x2x1, v5p:2x2x4 (even sizes, the third from 1) or h200:8"
)


class Topology(NamedTuple):
    """A number of chips of one kind."""

    name: str  # such as "v5e:2x4" or "h200:8"
    chip: Chip
    shape: tuple[int, ...]  # of a TPU's slice; of GPUs their number

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """The devices that the compiler sees."""
        return self.chips * self.chip.cores

    @property
    def platform(self) -> str:
        return "tpu" if self.chip.is_tpu else "cuda"


def parse_topology(name: str) -> Topology:
    """Read a name such as "v5e:2x4", "h200:8", or "h100" for one.

    Raises InputError, which says what works, for any other name.
    """
    kind, _, sizes = name.partition(":")
    chip = CHIPS.get(kind)
    if chip is not None and re.fullmatch(r"([1-9]\d*x)*[1-9]\d*|", sizes):
        shape = tuple(map(int, sizes.split("x"))) if sizes else (1,)
        if chip.is_tpu:
            is_one = shape == (1,) * chip.dimensions and chip.cores == 1
            is_even = not any(size % 2 for size in shape[:2])
            if len(shape) == chip.dimensions and (is_one or is_even):
                return Topology(name, chip, shape)
        elif len(shape) == 1:
            return Topology(name, chip, shape)
    raise InputError(f"there is no topology {name!r}; {KNOWN}")
