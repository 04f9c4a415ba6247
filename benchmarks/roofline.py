"""Compute what an update should take on accelerators; nothing is measured.

    python benchmarks/roofline.py [--share=0.4]

prints the tables of docs/speed.md. They follow from the operations and
activations that the models count, the makers' figures below, and one assumption: the
share of the peak that matrix products reach.
"""

import itertools
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks.harness import parse, print_table
from benchmarks.models import SIZES
from jaxformer.accelerators.chips import CHIPS, Chip
from jaxformer.models.sequence_model import parameter_count

SHARE = 0.4  # of the peak, the goal: an assumption, not a measurement
TOKENS = 25_000  # source and target tokens each of an update, section 5.1
UPDATES = 100_000  # of the base model, section 5.2
ROW = 256  # positions of a packed row, a side, batches.row_length
ROWS = math.ceil(TOKENS / ROW)
COUNTS = (1, 8, 64, 512, 4096)
BFLOAT16 = 2  # bytes
# Float32 bytes of a parameter: its gradient; itself and Adam's moments, which the chips
# share; those that Adam moves, since it reads and writes these.
GRADIENT_BYTES, SHARED_BYTES, UPDATED_BYTES = 4, 12, 24
LOGIT_BYTES = 16  # moved for a logit: it and its gradient are written and read
HARDWARE = [CHIPS[name] for name in ("v5e", "v5p", "v6e", "h100", "h200")]


class Model:
    """A model of Table 3, and the work and memory of a row."""

    def __init__(self, name: str) -> None:
        self.name, self.sizes = name, SIZES[name]
        model = self.sizes.model()
        self.parameters = parameter_count(jax.eval_shape(model.init, jax.random.key(0)))
        self.gathered = BFLOAT16 * self.parameters  # bytes that each chip gathers
        self.row_flops = model.flops(1, ROW, ROW)  # forward and backward

    def moved(self, chips: int) -> float:
        """Bytes of parameters that a chip moves in an update.

        Gathered ones are written, and read forward and backward; gradients are written
        and read; a share is updated.
        """
        update = UPDATED_BYTES / chips + 2 * GRADIENT_BYTES
        return 3 * self.gathered + update * self.parameters

    def row_activations(self, tensor: int = 1) -> int:
        """Count bytes that a chip keeps of a row for the backward pass, in bfloat16.

        `tensor` chips share the heads and the feed-forward layer.
        """
        heads, d_ff = self.sizes.num_heads // tensor, self.sizes.d_ff // tensor
        model = self.sizes.model(num_heads=heads, d_ff=d_ff)
        return BFLOAT16 * model.activations(1, ROW, ROW)


MODELS = Model("base"), Model("big")


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


def one_pass(hardware: Chip, chips: int, size: float) -> float:
    """Compute seconds to gather, or to reduce and scatter, `size` bytes over `chips`.

    A ring within every group of chips, and rings between the groups, each with the part
    of its chip. Bandwidth only: no latency.
    """
    inner = min(chips, hardware.group)
    outer = math.ceil(chips / inner)
    seconds = (inner - 1) / inner * size / hardware.link_rate
    if outer > 1:
        seconds += (outer - 1) / outer * size / inner / hardware.network_rate
    return seconds


def step(hardware: Chip, model: Model, rows: int, chips: int, share: float) -> Step:
    """Compute seconds of an update with `rows` rows on each of `chips`.

    Parameters are gathered, and reduced gradients are scattered.
    """
    moved = 2 * model.row_activations() + ROW * model.sizes.vocabulary * LOGIT_BYTES
    exchanged = model.gathered + GRADIENT_BYTES * model.parameters
    return Step(
        rows * model.row_flops / (share * hardware.peak),
        (rows * moved + model.moved(chips)) / hardware.memory_rate,
        one_pass(hardware, chips, exchanged),
    )


def ms(*seconds: float, between: str = " | ") -> str:
    """Write seconds as milliseconds with three digits."""
    values = [1000 * each for each in seconds]
    return between.join(f"{v:,.0f}" if v >= 99.5 else f"{v:.3g}" for v in values)


