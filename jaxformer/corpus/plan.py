"""Plan which sentence pairs share a batch, and in which order.

Section 5.1 batches "sentence pairs together by approximate sequence length". A plan is
made once from the lengths of a corpus, in a layout of `jaxformer.corpus.layout`.

The slots of a row and the rows of a microbatch are the same in every epoch, so a
position in the data is one integer. An epoch draws at random which pair of its class
each slot holds, the order of the rows and the order of the microbatches: a pure
function of (seed, epoch), on any machine and with any version of numpy.

A text that is drawn at random has several versions with lengths of their own, of which
epoch e has number e mod K. They share the rows, and each fills them by its lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.config.sections import BatchesConfig, TrainingConfig
from jaxformer.corpus import layout as layouts
from jaxformer.corpus.mixture import Mixture, shuffle_within
from jaxformer.text.ragged import concatenated_ranges, offsets


class Shape(NamedTuple):
    """The static shape of a microbatch: source [B, S] and target [B, T]."""

    rows: int
    source_length: int
    target_length: int


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch in the order it is read; n pairs in m microbatches."""

    shapes: tuple[Shape, ...]
    shape_of: np.ndarray  # uint8 [m] index into shapes
    starts: np.ndarray  # int64 [m + 1] microbatch i holds pairs starts[i]:starts[i + 1]
    examples: np.ndarray  # int32 [n] the pair's index in the corpus
    rows: np.ndarray  # int32 [n] its row within the microbatch, ascending

    def microbatch(self, index: int) -> tuple[Shape, np.ndarray, np.ndarray]:
        """Return shape, examples and rows of microbatch `index`."""
        pairs = slice(self.starts[index], self.starts[index + 1])
        shape = self.shapes[self.shape_of[index]]
        return shape, self.examples[pairs], self.rows[pairs]


class Filling(NamedTuple):
    """How the epochs of a version fill R rows; n slots for pairs."""

    mixture: Mixture | None  # which pairs an epoch has; None: each once
    classes: np.ndarray  # [n] unsigned, the class of each pair of an epoch
    slots_by_class: np.ndarray  # int32 [n] the slots sorted by the class they hold
    row_starts: np.ndarray  # int32 [R + 1] row r holds slots row_starts[r]:[r + 1]


