"""Inspect a tokenised corpus: lengths in pieces and unknown words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

import numpy as np

from jaxformer.config.data import DataConfig
from jaxformer.corpus.prepared import PreparedCorpus
from jaxformer.inspection.text_findings import Described, TextFinding, place
from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair, read_pairs
from jaxformer.tokens import EOS, SIDES

_LABEL = 40  # characters of a word that are reported


def add_pieces(corpus: Described, config: DataConfig, prepared: PreparedCorpus) -> None:
    """Add lengths in pieces and unknown words to the result of `inspect_corpus`.

    Lengths are those of the prepared pairs of train and dev. Splits in which preparing
    met no unknown piece are not searched for unknown words, nor any for a tokeniser
    with bytes.
    """
    tokenizer = prepared.tokenizer
    # Their characters are not known elsewhere.
    symbols = {*config.tags, *config.user_defined_symbols}
    known = [
        {" ", *chain.from_iterable(piece for piece in own if piece not in symbols)}
        for own in (tokenizer.source_pieces()[EOS + 1 :], tokenizer.pieces()[EOS + 1 :])
    ]
    for label, split in corpus["splits"].items():
        name, part, data = config.texts[label]
        if part == "train":
            split["dropped"] = prepared.counts(name, part)["dropped"]
        if part != "test":
            pieces = [lengths - 1 for lengths in prepared.lengths(name, part)]  # no EOS
            for side, lengths in zip(SIDES, pieces, strict=True):
                counts = sorted(Counter(lengths.tolist()).items())
                split["lengths"][side]["pieces"] = dict(counts)
            split["ratio"] = {"percentiles": ratio_percentiles(*pieces)}
            counts = prepared.counts(name, part)
            if not any(counts[side]["unknown"] for side in SIDES):
                continue
        if tokenizer.has_bytes:
            continue
        unknown = find_unknown(read_pairs(data, part), known, symbols)
        for kind, found in unknown.items():
            line = partial(place, side=kind.partition("_")[0], files=split["files"])
            described = found.describe(lambda index, at=line: {"place": at(index)})
            split["findings"][kind] = described | {"at": [*found.at]}


def ratio_percentiles(source: np.ndarray, target: np.ndarray) -> dict[int, float]:
    """Return percentiles of target pieces a source piece, without blank sides."""
    both = (source > 0) & (target > 0)
    if not both.any():
        return {}
    percents = (1, 5, 50, 95, 99)
    values = np.percentile(target[both] / source[both], percents)
    return dict(zip(percents, values.round(2).tolist(), strict=True))


def find_unknown(
    pairs: Iterable[Pair], known: Sequence[set[str]], symbols: Iterable[str]
) -> dict[str, TextFinding]:
    """Find words with characters that a side does not know: "source_unknown", ...

    Each of `symbols` is known as a whole.
    """
    found = {f"{side}_unknown": TextFinding() for side in SIDES}
    for index, pair in enumerate(pairs):
        sides = zip(found.values(), map(normalise, pair), known, strict=True)
        for finding, text, own in sides:
            for symbol in symbols:
                text = text.replace(symbol, " ")
            if not own.issuperset(text):
                words = (w[:_LABEL] for w in text.split() if not own.issuperset(w))
                finding.add(index, Counter(words))
    return found
