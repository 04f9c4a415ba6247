"""Compute what an update should take on accelerators; nothing is measured.

    python benchmarks/roofline.py [--share=0.4]

prints the tables of docs/outgrow_your_machine.md. They follow from the operations and
activations that the models count, the makers' figures in chips.py, and one assumption:
the share of the peak that matrix products reach.
"""

import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import chips
from benchmarks.chips import HARDWARE, MODELS, ROW, ROWS, TOKENS, Model, step
from benchmarks.harness import markdown, parse

SHARE = 0.4  # of the peak, the goal: an assumption, not a measurement
UPDATES = 100_000  # of the base model, section 5.2
REAL_SHARE = 0.98  # of the positions of packed rows that hold tokens
COUNTS = (1, 8, 64, 512, 4096)
MESH_CHIPS = 64  # of the table that compares meshes
EACH = [(model, hardware) for model in MODELS for hardware in HARDWARE]


def table(header: str, rows: Sequence[str]) -> str:
    """Write a table in Markdown; cells are separated by " | "."""
    return markdown(header.split(" | "), [row.split(" | ") for row in rows])


def ms(*seconds: float, between: str = " | ") -> str:
    """Write seconds as milliseconds with three digits."""
    values = [1000 * each for each in seconds]
    return between.join(f"{v:,.0f}" if v >= 99.5 else f"{v:.3g}" for v in values)


def gb(*sizes: float) -> str:
    """Write bytes in units of 1e9, as makers print memory."""
    values = [size / 1e9 for size in sizes]
    return " | ".join(f"{v:.2f}" if v < 9.995 else f"{v:.1f}" for v in values)


def chips_and_work() -> Iterator[str]:
    """The makers' figures, and the work of each model."""
    yield "### The chips\n\nRates are of one chip, outwards."
    rows = [
        f"{h.name} | {h.peak / 1e12:,.4g} | {h.memory / 1e9:.0f} | "
        f"{h.memory_rate / 1e9:,.0f} | {h.link_rate / 1e9:.0f} | {h.group:,} | "
        f"{f'{h.network_rate / 1e9:.4g}' if h.network_rate else '-'} | {h.source}"
        for h in HARDWARE
    ]
    header = "chip | bf16 TFLOP/s | memory, GB | memory, GB/s | link, GB/s | "
    yield table(header + "chips it joins | network, GB/s | source", rows)
    yield (
        f"### The work\n\n{ROWS} rows of {ROW} positions are the {TOKENS:,} tokens a "
        f"side in whole rows: {ROWS * ROW:,} positions, of which "
        f"{100 * REAL_SHARE:.0f} % hold tokens, {ROWS * ROW * REAL_SHARE:,.0f}."
    )
    sizes = chips.STATE_BYTES, chips.MOVED_BYTES, chips.GRADIENT_BYTES
    rows = [
        f"{m.name} | {m.parameters / 1e6:.2f} M | {m.row_flops / 1e9:.1f} | "
        f"{ROWS * m.row_flops / 1e12:.2f} | {m.row_activations() / 1e6:.1f} | "
        f"{gb(*(size * m.parameters for size in sizes))}"
        for m in MODELS
    ]
    header = f"model | parameters | GFLOP a row | TFLOP for {ROWS} rows | activations a"
    yield table(f"{header} row, MB | state, GB | state moved, GB | gradient, GB", rows)


def fixed_batch(model: Model, share: float) -> Iterator[str]:
    """The paper's batch on more and more chips, in whole rows."""
    yield (
        f"### The paper's batch, {model.name} model\n\nMatrix products at "
        f"{100 * share:.0f} % of the peak: an assumption."
    )
    rows = []
    for hardware, count in itertools.product(HARDWARE, COUNTS):
        n = math.ceil(ROWS / count)  # on the fullest chip
        s = step(hardware, model, n, count, share)
        mesh = f"{count:,} | data={count} | {n} | {count * n * ROW:,}"
        rows.append(f"{hardware.name} | {mesh} | {ms(*s, s.best, s.worst)}")
    header = (
        "chip | chips | mesh | rows a chip | positions an update and microbatch, a side"
        " | compute, ms | memory, ms | communication, ms | step, all overlaps, ms"
    )
    yield table(f"{header} | step, nothing overlaps, ms", rows)