@dataclass(frozen=True, eq=False)
class Plan:
    """What all epochs share; R rows and m microbatches."""

    shapes: tuple[Shape, ...]
    fillings: tuple[Filling, ...]  # of epoch e number e mod K
    row_shapes: np.ndarray  # uint8 [R] ascending
    microbatch_starts: np.ndarray  # int32 [m + 1] the rows of each microbatch
    microbatches_per_update: int
    tokens: tuple[float, float]  # source and target tokens of an epoch, on average
    real_token_share: float  # the same of both sides / positions, padding included
    later: tuple[tuple[int, "Plan"], ...] = ()  # plans from certain updates on

    @property
    def microbatches_per_epoch(self) -> int:
        return len(self.microbatch_starts) - 1

    @property
    def updates_per_epoch(self) -> int:
        return -(-self.microbatches_per_epoch // self.microbatches_per_update)

    def locate(self, update: int) -> tuple["Plan", int, int]:
        """Return the plan of `update`, its epoch, and its update within the epoch.

        Epochs count from 0, those of a later plan from its first update.
        """
        begin, plan = 0, self
        for first, later in self.later:
            if update >= first:
                begin, plan = first, later
        epoch, update = divmod(update - begin, plan.updates_per_epoch)
        return plan, begin + epoch, update

    def epochs(self, updates: int) -> float:
        """Count the epochs of the first `updates` updates, each stage in its own."""
        stages = [(first, plan) for first, plan in self.later if first < updates]
        ends = [*(first for first, _ in stages), updates]
        made = np.diff([0, *ends])
        plans = [self, *(plan for _, plan in stages)]
        counts = zip(made, plans, strict=True)
        return float(sum(n / plan.updates_per_epoch for n, plan in counts))

    def microbatches_of(self, update: int) -> range:
        """Return the microbatches of update 0 <= `update` < `updates_per_epoch`.

        The updates share an epoch evenly, so that the last is not a small, noisy rest:
        none has more than `microbatches_per_update`, and two differ by one at most.
        """
        count, updates = self.microbatches_per_epoch, self.updates_per_epoch
        return range(update * count // updates, (update + 1) * count // updates)

    def epoch(self, seed: int, epoch: int) -> EpochPlan:
        """Return the order of epoch `epoch` >= 0 under `seed` >= 0."""
        bits = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
        own = self.fillings[epoch % len(self.fillings)]
        held = np.empty(len(own.classes), np.int32)  # by slot
        held[own.slots_by_class] = shuffle_within(own.classes, bits)
        if own.mixture is not None:
            held = own.mixture.members(seed, epoch)[held]

        row_order = shuffle_within(self.row_shapes, bits)
        heights = np.diff(self.microbatch_starts)
        order = shuffle_within(np.zeros(len(heights), np.uint8), bits)
        heights = heights[order]
        first_rows = self.microbatch_starts[:-1][order]
        rows = row_order[concatenated_ranges(first_rows, heights)]  # [R]

        slots_in_row = np.diff(own.row_starts)[rows]
        held = held[concatenated_ranges(own.row_starts[rows], slots_in_row)]  # [n]
        row_in_microbatch = concatenated_ranges(np.zeros_like(heights), heights)
        return EpochPlan(
            shapes=self.shapes,
            shape_of=self.row_shapes[first_rows],
            starts=offsets(slots_in_row)[offsets(heights)],
            examples=held,
            rows=np.repeat(row_in_microbatch, slots_in_row),
        )


def make_plan(
    source: np.ndarray,
    target: np.ndarray,
    batches: BatchesConfig,
    training: TrainingConfig,
    mixture: Mixture | None = None,
    later: Sequence[tuple[np.ndarray, np.ndarray, Mixture | None]] = (),
) -> Plan:
    """Plan a corpus from the lengths of its sides, int [n] each, EOS included.

    With a `mixture` of corpora, its slots take the place of the pairs. `later` has the
    same of further versions.

    A microbatch has at most `tokens_per_microbatch` tokens on either side, padding
    included, and a multiple of `row_multiple` rows. An update has the number of
    microbatches that is nearest to `tokens_per_update`. Raises InputError if a pair is
    longer than the `row_length` of "packed", or `row_multiple` rows than a microbatch.
    """
    tokens = training.tokens_per_microbatch
    mixtures, counts, lengths = [], [], []
    for *sides, mixed in [(source, target, mixture), *later]:
        mixtures.append(mixed)
        counts.append(mixed.tokens if mixed else [float(side.sum()) for side in sides])
        lengths.append(mixed.lengths if mixed else sides)
    real = tuple(np.mean(counts, axis=0).tolist())
    if batches.layout == "packed":
        found = [layouts.pack_rows(*each, batches.row_length) for each in lengths]
        rows = max(len(each.row_shapes) for each in found)
        found = [layouts.with_rows(each, rows) for each in found]
    else:
        largest = max(lengths, key=np.sum)
        found = [layouts.choose_buckets(*largest, batches, tokens)]
        if later:
            found = layouts.share_buckets(*found, lengths)
    layout = found[0]
    sizes, rows = layout.sizes, np.bincount(layout.row_shapes)  # of each shape
    heights, microbatches = layouts.microbatch_heights(rows, sizes, batches, tokens)
    edges = offsets(rows)
    starts = map(np.arange, edges[:-1], edges[1:], heights)  # a microbatch every height
    per_update = max(1, round(training.tokens_per_update / tokens))
    padded_tokens = microbatches @ (heights * sizes.sum(axis=1))
    shapes = np.column_stack([heights, sizes]).tolist()
    return Plan(
        shapes=tuple(Shape(*shape) for shape in shapes),
        fillings=tuple(
            Filling(mixed, each.classes, _order(each.slot_classes), each.row_starts)
            for mixed, each in zip(mixtures, found, strict=True)
        ),
        row_shapes=layout.row_shapes,
        microbatch_starts=np.concatenate([*starts, edges[-1:]]).astype(np.int32),
        microbatches_per_update=per_update,
        tokens=real,
        real_token_share=float(sum(real) / padded_tokens),
    )


def _order(classes: np.ndarray) -> np.ndarray:
    return np.argsort(classes, kind="stable").astype(np.int32)
