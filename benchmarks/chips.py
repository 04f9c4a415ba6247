"""Accelerators, and how long an update of a model takes on them, by arithmetic.

For benchmarks/roofline.py.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax

from benchmarks.models import SIZES, Sizes
from jaxformer.models.sequence_model import parameter_count

TOKENS = 25_000  # source and target tokens each of an update, section 5.1
ROW = 256  # positions of a packed row, a side, batches.row_length
ROWS = math.ceil(TOKENS / ROW)
BFLOAT16 = 2  # bytes
# Float32 bytes of a parameter: its gradient; that, the parameter and Adam's moments.
GRADIENT_BYTES, STATE_BYTES = 4, 16
# Float32 bytes moved for a parameter: it is read forward, backward and by Adam, and
# written once; both moments are read and written; the gradient is written and read.
MOVED_BYTES = 40
LOGIT_BYTES = 16  # moved for a logit: it and its gradient are written and read


class Hardware(NamedTuple):
    """A chip and its links, by its maker. Rates are bytes a second out of one chip."""

    name: str
    peak: float  # bfloat16 operations a second, without sparsity
    memory: float  # bytes
    memory_rate: float
    link_rate: float  # within a group: all links of the chip, one direction
    group: int  # chips that these links join: a pod, or a box
    network_rate: float | None  # between groups: the chip's part of the network
    source: str


# A TPU's link rate is its "interchip interconnect BW" in Gb/s over 8; its network rate
# is the "data center network bandwidth per Pod" over the chips of the pod. A GPU's link
# rate is half of the 900 GB/s that NVLink has in both directions, its peak half of the
# 1,979 TFLOP/s that the datasheets print for sparse matrices.
DGX = "DGX H100/H200 User Guide: a ConnectX-7 of 400 Gb/s for each GPU"
TPU, NVIDIA = "Cloud TPU documentation, TPU", "NVIDIA {} datasheet; " + DGX
HARDWARE = (
    Hardware("TPU v5e", 197e12, 16e9, 819e9, 1600e9 / 8, 256, 6.4e12 / 8 / 256,
             f"{TPU} v5e"),
    Hardware("TPU v5p", 459e12, 95e9, 2765e9, 4800e9 / 8, 8960, None, f"{TPU} v5p"),
    Hardware("TPU v6e", 918e12, 32e9, 1600e9, 3200e9 / 8, 256, 25.6e12 / 8 / 256,
             f"{TPU} v6e"),
    Hardware("H100 SXM", 1979e12 / 2, 80e9, 3350e9, 900e9 / 2, 8, 400e9 / 8,
             NVIDIA.format("H100")),
    Hardware("H200 SXM", 1979e12 / 2, 141e9, 4800e9, 900e9 / 2, 8, 400e9 / 8,
             NVIDIA.format("H200")),
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model of Table 3, and the work and memory of a row."""

    name: str
    sizes: Sizes

    @functools.cached_property
    def parameters(self) -> int:
        """Count the numbers that are learned."""
        return parameter_count(
            jax.eval_shape(self.sizes.model().init, jax.random.key(0))
        )

    @property
    def row_flops(self) -> int:
        """Count operations of matrix products for a row, forward and backward."""
        return self.sizes.model().flops(1, ROW, ROW)

    def row_activations(self, tensor: int = 1) -> int:
        """Count bytes that a chip keeps of a row for the backward pass, in bfloat16.

        `tensor` chips share the heads and the feed-forward layer.
        """
        heads, d_ff = self.sizes.num_heads // tensor, self.sizes.d_ff // tensor
        model = self.sizes.model(num_heads=heads, d_ff=d_ff)
        return BFLOAT16 * model.activations(1, ROW, ROW)


MODELS = (Model("base", SIZES["base"]), Model("big", SIZES["big"]))


class Step(NamedTuple):
    """Seconds of each part of an update of one microbatch."""

    compute: float
    memory: float
    communication: float

    @property
    def best(self) -> float:
        """Everything overlaps."""
        return max(self)

    @property
    def worst(self) -> float:
        """Communication overlaps with nothing."""
        return max(self.compute, self.memory) + self.communication


def one_pass(hardware: Hardware, chips: int, size: float, group: int) -> float:
    """Compute seconds to gather, or to reduce and scatter, `size` bytes over `chips`.

    A ring within every group of `group` chips, and rings between the groups, each with
    the part of its chip. Bandwidth only: no latency.
    """
    inner = min(chips, group)
    outer = math.ceil(chips / inner)
    seconds = (inner - 1) / inner * size / hardware.link_rate
    if outer > 1:
        seconds += (outer - 1) / outer * size / inner / hardware.network_rate
    return seconds


def communication(hardware: Hardware, model: Model, data: int, fsdp: int) -> float:
    """Compute seconds to reduce the gradients, and with fsdp to gather the parameters.

    fsdp takes three passes over all: it gathers forward and backward, and scatters the
    reduced gradients. Then data takes two passes to reduce a chip's part of them.
    """
    size = GRADIENT_BYTES * model.parameters
    replicas = max(1, hardware.group // fsdp)  # of the parameters, in a group
    gather = one_pass(hardware, fsdp, size, hardware.group)
    return 3 * gather + 2 * one_pass(hardware, data, size / fsdp, replicas)


def step(hardware: Hardware, model: Model, rows: int, data: int, share: float) -> Step:
    """Compute seconds of an update with `rows` rows on each of `data` chips."""
    moved = 2 * model.row_activations() + ROW * model.sizes.vocabulary * LOGIT_BYTES
    return Step(
        rows * model.row_flops / (share * hardware.peak),
        (rows * moved + MOVED_BYTES * model.parameters) / hardware.memory_rate,
        communication(hardware, model, data, 1),
    )


def first_dominated(
    hardware: Hardware, model: Model, share: float, *, weak: bool
) -> int | None:
    """Find the power of two from which on communication takes longer than compute.

    With `weak` every chip has ROWS rows, else all chips share them.
    """
    for chips in (2**power for power in range(1, 13)):
        rows = ROWS if weak else math.ceil(ROWS / chips)
        each = step(hardware, model, rows, chips, share)
        if each.communication > each.compute:
            return chips
    return None
