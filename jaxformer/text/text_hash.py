"""Hashes that tell whether a text changed."""

import json
from collections.abc import Iterable
from hashlib import sha256

import xxhash

from jaxformer.system.errors import InputError
from jaxformer.text import sources
from jaxformer.text.sources import Pair, in_chunks


class TextChangedError(InputError):
    """The text is another one than it was when its preparation began."""

    def __init__(self) -> None:
        super().__init__("the text changed while it was prepared; start again")


class TextHash:
    """Hashes of a text, one for each shard: XXH3-128 of lines source<TAB>target."""

    def __init__(self) -> None:
        self.pairs = 0  # that were added
        self._digests: list[xxhash.xxh3_128] = []

    def add(self, chunk: Iterable[Pair]) -> None:
        """Add the next pairs, all of one shard."""
        if not self.pairs % sources.SHARD:
            self._digests.append(xxhash.xxh3_128())
        lines = [f"{source}\t{target}\n" for source, target in chunk]
        self._digests[-1].update("".join(lines).encode())
        self.pairs += len(lines)

    @property
    def shards(self) -> list[str]:
        """The hash of each shard."""
        return [digest.hexdigest() for digest in self._digests]

    @staticmethod
    def of(pairs: Iterable[Pair]) -> "TextHash":
        """Hash a whole text."""
        text = TextHash()
        for chunk in in_chunks(pairs):
            text.add(chunk)
        return text


def hash_of_texts(texts: Iterable[list[str]]) -> str:
    """Return one hash of several texts, which are given by those of their shards."""
    return sha256(json.dumps([*texts]).encode()).hexdigest()
