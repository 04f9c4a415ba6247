"""What a corpus holds that a person should see before training on it.

`inspect_corpus` reads every split twice as it is, not as cleaned: once to learn the two
languages from a sample, once to look at all of it; then once more as far as there is
text to quote. It holds no text: 16 bytes a pair, the sample, and what is found. Lines
are those of the files, from 1, ended by "\\n" alone. Used by --mode=check.
"""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

from jaxformer.data.sources import (
    SPLITS,
    CorpusConfig,
    Pair,
    read_pairs,
    read_parts,
)
from jaxformer.data.tokenizer import Tokenizer, draw_sample
from jaxformer.errors import InputError
from jaxformer.inspection.languages import Languages
from jaxformer.inspection.split import Split

_SAMPLE = 100_000  # pairs that the languages are learnt from


def inspect_corpus(config: CorpusConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Look through the splits that exist; returns what is found, as JSON can hold it.

    "splits" has for each of them what `Split.result` returns, "overlap" what of dev and
    test occurs in train, "left_out" why a split or the languages were not looked at.
    """
    start = time.monotonic()
    left_out = {}
    languages = None
    try:
        languages = _learn_languages(config)
    except InputError as error:
        left_out["languages"] = str(error)
    splits = {}
    for name in SPLITS:
        try:
            splits[name] = Split(read_parts(config, name), tokenizer, languages)
        except InputError as error:
            left_out[name] = str(error)
    overlaps = {
        name: splits[name].overlap(splits["train"])
        for name in splits
        if name != "train" and "train" in splits
    }
    results = {}
    for name, split in splits.items():
        split.quote(_read_some(config, name, split.wanted()))
        results[name] = split.result()
    return {
        "splits": results,
        "overlap": {
            name: {
                kind: {
                    "pairs": found.pairs,
                    "examples": [
                        {
                            **splits[name].example(here, kind),
                            "train": splits["train"].place(there, kind),
                        }
                        for here, there in found.indices
                    ],
                }
                for kind, found in kinds.items()
            }
            for name, kinds in overlaps.items()
        },
        "left_out": left_out,
        "seconds": round(time.monotonic() - start, 1),
    }


def _learn_languages(config: CorpusConfig) -> Languages:
    pairs = read_pairs(config, "train")
    whole = (pair for pair in pairs if pair[0].strip() and pair[1].strip())
    return Languages(draw_sample(whole, _SAMPLE, config.seed))


def _read_some(
    config: CorpusConfig, split: str, wanted: Iterable[int]
) -> dict[int, Pair]:
    """The pairs of those indices."""
    wanted = set(wanted)
    if not wanted:
        return {}
    some = islice(read_pairs(config, split), max(wanted) + 1)
    return {index: pair for index, pair in enumerate(some) if index in wanted}
