"""Batches of real text, in our layouts and as PyTorch's users make them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from jaxformer.batch import Batch
from jaxformer.corpus.pipeline import evaluation_batches
from jaxformer.corpus.plan import make_plan
from jaxformer.corpus.store import TokenizedCorpus, open_corpus
from jaxformer.runs.workdir import Workdir
from jaxformer.tokens import PAD


class Text(NamedTuple):
    """Tokenised pairs, and the arguments of `make_plan` for them."""

    corpus: TokenizedCorpus
    vocabulary: int
    batching: dict


def planned(text: Text, tokens: int) -> list[Batch]:
    """Make an epoch of batches of at most `tokens` entries a side, as training does."""
    source, target = text.corpus
    batching = SimpleNamespace(
        tokens_per_microbatch=tokens, tokens_per_update=tokens, **text.batching
    )
    plan = make_plan(source.lengths, target.lengths, batching, batching)
    return list(evaluation_batches(text.corpus, plan))


def sorted_by_length(text: Text, tokens: int) -> list[Batch]:
    """Sort pairs by length, cut where `tokens` entries are full, shuffle the batches.

    Each batch is as wide as its longest sentence.
    """
    lengths = [side.lengths for side in text.corpus]
    order, longest = np.lexsort(lengths), np.maximum(*lengths)
    cuts, widest = [0], 0
    for i, pair in enumerate(order):
        widest = max(widest, longest[pair])
        if widest * (i - cuts[-1] + 1) > tokens:
            cuts.append(i)
            widest = longest[pair]
    lots = np.split(order, cuts[1:])
    batches = []
    for number in np.random.default_rng(0).permutation(len(lots)):
        sides = [padded([side[i] for i in lots[number]]) for side in text.corpus]
        segments = [(ids != PAD).astype(np.int32) for ids in sides]
        batches.append(Batch(*sides, *segments))
    return batches


def padded(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Make rows as long as the longest sentence: int32 [n, longest]."""
    columns = itertools.zip_longest(*sentences, fillvalue=PAD)
    return np.array([*columns], np.int32).T


def parts(batches: Sequence[Batch], count: int, size: int) -> list[list[Batch]]:
    """Cut an epoch into `count` parts of `size` batches each; 0 takes all batches.

    The batches that are left out are spread evenly.
    """
    number = min(count * size or len(batches), len(batches))
    chosen = np.linspace(0, len(batches), number, endpoint=False).astype(int)
    return [[batches[i] for i in part] for part in np.array_split(chosen, count)]


def by_shape(batches: Sequence[Batch]) -> dict[tuple, Batch]:
    """Return one batch of each shape."""
    return {(each.source.shape, each.target.shape): each for each in batches}


def real_token_share(batches: Sequence[Batch]) -> float:
    """Count the tokens of both sides by entries of the arrays."""
    sides = [ids for batch in batches for ids in (batch.source, batch.target)]
    return sum(np.count_nonzero(ids) for ids in sides) / sum(ids.size for ids in sides)


def read_text(folder: Path) -> Text:
    """Read the training text of a workdir."""
    workdir = Workdir(folder)
    batching = vars(workdir.read_record().config.batches)
    del batching["executor"]
    corpus = open_corpus(folder / "corpus" / "train")
    longest = max(int(side.lengths.max()) for side in corpus)
    batching["row_length"] = max(batching["row_length"], longest)
    return Text(corpus, workdir.read_tokenizer().vocab_size, batching)
