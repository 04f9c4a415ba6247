"""What an update should take on accelerators, by arithmetic: nothing is measured.

    python benchmarks/roofline.py [--share=0.4]

prints the tables of docs/outgrow_your_machine.md. They follow from the sizes of the
model, the makers' figures in HARDWARE, and one assumption: the share of the peak that
matrix products reach.
"""

import argparse
import math
from dataclasses import dataclass

SHARE = 0.4  # of the peak, the goal: an assumption, not a measurement
VOCABULARY = 37_000  # section 5.1 of the paper
TOKENS = 25_000  # source and target tokens each of an update, section 5.1
UPDATES = 100_000  # of the base model, section 5.2
ROW = 256  # places of a packed row on either side, batches.row_length
ROWS = math.ceil(TOKENS / ROW)
REAL_SHARE = 0.98  # of the places of packed rows that hold tokens
CHIPS = (1, 8, 64, 512, 4096)
MESH_CHIPS = 64  # of the table that compares meshes

FLOAT32, BFLOAT16 = 4, 2  # bytes
# Kept for each parameter, in float32: itself, Adam's two moments, the gradient.
STATE_BYTES = 4 * FLOAT32
# Moved for each parameter: it is read forward, backward and by Adam and written once,
# both moments are read and written, the gradient is written and read.
MOVED_BYTES = (3 + 1 + 2 + 2 + 1 + 1) * FLOAT32
# Moved for each logit: it and its gradient, in float32, are written and read.
LOGIT_BYTES = 4 * FLOAT32


