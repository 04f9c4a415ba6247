"""Histograms in letters, for a terminal. Used by `jaxformer.inspection.findings`."""

import itertools
from collections.abc import Iterator, Sequence

BARS = 24  # columns of the longest bar


def draw_histograms(unit: str, sides: Sequence[dict[int, int]]) -> Iterator[str]:
    """A line for each range of lengths, with a bar for either side.

    `sides` are {length: sentences} of source and target.
    """
    titles = [
        f"{side}, {average(counts):.1f} on average"
        for side, counts in zip(("source", "target"), sides, strict=True)
    ]
    yield f"{unit:>9}" + "".join(f"{'':>11}{t:<{BARS + 1}}" for t in titles).rstrip()
    edges = choose_edges(sides)
    counts = [count_ranges(side, edges) for side in sides]
    most = max(map(max, counts))
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        name = f"{low}" if high == low + 1 else f"{low}-{high - 1}"
        bars = [f"{side[i]:>10,} {_bar(side[i] / most):<{BARS}} " for side in counts]
        yield f"{name:>9}" + "".join(bars).rstrip()


def count_ranges(counts: dict[int, int], edges: Sequence[int]) -> list[int]:
    """How many lengths are from one edge to below the next."""
    return [
        sum(count for length, count in counts.items() if low <= length < high)
        for low, high in itertools.pairwise(edges)
    ]


def choose_edges(sides: Sequence[dict[int, int]]) -> list[int]:
    """Where ranges of lengths begin: ten even ones for 99 %, one for what is longer."""
    lengths = sorted({length for side in sides for length in side})
    total = sum(sum(side.values()) for side in sides)
    seen, usual = 0, 0
    for usual in lengths:
        seen += sum(side.get(usual, 0) for side in sides)
        if seen >= 0.99 * total:
            break
    step = -(-max(usual, 1) // 10)
    edges = [*range(0 if lengths[0] == 0 else 1, usual + 1, step)]
    edges.append(edges[-1] + step)
    if lengths[-1] >= edges[-1]:
        edges.append(lengths[-1] + 1)
    return edges


def average(counts: dict[int, int]) -> float:
    """The mean of {length: sentences}."""
    total = sum(int(length) * count for length, count in counts.items())
    return total / max(sum(counts.values()), 1)


def _bar(share: float) -> str:
    """A bar of up to BARS columns; the least that is not nothing is a thin line."""
    eighths = round(8 * BARS * share) or (1 if share else 0)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
