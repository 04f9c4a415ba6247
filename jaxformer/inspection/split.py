"""Everything found in one split of a corpus, and where: file and line.

`Split` reads the pairs once, counts, and then says it in values that JSON can hold.
Used by `jaxformer.inspection.corpus`.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from jaxformer.data.sources import Pair, Part
from jaxformer.data.tokenizer import Tokenizer, normalise
from jaxformer.errors import InputError
from jaxformer.inspection import repeats
from jaxformer.inspection.languages import NEITHER, OTHER, Languages
from jaxformer.inspection.tallies import (
    KEPT,
    Characters,
    Found,
    Lengths,
    Ratios,
    Words,
)

SIDES = ("source", "target")
VERDICTS = (
    "swapped", "source_in_target_language", "target_in_source_language",
    "source_in_neither", "target_in_neither",
)  # fmt: skip
_BLOCK = 30_000  # pairs looked at together
_QUOTED = 100  # characters


class Split:
    """Everything found in one split; pairs are known by their index in it, from 0."""

    def __init__(
        self, parts: Sequence[Part], tokenizer: Tokenizer, languages: Languages | None
    ) -> None:
        """Read the parts to their end. Raises InputError as that does, or for none."""
        self._tokenizer = tokenizer
        self._encode = (tokenizer.encode, tokenizer.encode_target)
        self._languages = languages
        self._parts: list[tuple[tuple[str, str], int]] = []  # files, first index
        self.pairs = 0
        self._blank = [Found(), Found()]
        self._identical = Found()
        self._lengths = [Lengths(), Lengths()]
        self._ratios = Ratios()
        self._words = [Words(tokenizer, encode) for encode in self._encode]
        self._characters = [Characters(), Characters()]
        self._verdicts: dict[str, list[tuple[float, int]]] = {v: [] for v in VERDICTS}
        self._verdict_counts = dict.fromkeys(VERDICTS, 0)
        self._quotes: dict[int, Pair] = {}
        hashes: list[list[np.ndarray]] = [[], []]
        for part in parts:
            self._parts.append(((part.source, part.target), self.pairs))
            for block in _blocks(part.pairs):
                for side, found in enumerate(self._look_at(block)):
                    hashes[side].append(found)
                self.pairs += len(block)
        if not self.pairs:
            raise InputError("a split holds no pair")
        self._hashes = repeats.Hashes(*map(np.concatenate, hashes))
        self._repeats = {
            kind: repeats.find_repeats(getattr(self._hashes, kind))
            for kind in ("pair", *SIDES)
        }
        self._ambiguous = {
            side: repeats.find_ambiguous(self._hashes, side) for side in SIDES
        }

    def _look_at(self, block: Sequence[Pair]) -> list[np.ndarray]:
        """Count everything in the next pairs; returns the hashes of their sides."""
        hashes, sizes = [], []
        for side, raw in enumerate(zip(*block, strict=True)):
            texts = [normalise(sentence) for sentence in raw]
            words = [text.split(" ") if text else [] for text in texts]
            pieces = [len(ids) - 1 for ids in self._encode[side](raw)]
            self._lengths[side].add(list(map(len, words)), pieces)
            self._words[side].add(self.pairs, words)
            self._characters[side].add(self.pairs, raw)
            hashes.append(repeats.hash_texts(texts))
            sizes.append(np.array(pieces))
            for index in np.flatnonzero(sizes[side] == 0).tolist():
                self._blank[side].add(self.pairs + index)
        self._ratios.add(*sizes)
        for index in np.flatnonzero((hashes[0] == hashes[1]) & (sizes[0] > 0)).tolist():
            self._identical.add(self.pairs + index)
        if self._languages is not None:
            self._judge(block)
        return hashes

    def _judge(self, block: Sequence[Pair]) -> None:
        """Keep the surest of each verdict on languages."""
        verdicts, sureness = self._languages.judge(block)
        is_swapped = (verdicts == OTHER).all(0)
        found = [(VERDICTS[0], is_swapped, sureness.sum(0))]
        for name, verdict, side in zip(
            VERDICTS[1:], (OTHER, OTHER, NEITHER, NEITHER), (0, 1, 0, 1), strict=True
        ):
            is_found = (verdicts[side] == verdict) & ~is_swapped
            found.append((name, is_found, sureness[side]))
        for name, is_found, how_sure in found:
            indices = np.flatnonzero(is_found).tolist()
            self._verdict_counts[name] += len(indices)
            for index in indices:
                heapq.heappush(
                    self._verdicts[name], (float(how_sure[index]), -self.pairs - index)
                )
                if len(self._verdicts[name]) > KEPT:
                    heapq.heappop(self._verdicts[name])

    # What is said about it ------------------------------------------------------------

    def overlap(self, train: "Split") -> dict[str, repeats.Overlap]:
        """What of this split occurs in the other, by pair and by side."""
        self._overlap = {
            kind: repeats.find_overlap(
                getattr(self._hashes, kind), getattr(train._hashes, kind)
            )
            for kind in ("pair", *SIDES)
        }
        return self._overlap

    def wanted(self) -> set[int]:
        """Indices of the pairs that are quoted."""
        groups = (*self._repeats.values(), *self._ambiguous.values())
        return {
            *(-index for found in self._verdicts.values() for _, index in found),
            *(
                index
                for group in groups
                for _, indices in group.most
                for index in indices
            ),
            *self._identical.indices,
            *(
                index
                for found in getattr(self, "_overlap", {}).values()
                for index, _ in found.indices
            ),
        }

    def quote(self, pairs: dict[int, Pair]) -> None:
        """Hand over the text of the pairs that are quoted."""
        self._quotes = pairs

    def place(self, index: int, kind: str) -> tuple[str, int]:
        """The file that has a pair, that of the target for "target", and the line."""
        files, first = next(part for part in reversed(self._parts) if part[1] <= index)
        return files[kind == "target"], index - first + 1

    def example(self, index: int, kind: str) -> dict[str, Any]:
        """Quote a pair, or a side, as {"place": [file, line], "source": ..., ...}."""
        example: dict[str, Any] = {"place": self.place(index, kind)}
        for side, text in zip(SIDES, self._quotes[index], strict=True):
            if kind in ("pair", side):
                example[side] = _quote(text)
        return example

    def result(self) -> dict[str, Any]:
        """All of it; places are [file, line]."""
        result: dict[str, Any] = {
            "pairs": self.pairs,
            "files": [list(files) for files, _ in self._parts],
            "ratio": self._ratios.result(),
            "identical_sides": {
                "pairs": self._identical.pairs,
                "examples": [
                    self.example(i, "source") for i in self._identical.indices
                ],
            },
            "repeated_pairs": self._groups(self._repeats["pair"], "pair"),
        }
        for number, side in enumerate(SIDES):
            words = self._words[number].result()
            result[side] = {
                "lengths": self._lengths[number].result(),
                "blank": self._found(self._blank[number], side),
                "words": words["words"],
                **{
                    kind: {
                        **self._found(words[kind]["total"], side),
                        "most": {
                            word: self._found(found, side, most=5)
                            for word, found in words[kind]["most"].items()
                        },
                    }
                    for kind in ("unknown", "spelt_out")
                },
                "characters": {
                    name: self._found(found, side)
                    for name, found in self._characters[number].result().items()
                },
                "repeated": self._groups(self._repeats[side], side),
                "ambiguous": self._groups(self._ambiguous[side], side),
            }
        if self._languages is not None:
            result["languages"] = {
                name: {
                    "pairs": self._verdict_counts[name],
                    "examples": [
                        {
                            **self.example(-index, "pair"),
                            "place": self.place(-index, name.partition("_")[0]),
                        }
                        for _, index in sorted(found, reverse=True)
                    ],
                }
                for name, found in self._verdicts.items()
            }
        return result

    def _found(self, found: Found, side: str, most: int = KEPT) -> dict[str, Any]:
        return {
            "count": found.count,
            "pairs": found.pairs,
            "places": [self.place(index, side) for index in found.indices[:most]],
        }

    def _groups(self, groups: repeats.Groups, kind: str) -> dict[str, Any]:
        return {
            "texts": groups.texts,
            "pairs": groups.pairs,
            "extra": groups.extra,
            "most": [
                {
                    "pairs": size,
                    **self.example(indices[0], kind),
                    "places": [self.place(index, kind) for index in indices],
                }
                for size, indices in groups.most
            ],
        }


def _blocks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    while block := list(islice(pairs, _BLOCK)):
        yield block


def _quote(text: str) -> str:
    """The beginning of a sentence, what is no letter or sign written as its number."""
    text = "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[:_QUOTED]
    ) + ("..." if len(text) > _QUOTED else "")
    return text
