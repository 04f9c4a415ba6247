"""What devices say to each other, read off a compiled program (HLO text).

For benchmarks/scaling.py, and for the tests that hold training to it.
"""

import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2}  # of others the name says how many bits


class Collective(NamedTuple):
    """An instruction by which devices talk; `shapes` are those of its results."""

    kind: str
    in_entry: bool  # else in a computation that is called: a loop's body
    shapes: tuple[tuple[int, ...], ...]
    bytes: int  # of the results, on one device, each time it runs

    @property
    def elements(self) -> int:
        """How many numbers the results hold."""
        return sum(map(math.prod, self.shapes))


def arrays_in(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The type and dimensions of each array, such as f32[8,16], in a piece of HLO."""
    found = re.findall(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]", text)
    return [
        (kind, tuple(map(int, filter(None, dims.split(","))))) for kind, dims in found
    ]


def shapes_in(text: str) -> list[tuple[int, ...]]:
    """The dimensions of each array in a piece of HLO."""
    return [shape for _, shape in arrays_in(text)]


def _bytes_of(kind: str, shape: tuple[int, ...]) -> int:
    each = _BYTES.get(kind) or max(1, int(kind[1:]) // 8)
    return each * math.prod(shape)


def collectives(text: str) -> list[Collective]:
    """All collectives of a compiled program, each with where it is."""
    found, in_entry = [], False
    for line in text.splitlines():
        if re.match(r"(ENTRY )?%?[\w.-]+ \(.*\{$", line):
            in_entry = line.startswith("ENTRY")
        instruction = re.search(
            r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|"
            r"collective-permute|collective-broadcast)(-start)?\(",
            line,
        )
        if instruction:
            arrays = arrays_in(instruction[1])
            shapes = tuple(shape for _, shape in arrays)
            size = sum(_bytes_of(*array) for array in arrays)
            found.append(Collective(instruction[2], in_entry, shapes, size))
    return found