def gb(*sizes: float) -> str:
    """Write bytes in units of 1e9, as makers print memory."""
    values = [size / 1e9 for size in sizes]
    return " | ".join(f"{v:.2f}" if v < 9.995 else f"{v:.1f}" for v in values)


def print_chips() -> None:
    print("### The chips\n\nRates are of one chip, outwards.\n")
    header = "chip | bf16 TFLOP/s | memory, GB | memory, GB/s | link, GB/s | "
    rows = [
        f"{h.title} | {h.peak / 1e12:,.4g} | {h.memory / 1e9:.0f} | "
        f"{h.memory_rate / 1e9:,.0f} | {h.link_rate / 1e9:.0f} | {h.group:,} | "
        f"{f'{h.network_rate / 1e9:.4g}' if h.network_rate else '-'} | {h.source}"
        for h in HARDWARE
    ]
    print_table(header + "chips it joins | network, GB/s | source", rows)


def print_fixed_batch(model: Model, share: float) -> None:
    print(
        f"### The paper's batch, {model.name} model\n\nMatrix products at "
        f"{100 * share:.0f} % of the peak: an assumption.\n"
    )
    rows = []
    for hardware, count in itertools.product(HARDWARE, COUNTS):
        n = math.ceil(ROWS / count)  # on the fullest chip
        s = step(hardware, model, n, count, share)
        rows_ = f"{count:,} | {n} | {count * n * ROW:,}"
        rows.append(f"{hardware.title} | {rows_} | {ms(*s, s.best, s.worst)}")
    header = (
        "chip | chips | rows a chip | positions an update, a side | compute, ms"
        " | memory, ms | communication, ms | all overlaps, ms"
    )
    print_table(f"{header} | nothing overlaps, ms", rows)


def print_grown_batch(share: float) -> None:
    print(
        f'### {ROWS} rows for every chip\n\nStep times from "all overlaps" to '
        '"nothing overlaps".\n'
    )
    header = "chips | mesh | positions an update and microbatch, a side | updates for"
    rows = [
        f"{n:,} | data={n} | {n * ROWS * ROW:,} | {max(1, UPDATES // n):,}"
        for n in COUNTS
    ]
    print_table(f"{header} the text of {UPDATES:,} of the paper's", rows)
    rows = []
    for model, hardware in itertools.product(MODELS, HARDWARE):
        each = [step(hardware, model, ROWS, n, share) for n in COUNTS]
        spans = " | ".join(ms(s.best, s.worst, between=" - ") for s in each)
        alone = ms(each[0].compute, each[0].memory)
        rows.append(f"{model.name} | {hardware.title} | {alone} | {spans}")
    header = " | ".join(f"step on {count:,}, ms" for count in COUNTS)
    print_table(f"model | chip | compute, ms | memory, ms | {header}", rows)


def print_memory() -> None:
    print(
        "### Memory of a chip\n\nState is 12 bytes a parameter, split over `data` x "
        "`fsdp` chips. Gathered parameters and gradients are not split by these.\n"
    )
    rows = []
    meshes = (1, 1), (8, 1), (1, 8), (64, 1), (8, 8)
    for model, (chips, tensor) in itertools.product(MODELS, meshes):
        state = SHARED_BYTES * model.parameters / chips
        whole = model.gathered + GRADIENT_BYTES * model.parameters
        held = (state + whole) / tensor
        kept = [held + n * model.row_activations(tensor) for n in (ROWS, 13, 1)]
        rows.append(f"{model.name} | {chips} | {tensor} | {gb(held, *kept)}")
    header = "model | data x fsdp | tensor | state, gathered and gradients, GB"
    header += f" | with {ROWS} rows a chip, GB"
    print_table(f"{header} | with 13, GB | with 1, GB", rows)


def main(argv: Sequence[str] | None = None) -> None:
    share = parse(__doc__, argv, {"share": SHARE}).share
    print_chips()
    for model in MODELS:
        print_fixed_batch(model, share)
    print_grown_batch(share)
    print_memory()


if __name__ == "__main__":
    main()