def grown_batch(share: float) -> Iterator[str]:
    """As much work for every chip, however many there are."""
    yield (
        f'### {ROWS} rows for every chip\n\nStep times from "all overlaps" to '
        '"nothing overlaps".'
    )
    rows = [
        f"{n:,} | data={n} | {n * ROWS * ROW:,} | {max(1, UPDATES // n):,}"
        for n in COUNTS
    ]
    header = "chips | mesh | positions an update and microbatch, a side | updates for"
    yield table(f"{header} the text of {UPDATES:,} of the paper's", rows)
    rows = []
    for model, hardware in EACH:
        each = [step(hardware, model, ROWS, n, share) for n in COUNTS]
        spans = " | ".join(ms(s.best, s.worst, between=" - ") for s in each)
        alone = ms(each[0].compute, each[0].memory)
        rows.append(f"{model.name} | {hardware.name} | {alone} | {spans}")
    header = " | ".join(f"step on {count:,}, ms" for count in COUNTS)
    yield table(f"model | chip | compute, ms | memory, ms | {header}", rows)


def dominated(share: float) -> Iterator[str]:
    """From where on communication takes longer than compute."""
    yield (
        "### Where communication takes longer than compute\n\nThe first power of two, "
        "with mesh data=chips."
    )
    rows = []
    for model, hardware in EACH:
        found = [
            chips.first_dominated(hardware, model, share, weak=w) for w in (False, True)
        ]
        words = " | ".join(f"{n:,}" if n else "not up to 4,096" for n in found)
        rows.append(f"{model.name} | {hardware.name} | {words}")
    header = "model | chip | the paper's batch, from chips"
    yield table(f"{header} | {ROWS} rows for every chip, from chips", rows)


def meshes() -> Iterator[str]:
    """Communication of the same chips in other meshes, and the memory of a chip."""
    yield f"### Communication by mesh, {MESH_CHIPS} chips"
    shapes = [(MESH_CHIPS // fsdp, fsdp) for fsdp in (1, 8, MESH_CHIPS)]
    rows = []
    for model, hardware in EACH:
        times = ms(*(chips.communication(hardware, model, *shape) for shape in shapes))
        rows.append(f"{model.name} | {hardware.name} | {times}")
    header = " | ".join(f"data={data}, fsdp={fsdp}, ms" for data, fsdp in shapes)
    yield table(f"model | chip | {header}", rows)
    yield (
        "### Memory of a chip by mesh\n\nState is 16 bytes a parameter: parameters, "
        "two moments, gradient."
    )
    rows = []
    for model in MODELS:
        for fsdp, tensor in ((1, 1), (8, 1), (1, 8), (64, 1), (8, 8)):
            state = chips.STATE_BYTES * model.parameters / (fsdp * tensor)
            kept = [state + n * model.row_activations(tensor) for n in (ROWS, 13, 1)]
            mesh = f"fsdp={fsdp}, tensor={tensor}"
            rows.append(f"{model.name} | {mesh} | {gb(state, *kept)}")
    header = f"model | mesh | state, GB | with {ROWS} rows a chip, GB"
    yield table(f"{header} | with 13, GB | with 1, GB", rows)


def report(share: float) -> str:
    """Write all tables with their headings."""
    base, big = (fixed_batch(model, share) for model in MODELS)
    parts = chips_and_work(), base, big, grown_batch(share), dominated(share), meshes()
    return "\n\n".join(itertools.chain(*parts))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    print(report(parse(__doc__, argv, {"share": SHARE}).share))


if __name__ == "__main__":
    main()
