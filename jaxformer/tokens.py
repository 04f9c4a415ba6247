"""Reserved ids, names of sides, and what a tokeniser does, which every room shares.

A sentence of n pieces is a sequence of n + 1 ids: the pieces, then EOS.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from unicodedata import normalize

from jaxformer.system.errors import InputError

if TYPE_CHECKING:
    import numpy as np

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SIDES = ("source", "target")  # of a pair


class AnyTokenizer(Protocol):
    """Text to ids and back; `jaxformer.text.tokenizer` is one."""

    vocab_size: int  # ids of targets, reserved ones included
    source_vocab_size: int  # of sources, which may have a vocabulary of their own
    source_model: bytes  # a SentencePiece model, as in its file
    target_model: bytes  # the same one if both languages share it
    files: Mapping[str, bytes]  # by name, of an imported model's own tokeniser
    target_start: Sequence[int]  # ids that each target begins with: its tag, or none

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Turn each source sentence into ids, EOS last."""

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """Turn each target sentence into ids, EOS last."""

    def for_target(self, tag: str) -> "AnyTokenizer":
        """Return the tokeniser of targets that begin with a tag; "": with none."""

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids up to EOS back into text."""

    def pieces(self) -> list[str]:
        """Name every id of targets."""

    def source_pieces(self) -> list[str]:
        """Name every id of sources."""

    def language_code(self, text: str) -> str:
        """Return the tag, a piece such as ">>fra<<", that begins a source, or ""."""

    def is_unknown(self, ids: Sequence[int]) -> bool:
        """Return whether a source that is not blank has only UNK, a tag and spaces."""


def pad_rows(rows: Sequence[Sequence[int]], length: int) -> "np.ndarray":
    """Stack ids of different lengths: int32 [rows, length], padded with PAD."""
    import numpy as np  # which --help does not need

    padded = np.full((len(rows), length), PAD, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def require_plain(key: str, texts: Sequence[str]) -> None:
    """Raise InputError unless all texts of a key of `data` are printable and NFC."""
    for text in texts:
        if not text.isprintable() or text != normalize("NFC", text).strip():
            raise InputError(
                f"data.{key} has {text!r}; use printable characters in NFC, and no "
                "space at an end"
            )
