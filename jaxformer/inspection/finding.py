"""What was found in pairs of a split: how many pairs, and which lines."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

SIDES = ("source", "target")
EXAMPLES = 20  # of each finding; all are counted
_LABELS = 10  # of each finding that are reported, the most frequent ones
_MOST_LABELS = 100_000  # that are counted
_NONE: Mapping[str, int] = MappingProxyType({})

Files = Sequence[tuple[str, str, int]]  # source, target, index of their first pair


@dataclass
class Finding:
    """Something that pairs of a split have; a pair is known by its index, from 0."""

    pairs: int = 0
    count: int = 0  # a pair may have it several times
    labels: dict[str, "Finding"] = field(default_factory=dict)
    # A heap of (odds, -index)
    examples: list[tuple[float, int]] = field(default_factory=list)

    def add(
        self,
        index: int,
        labels: Mapping[str, int] = _NONE,
        odds: float = 0.0,
        count: int = 1,
    ) -> None:
        """Count a pair `count` times, or as often as it has each of `labels`.

        The examples with the highest odds are kept, the first ones of equal odds.
        """
        self.pairs += 1
        self.count += sum(labels.values()) or count
        heapq.heappush(self.examples, (odds, -index))
        if len(self.examples) > EXAMPLES:
            heapq.heappop(self.examples)
        for label, times in labels.items():
            if label in self.labels or len(self.labels) < _MOST_LABELS:
                self.labels.setdefault(label, Finding()).add(index, _NONE, odds, times)

    def indices(self) -> list[int]:
        """The examples in the order in which they are reported."""
        return [-index for _, index in sorted(self.examples, reverse=True)]

    def describe(self, example: Callable[[int], dict]) -> dict[str, Any]:
        """Convert to JSON, with the most frequent labels.

        `example` says of an index what is to be reported.
        """
        labels = sorted(self.labels.items(), key=lambda item: -item[1].pairs)[:_LABELS]
        return {
            "pairs": self.pairs,
            "count": self.count,
            "examples": [example(index) for index in self.indices()],
            "labels": {label: found.describe(example) for label, found in labels},
        }


def place(index: int, side: str, files: Files) -> tuple[str, int]:
    """The file that has that side of a pair, and its line from 1."""
    source, target, first = next(f for f in reversed(files) if f[2] <= index)
    return target if side == "target" else source, index - first + 1
