"""Real text for the contestants of benchmarks/train.py, each in its own batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxformer.batch import PAD, Batch
from jaxformer.data.pipeline import assemble
from jaxformer.data.plan import make_plan
from jaxformer.data.store import Ragged, TokenizedCorpus, open_corpus
from jaxformer.workdir import Workdir


@dataclass(frozen=True)
class Epoch:
    """The batches of an epoch in the order of training, made when asked for."""

    shapes: Sequence[tuple[int, ...]]  # of each batch
    make: Callable[[int], Batch]
    real_token_share: float  # tokens of both sides by places for them

    @property
    def shape_count(self) -> int:
        return len(set(self.shapes))

    def one_of_each_shape(self) -> list[Batch]:
        """One batch of each shape."""
        return [self.make(self.shapes.index(shape)) for shape in set(self.shapes)]

    def parts(self, count: int, batches: int) -> list[list[Batch]]:
        """Cut it into `count` parts of `batches` batches each; 0 takes the whole epoch.

        What is not taken is left out evenly.
        """
        wanted = min(count * batches or len(self.shapes), len(self.shapes))
        chosen = np.linspace(0, len(self.shapes), wanted, endpoint=False).astype(int)
        return [[self.make(i) for i in part] for part in np.array_split(chosen, count)]


@dataclass(frozen=True)
class Text:
    """Tokenised pairs, and how this repository would batch them."""

    corpus: TokenizedCorpus
    vocabulary: int
    batching: dict

    @property
    def longest(self) -> int:
        """Places of the longest row that anybody makes."""
        return self.batching["row_length"]

    @property
    def mean_length(self) -> float:
        """Pieces of a target sentence on average."""
        return float(self.corpus.target.lengths.mean())

    def ours(self, tokens: int) -> Epoch:
        """An epoch in the layout of `batching`, at most `tokens` places a side."""
        plan = make_plan(
            self.corpus.source.lengths, self.corpus.target.lengths,
            tokens_per_microbatch=tokens, tokens_per_update=tokens, **self.batching,
        )  # fmt: skip
        epoch = plan.epoch(seed=0, epoch=0)
        return Epoch(
            [epoch.shapes[i] for i in epoch.shape_of],
            lambda index: assemble(self.corpus, epoch, index),
            plan.real_token_share,
        )

    def sorted_by_length(self, tokens: int) -> Epoch:
        """An epoch of pairs sorted by length, cut where `tokens` places are full.

        The batches are shuffled; each is as wide as its longest sentence.
        """
        source, target = self.corpus.source.lengths, self.corpus.target.lengths
        order = np.lexsort((source, target))
        cuts, widest = [0], 0
        for i, pair in enumerate(order):
            widest = max(widest, source[pair], target[pair])
            if widest * (i - cuts[-1] + 1) > tokens:
                cuts.append(i)
                widest = max(source[pair], target[pair])
        lots = np.split(order, cuts[1:])
        lots = [lots[i] for i in np.random.default_rng(0).permutation(len(lots))]
        shapes = [(len(lot), int(source[lot].max()), int(target[lot].max()))
                  for lot in lots]  # fmt: skip
        places = sum(rows * (s + t) for rows, s, t in shapes)

        def make(index: int) -> Batch:
            sides = [
                padded(side, lots[index])
                for side in (self.corpus.source, self.corpus.target)
            ]
            return Batch(*sides, *((ids != PAD).astype(np.int32) for ids in sides))

        return Epoch(shapes, make, float((source.sum() + target.sum()) / places))


def padded(side: Ragged, lot: np.ndarray) -> np.ndarray:
    """Ids of some sentences, int32 [n, longest]."""
    ids = np.full((len(lot), side.lengths[lot].max()), PAD, np.int32)
    for row, index in zip(ids, lot, strict=True):
        row[: side.lengths[index]] = side[index]
    return ids


def read_text(folder: Path, *, layout: str, join: int) -> Text:
    """The training text of a workdir, `join` pairs that follow each other made one.

    `layout` takes the place of the run's own unless it is empty.
    """
    workdir = Workdir(folder)
    config = workdir.read_record()["config"]
    corpus = open_corpus(folder / "corpus" / "train")
    batching = {k: v for k, v in config["batches"].items() if k != "executor"}
    if layout:
        batching["layout"] = layout
    corpus = TokenizedCorpus(*(joined(side, join) for side in corpus))
    longest = max(int(side.lengths.max()) for side in corpus)
    batching["row_length"] = max(batching["row_length"], longest)
    return Text(corpus, workdir.read_tokenizer().vocab_size, batching)


def joined(side: Ragged, count: int) -> Ragged:
    """Every `count` sequences behind each other as one, with its last EOS alone."""
    if count == 1:
        return side
    whole = len(side) // count * count
    tokens = [
        np.concatenate([*(side[i][:-1] for i in range(n, n + count - 1)),
                        side[n + count - 1]])
        for n in range(0, whole, count)
    ]  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in tokens])])
    return Ragged(np.concatenate(tokens), offsets)
