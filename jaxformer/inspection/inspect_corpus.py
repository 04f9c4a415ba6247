"""Inspect a parallel corpus before training on it, for `--mode=check`.

Splits are read without the cleaning of training text. Lines count from 1 and end at
"\\n" alone.
"""

from functools import partial
from itertools import islice

from jaxformer.config.data import DataConfig, SplitOf
from jaxformer.inspection.text_findings import Described, Split, find_overlap, place
from jaxformer.system.errors import InputError
from jaxformer.text.languages import Languages
from jaxformer.text.sources import read_pairs, read_parts
from jaxformer.tokens import SIDES


def inspect_corpus(config: DataConfig) -> Described:
    """Inspect the splits that exist; return JSON values.

    "splits" has the "pairs", "files", "lengths" and "findings" by kind of each split;
    "left_out" has the reason why a split or the languages were not inspected.
    """
    left_out: dict[str, str] = {}
    languages: dict[str, Languages | None] = {}  # by direction
    splits: dict[str, Split] = {}
    for name, (_, kind, data) in config.texts.items():
        try:
            if data.direction not in languages:
                languages[data.direction] = None
                pair = data.source_language, data.target_language
                languages[data.direction] = Languages(pair)
        except InputError as error:
            left_out[f"languages {data.direction}"] = str(error)
        try:
            splits[name] = Split(read_parts(data, kind), languages[data.direction])
        except InputError as error:
            left_out[name] = str(error)
    trains = {
        name: splits[name]
        for name, text in config.texts.items()
        if text.split == "train" and name in splits
    }
    described = {
        name: _describe(split, config.texts[name], name, trains)
        for name, split in splits.items()
    }
    return {"splits": described, "left_out": left_out}


def _describe(
    split: Split, text: SplitOf, name: str, trains: dict[str, Split]
) -> Described:
    """Convert a split to JSON, with its overlap with train and the texts to quote."""
    overlaps: dict[str, dict[int, tuple[int, Split]]] = {}
    for side, hashes in split.hashes.items() if name not in trains and trains else ():
        kind = f"{side}_overlap"
        overlaps[kind] = {
            index: (there, train)
            for train in reversed(trains.values())
            for index, there in find_overlap(hashes, train.hashes[side]).items()
        }
        for index in overlaps[kind]:
            split.findings[kind].add(index)
    findings = [*split.findings.values()]
    findings += [label for found in findings for label in found.labels.values()]
    quoted = {index for found in findings for index in found.indices()}
    pairs = read_pairs(text.data, text.split)
    pairs = islice(pairs, max(quoted, default=-1) + 1)
    texts = {index: pair for index, pair in enumerate(pairs) if index in quoted}

    def example(index: int, kind: str) -> Described:
        side = kind.partition("_")[0]
        result = {"place": place(index, side, split.files)}
        if kind in overlaps:
            there, train = overlaps[kind][index]
            result["train"] = place(there, side, train.files)
        return {**result, "text": texts[index]}

    return {
        "pairs": split.pairs,
        "files": split.files,
        "lengths": {
            side: {"words": dict(sorted(split.words[side].items()))} for side in SIDES
        },
        "findings": {
            kind: found.describe(partial(example, kind=kind))
            for kind, found in split.findings.items()
        },
    }
