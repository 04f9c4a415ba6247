"""Accelerators, the models of Table 3, and how long an update takes, by arithmetic.

For benchmarks/roofline.py.
"""

import math
from typing import NamedTuple

VOCABULARY = 37_000  # section 5.1 of the paper
TOKENS = 25_000  # source and target tokens each of an update, section 5.1
ROW = 256  # places of a packed row, a side, batches.row_length
ROWS = math.ceil(TOKENS / ROW)

FLOAT32, BFLOAT16 = 4, 2  # bytes
# Moved for each logit: it and its gradient, in float32, are written and read.
LOGIT_BYTES = 4 * FLOAT32


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


class Model(NamedTuple):
    """A model of Table 3, six layers a stack."""

    name: str
    d_model: int
    d_ff: int
    heads: int
    d_head: int = 64
    layers: int = 6

    @property
    def parameters(self) -> int:
        """Count the numbers that are learned; attention has no biases."""
        d, ff = self.d_model, self.d_ff
        # A layer of either stack: three attentions, two feed-forwards, five norms.
        attention = 3 * 4 * d * self.heads * self.d_head
        layer = attention + 2 * (2 * d * ff + ff + d) + 5 * 2 * d
        return VOCABULARY * d + self.layers * layer

    @property
    def gradient_bytes(self) -> int:
        """Count the bytes of the gradient, or the parameters, in float32."""
        return FLOAT32 * self.parameters

    @property
    def state_bytes(self) -> int:
        """Count the bytes kept: parameters, Adam's two moments, the gradient."""
        return (1 + 2 + 1) * self.gradient_bytes

    @property
    def moved_bytes(self) -> int:
        """Count the bytes that pass through memory besides activations and logits.

        A parameter is read forward, backward and by Adam and written once; both moments
        are read and written; the gradient is written and read.
        """
        return (3 + 1 + 2 + 2 + 1 + 1) * self.gradient_bytes

    @property
    def row_flops(self) -> int:
        """Operations of matrix products for a row, forward and backward."""
        d, projected = self.d_model, 2 * self.heads * self.d_head
        layer = 3 * d * projected + 2 * d * self.d_ff  # for a place on either side
        places = 2 * ROW * self.layers * layer + ROW * d * VOCABULARY
        attention = self.layers * projected * 3 * ROW**2
        return 6 * (places + attention)

    def row_activations(self, tensor: int = 1) -> int:
        """Bytes that a chip keeps of a row for the backward pass, in bfloat16.

        `tensor` chips share what belongs to heads and to the feed-forward layer.
        """
        shared = 4 * self.heads * self.d_head + 2 * self.d_ff
        scores = self.heads * 3 * ROW**2
        numbers = 2 * ROW * (4 * self.d_model + shared / tensor) + scores / tensor
        return round(BFLOAT16 * self.layers * numbers)


MODELS = (Model("base", 512, 2048, 8), Model("big", 1024, 4096, 16))


class Step(NamedTuple):
    """Seconds of an update of one microbatch, of what may or may not overlap."""

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

    fsdp gathers them forward and backward and scatters the reduced gradients: three
    passes over all; data then reduces what a chip has of them: two passes.
    """
    size = model.gradient_bytes
    replicas = max(1, hardware.group // fsdp)  # of the parameters, in a group
    gather = one_pass(hardware, fsdp, size, hardware.group)
    return 3 * gather + 2 * one_pass(hardware, data, size / fsdp, replicas)


def step(hardware: Hardware, model: Model, rows: int, data: int, share: float) -> Step:
    """Compute seconds of an update with `rows` rows on each of `data` chips."""
    moved = 2 * model.row_activations() + ROW * VOCABULARY * LOGIT_BYTES
    return Step(
        rows * model.row_flops / (share * hardware.peak),
        (rows * moved + model.moved_bytes) / hardware.memory_rate,
        communication(hardware, model, data, 1),
    )


def rows_per_chip(chips: int) -> int:
    """Give the rows of the paper's batch on the fullest of `chips` chips."""
    return math.ceil(ROWS / chips)


def first_dominated(
    hardware: Hardware, model: Model, share: float, *, weak: bool
) -> int | None:
    """Find the power of two from which on communication takes longer than compute."""
    for chips in (2**power for power in range(1, 13)):
        rows = ROWS if weak else rows_per_chip(chips)
        each = step(hardware, model, rows, chips, share)
        if each.communication > each.compute:
            return chips
    return None
