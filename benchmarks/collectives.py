"""What devices exchange, read off a compiled program (HLO text).

For benchmarks/scaling.py, and for the tests that hold training to it.
"""

import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_BYTES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}
_COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|"
    r"collective-broadcast)(-start)?\("
)


class Collective(NamedTuple):
    """An instruction by which devices exchange data."""

    kind: str
    in_entry: bool  # else in a computation that is called, such as a loop's body
    shapes: tuple[tuple[int, ...], ...]  # of its results
    bytes: int  # of the results, on one device, each time it runs

    @property
    def elements(self) -> int:
        """Count the numbers that the results hold."""
        return sum(map(math.prod, self.shapes))


def _arrays_in(text: str) -> list[tuple[str, tuple[int, ...]]]:
    found = re.findall(rf"\b({'|'.join(_BYTES)})\[([\d,]*)\]", text)
    return [
        (kind, tuple(map(int, filter(None, dims.split(","))))) for kind, dims in found
    ]


def shapes_in(text: str) -> list[tuple[int, ...]]:
    """Return the dimensions of each array, such as f32[8,16], in a piece of HLO."""
    return [shape for _, shape in _arrays_in(text)]


def collectives(text: str) -> list[Collective]:
    """List all collectives of a compiled program."""
    found, in_entry = [], False
    for line in text.splitlines():
        if re.match(r"(ENTRY )?%?[\w.-]+ \(.*\{$", line):
            in_entry = line.startswith("ENTRY")
        if instruction := _COLLECTIVE.search(line):
            arrays = _arrays_in(instruction[1])
            shapes = tuple(shape for _, shape in arrays)
            size = sum(_BYTES[kind] * math.prod(shape) for kind, shape in arrays)
            found.append(Collective(instruction[2], in_entry, shapes, size))
    return found