@dataclass(frozen=True)
class Hardware:
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
HARDWARE = (
    Hardware(
        "TPU v5e", 197e12, 16e9, 819e9, 1600e9 / 8, 256, 6.4e12 / 8 / 256,
        "Cloud TPU documentation, TPU v5e",
    ),
    Hardware(
        "TPU v5p", 459e12, 95e9, 2765e9, 4800e9 / 8, 8960, None,
        "Cloud TPU documentation, TPU v5p",
    ),
    Hardware(
        "TPU v6e", 918e12, 32e9, 1600e9, 3200e9 / 8, 256, 25.6e12 / 8 / 256,
        "Cloud TPU documentation, TPU v6e",
    ),
    Hardware(
        "H100 SXM", 1979e12 / 2, 80e9, 3350e9, 900e9 / 2, 8, 400e9 / 8,
        f"NVIDIA H100 datasheet; {DGX}",
    ),
    Hardware(
        "H200 SXM", 1979e12 / 2, 141e9, 4800e9, 900e9 / 2, 8, 400e9 / 8,
        f"NVIDIA H200 datasheet; {DGX}",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model of Table 3, six layers a stack."""

    name: str
    d_model: int
    d_ff: int
    heads: int
    d_head: int = 64
    layers: int = 6

    @property
    def parameters(self) -> int:
        """Numbers that are learned; attention has no biases."""
        d, ff, norm = self.d_model, self.d_ff, 2 * self.d_model
        attention = 4 * d * self.heads * self.d_head
        feed_forward = 2 * d * ff + ff + d
        encoder = attention + feed_forward + 2 * norm
        decoder = 2 * attention + feed_forward + 3 * norm
        return VOCABULARY * d + self.layers * (encoder + decoder)

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


@dataclass(frozen=True)
class Step:
    """Seconds of an update of one microbatch, of what may or may not overlap."""

    compute: float
    memory: float
    communication: float

    @property
    def best(self) -> float:
        """Everything overlaps."""
        return max(self.compute, self.memory, self.communication)

    @property
    def worst(self) -> float:
        """Communication overlaps with nothing."""
        return max(self.compute, self.memory) + self.communication


def one_pass(hardware: Hardware, chips: int, size: float, group: int) -> float:
    """Seconds to gather, or to reduce and scatter, `size` bytes over `chips` chips.

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
    """Seconds to reduce the gradients, and with fsdp to gather the parameters.

    fsdp gathers them forward and backward and scatters the reduced gradients: three
    passes over all; data then reduces what a chip has of them: two passes.
    """
    size = FLOAT32 * model.parameters
    replicas = max(1, hardware.group // fsdp)  # of the parameters, in a group
    return 3 * one_pass(hardware, fsdp, size, hardware.group) + 2 * one_pass(
        hardware, data, size / fsdp, replicas
    )


def step(
    hardware: Hardware,
    model: Model,
    rows: int,
    *,
    data: int = 1,
    fsdp: int = 1,
    share: float = SHARE,
) -> Step:
    """Seconds of an update with `rows` rows on every chip."""
    logits = ROW * VOCABULARY * LOGIT_BYTES
    moved = rows * (2 * model.row_activations() + logits)
    moved += MOVED_BYTES * model.parameters / fsdp
    return Step(
        rows * model.row_flops / (share * hardware.peak),
        moved / hardware.memory_rate,
        communication(hardware, model, data, fsdp),
    )


def rows_per_chip(chips: int) -> int:
    """Rows of the paper's batch on the fullest of `chips` chips."""
    return math.ceil(ROWS / chips)


def first_dominated(
    hardware: Hardware, model: Model, *, weak: bool, share: float
) -> int | None:
    """Find the power of two from which on communication takes longer than compute."""
    for chips in (2**power for power in range(1, 13)):
        rows = ROWS if weak else rows_per_chip(chips)
        each = step(hardware, model, rows, data=chips, share=share)
        if each.communication > each.compute:
            return chips
    return None


# The tables ---------------------------------------------------------------------------


def table(header: str, lines: list[str]) -> str:
    """Markdown of "a | b" lines."""
    columns = header.count("|") + 1
    rule = "|".join(["---"] * columns)
    return "\n".join([f"| {header} |", f"|{rule}|", *(f"| {each} |" for each in lines)])


def milliseconds(seconds: float) -> str:
    """Three digits."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def gigabytes(size: float) -> str:
    """In units of 1e9 bytes, as makers print memory."""
    return f"{size / 1e9:.2f}" if size < 9.995e9 else f"{size / 1e9:.1f}"


def hardware_table() -> str:
    """What the makers say."""
    lines = []
    for each in HARDWARE:
        network = f"{each.network_rate / 1e9:.4g}" if each.network_rate else "-"
        lines.append(
            f"{each.name} | {each.peak / 1e12:,.4g} | {each.memory / 1e9:.0f} | "
            f"{each.memory_rate / 1e9:,.0f} | {each.link_rate / 1e9:.0f} | "
            f"{each.group:,} | {network} | {each.source}"
        )
    return table(
        "chip | bf16 TFLOP/s | memory, GB | memory, GB/s | link, GB/s | chips it joins "
        "| network, GB/s | source",
        lines,
    )


def work_table() -> str:
    """What follows from the models alone."""
    lines = [
        f"{model.name} | {model.parameters / 1e6:.2f} M | "
        f"{model.row_flops / 1e9:.1f} | {ROWS * model.row_flops / 1e12:.2f} | "
        f"{model.row_activations() / 1e6:.1f} | "
        f"{gigabytes(STATE_BYTES * model.parameters)} | "
        f"{gigabytes(MOVED_BYTES * model.parameters)} | "
        f"{gigabytes(FLOAT32 * model.parameters)}"
        for model in MODELS
    ]
    return table(
        f"model | parameters | GFLOP a row | TFLOP for {ROWS} rows | "
        "activations a row, MB | state, GB | state moved, GB | gradient, GB",
        lines,
    )


def fixed_batch_table(model: Model, share: float) -> str:
    """The paper's batch on more and more chips, as near as whole rows come to it."""
    lines = []
    for hardware in HARDWARE:
        for chips in CHIPS:
            rows = rows_per_chip(chips)
            each = step(hardware, model, rows, data=chips, share=share)
            lines.append(
                f"{hardware.name} | {chips:,} | data={chips} | {rows} | "
                f"{chips * rows * ROW:,} | {milliseconds(each.compute)} | "
                f"{milliseconds(each.memory)} | {milliseconds(each.communication)} | "
                f"{milliseconds(each.best)} | {milliseconds(each.worst)}"
            )
    return table(
        "chip | chips | mesh | rows a chip | places an update and microbatch, a side | "
        "compute, ms | memory, ms | communication, ms | step, all overlaps, ms | step, "
        "nothing overlaps, ms",
        lines,
    )


def growth_table() -> str:
    """What becomes of the paper's recipe when the batch grows with the chips."""
    lines = [
        f"{chips:,} | data={chips} | {chips * ROWS * ROW:,} | "
        f"{max(1, UPDATES // chips):,}"
        for chips in CHIPS
    ]
    return table(
        "chips | mesh | places an update and microbatch, a side | updates for the text "
        f"of {UPDATES:,} of the paper's",
        lines,
    )


def grown_batch_table(share: float) -> str:
    """As much work for every chip however many there are."""
    lines = []
    for model in MODELS:
        for hardware in HARDWARE:
            steps = [
                step(hardware, model, ROWS, data=chips, share=share) for chips in CHIPS
            ]
            spans = [
                f"{milliseconds(each.best)} - {milliseconds(each.worst)}"
                for each in steps
            ]
            lines.append(
                f"{model.name} | {hardware.name} | {milliseconds(steps[0].compute)} | "
                f"{milliseconds(steps[0].memory)} | {' | '.join(spans)}"
            )
    chips = " | ".join(f"step on {chips:,}, ms" for chips in CHIPS)
    return table(f"model | chip | compute, ms | memory, ms | {chips}", lines)


def dominated_table(share: float) -> str:
    """From where on communication takes longer than compute."""
    lines = []
    for model in MODELS:
        for hardware in HARDWARE:
            found = [
                first_dominated(hardware, model, weak=weak, share=share)
                for weak in (False, True)
            ]
            words = [f"{chips:,}" if chips else "not up to 4,096" for chips in found]
            lines.append(f"{model.name} | {hardware.name} | {' | '.join(words)}")
    return table(
        f"model | chip | the paper's batch, from chips | {ROWS} rows for every chip, "
        "from chips",
        lines,
    )


def mesh_table() -> str:
    """Communication of the same chips, arranged otherwise."""
    shapes = [(MESH_CHIPS // fsdp, fsdp) for fsdp in (1, 8, MESH_CHIPS)]
    lines = []
    for model in MODELS:
        for hardware in HARDWARE:
            times = [
                milliseconds(communication(hardware, model, data, fsdp))
                for data, fsdp in shapes
            ]
            lines.append(f"{model.name} | {hardware.name} | {' | '.join(times)}")
    names = " | ".join(f"data={data}, fsdp={fsdp}, ms" for data, fsdp in shapes)
    return table(f"model | chip | {names}", lines)


def memory_table() -> str:
    """What a chip holds."""
    lines = []
    for model in MODELS:
        for fsdp, tensor in ((1, 1), (8, 1), (1, 8), (64, 1), (8, 8)):
            state = STATE_BYTES * model.parameters / (fsdp * tensor)
            kept = [rows * model.row_activations(tensor) for rows in (ROWS, 13, 1)]
            both = " | ".join(gigabytes(state + size) for size in kept)
            lines.append(
                f"{model.name} | fsdp={fsdp}, tensor={tensor} | {gigabytes(state)} | "
                f"{both}"
            )
    return table(
        f"model | mesh | state, GB | with {ROWS} rows a chip, GB | with 13, GB | with "
        "1, GB",
        lines,
    )


def report(share: float) -> str:
    """All tables, with their headings."""
    parts = [
        "### The chips\n\nRates are of one chip, outwards.",
        hardware_table(),
        f"### The work\n\n{ROWS} rows of {ROW} places are the {TOKENS:,} tokens a side "
        f"in whole rows: {ROWS * ROW:,} places, of which {100 * REAL_SHARE:.0f} % hold "
        f"tokens, {ROWS * ROW * REAL_SHARE:,.0f}.",
        work_table(),
    ]
    for model in MODELS:
        parts += [
            f"### The paper's batch, {model.name} model\n\nMatrix products at "
            f"{100 * share:.0f} % of the peak: an assumption.",
            fixed_batch_table(model, share),
        ]
    parts += [
        f"### {ROWS} rows for every chip\n\nStep times from \"all overlaps\" to "
        "\"nothing overlaps\".",
        growth_table(),
        grown_batch_table(share),
        "### Where communication takes longer than compute\n\nThe first power of two, "
        "with mesh data=chips.",
        dominated_table(share),
        f"### Communication by mesh, {MESH_CHIPS} chips",
        mesh_table(),
        "### Memory of a chip by mesh\n\nState is 16 bytes a parameter: parameters, "
        "two moments, gradient.",
        memory_table(),
    ]  # fmt: skip
    return "\n\n".join(parts)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=SHARE, help="of the peak that is reached"
    )
    print(report(parser.parse_args().share))


if __name__ == "__main__":
    main()
