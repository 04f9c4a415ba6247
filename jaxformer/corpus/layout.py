"""Arrange sentence pairs in rows, and rows in shapes: buckets and packed rows.

A layout consists of slots in rows. Each slot holds a pair of one class: its bucket, or
in packed rows its two lengths. `jaxformer.corpus.plan` turns it into batches.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.config.sections import BatchesConfig, most_rows
from jaxformer.system.errors import InputError
from jaxformer.text.ragged import offsets

# A microbatch costs its tokens, padding included, and this share of a full one, so that
# a hundred pairs are not cut into twelve tiny microbatches.
_COST_OF_STARTING = 0.1


class Layout(NamedTuple):
    """Slots in R rows, and rows in shapes, for n pairs."""

    sizes: np.ndarray  # [shapes, 2] source and target length of a row
    classes: np.ndarray  # [n] unsigned, the class of each pair
    slot_classes: np.ndarray  # [n] the class of the pair that each slot holds
    row_starts: np.ndarray  # int32 [R + 1] row r holds slots row_starts[r]:[r + 1]
    row_shapes: np.ndarray  # uint8 [R] ascending, index into sizes


def choose_buckets(
    source: np.ndarray, target: np.ndarray, batches: BatchesConfig, tokens: int
) -> Layout:
    """Cut the pairs by size into the buckets of least cost; lengths int [n].

    The size of a pair is its longer side, after the language that is shorter on average
    is stretched to the mean of the other. On Multi30k 9 % of the tokens are padding; a
    grid over both lengths leaves 15 %.
    """
    stretch = target.sum() / source.sum()
    size = np.maximum(
        np.round(source * max(1.0, stretch)), np.round(target * max(1.0, 1 / stretch))
    ).astype(np.int32)
    counts = np.bincount(size)
    level = (np.cumsum(counts > 0) - 1)[size]  # [n] rank of the size among those found
    counts = counts[counts > 0]  # [levels]
    longest = np.zeros((2, len(counts)), np.int64)
    for side, lengths in enumerate((source, target)):
        np.maximum.at(longest[side], level, lengths)
    sizes = np.maximum.accumulate(longest, axis=1).T  # [levels, 2]

    below = offsets(counts)  # [levels + 1]
    pairs = np.maximum(below[None, 1:] - below[:, None], 0)  # [from, up to a level]
    heights, microbatches = microbatch_heights(pairs, sizes, batches, tokens)
    started = microbatches * (2 * tokens * _COST_OF_STARTING)
    cost = np.zeros((len(counts) + 1, len(counts) + 1))
    cost[:, 1:] = microbatches * heights * sizes.sum(axis=1) + started
    cost[np.tril_indices(len(cost), -1)] = np.inf
    cuts = _cheapest_cuts(cost, batches.max_shapes)

    buckets = np.searchsorted(cuts, np.arange(len(counts)), side="right")
    classes = buckets.astype(np.uint8)[level]
    slot_classes = np.sort(classes)
    row_starts = np.arange(len(classes) + 1, dtype=np.int32)
    return Layout(sizes[cuts - 1], classes, slot_classes, row_starts, slot_classes)


def share_buckets(
    layout: Layout, lengths: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[Layout]:
    """Arrange several texts of n pairs, with these lengths, in the same n rows.

    `layout` is that of one of them. The largest bucket grows to hold every pair. There
    are as many rows of a bucket and of larger ones as any of the texts needs.
    """
    sizes = layout.sizes.copy()
    sizes[-1] = np.max([[side.max() for side in each] for each in lengths], axis=0)
    classes = [
        np.max([*map(np.searchsorted, sizes.T, each)], axis=0).astype(np.uint8)
        for each in lengths
    ]
    rows = np.max([np.sort(each) for each in classes], axis=0)
    return [Layout(sizes, each, rows, layout.row_starts, rows) for each in classes]


def _cheapest_cuts(cost: np.ndarray, max_pieces: int) -> np.ndarray:
    """Find the ends of at most `max_pieces` pieces that cover 0..n at least cost.

    Dynamic programming. cost[i, j] is that of the piece from i up to j: 0 for i = j,
    inf for i > j.
    """
    totals = cost[0]  # of covering 0..j with the pieces so far
    choices = []
    for _ in range(max_pieces - 1):
        through = totals[:, None] + cost
        choices.append(through.argmin(axis=0))
        totals = through.min(axis=0)
    cuts = [len(cost) - 1]
    for choice in reversed(choices):
        cuts.append(choice[cuts[-1]])
    return np.unique([cut for cut in cuts if cut > 0])


def pack_rows(source: np.ndarray, target: np.ndarray, row_length: int) -> Layout:
    """Fill rows of `row_length` tokens a side with several pairs; lengths int [n].

    Pairs of the same two lengths form a cell. A row is composed of cells and repeated
    while the cells have pairs, so millions of pairs take the time of a few thousand
    cells. Of cells that fit equally well, the one with most tokens is chosen.
    """
    longest = max(source.max(), target.max())
    if longest > row_length:
        raise InputError(
            f"batches.row_length={row_length} does not hold a pair of {longest} "
            "tokens; raise it or lower data.max_length"
        )
    joint = source.astype(np.int64) * (row_length + 1) + target
    counts = np.bincount(joint)
    cells = np.flatnonzero(counts)
    lengths = np.stack(np.divmod(cells, row_length + 1)).astype(np.uint32)  # [2, cells]
    largest_first = np.argsort(2 * row_length - lengths.sum(axis=0), kind="stable")
    cells, lengths = cells[largest_first], lengths[:, largest_first]
    cell_of = np.zeros(len(counts), np.min_scalar_type(len(cells)))
    cell_of[cells] = np.arange(len(cells))

    left = counts[cells]
    room = row_length - lengths  # of a row that holds the cell only
    slots, slots_in_row = [], []
    while left.any():
        row = _compose_row(room.copy(), lengths, left)
        members, uses = np.unique(row, return_counts=True)
        repeats = (left[members] // uses).min()
        left[members] -= repeats * uses
        room[:, members[left[members] == 0]] = _NO_ROOM
        slots.append(np.tile(row, repeats))
        slots_in_row.append(np.full(repeats, len(row)))
    return Layout(
        sizes=np.array([[row_length, row_length]]),
        classes=cell_of[joint],
        slot_classes=np.concatenate(slots).astype(cell_of.dtype),
        row_starts=offsets(np.concatenate(slots_in_row)).astype(np.int32),
        row_shapes=np.zeros(sum(map(len, slots_in_row)), np.uint8),
    )


def with_rows(layout: Layout, rows: int) -> Layout:
    """Return a packed layout in so many rows: some are split between their pairs."""
    missing = rows - len(layout.row_shapes)
    inside = np.setdiff1d(np.arange(len(layout.classes)), layout.row_starts)
    split = inside[np.linspace(0, len(inside), missing, endpoint=False, dtype=int)]
    starts = np.sort(np.append(layout.row_starts, split)).astype(np.int32)
    return layout._replace(row_starts=starts, row_shapes=np.zeros(rows, np.uint8))


# Room is unsigned: below zero it wraps to a huge number. So the search for least room
# finds neither a cell that does not fit nor one that is used up.
_NO_ROOM = np.uint32(2**32 - 1)


def _compose_row(room: np.ndarray, lengths: np.ndarray, left: np.ndarray) -> list[int]:
    """Choose the cells of one row, each so that the emptier side has least room left.

    `room` uint32 [2, cells] is that of a row with this cell only; it is overwritten.
    `lengths` is [2, cells], `left` [cells] the pairs that a cell still has.
    """
    row = []
    while True:
        best = int(np.maximum(room[0], room[1]).argmin())
        if room[:, best].max() > _NO_ROOM // 2:
            return row
        row.append(best)
        if row.count(best) == left[best]:
            room[:, best] = _NO_ROOM
        room -= lengths[:, best : best + 1]


def microbatch_heights(
    rows: np.ndarray, sizes: np.ndarray, batches: BatchesConfig, tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a microbatch and the number of microbatches of each size.

    There are as few microbatches as `tokens` a side, padding included, allow, and they
    have equal heights. `rows` is [..., shapes], `sizes` [shapes, 2].
    """
    longest, multiple = sizes.max(axis=1), batches.row_multiple
    most_rows(tokens, int(longest.max()), multiple)  # raises if there is none
    most = tokens // longest // multiple * multiple
    microbatches = -(-rows // most)
    even = -(-rows // np.maximum(microbatches, 1))
    return -(-even // multiple) * multiple, microbatches
