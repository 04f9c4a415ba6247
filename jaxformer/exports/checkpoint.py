"""What every reader of published models returns or raises."""

from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]  # an object of JSON, or fields of a `TransformerConfig`


class Checkpoint(NamedTuple):
    """A model in our layout."""

    model: Json  # TransformerConfig, without dropout and dtype
    params: dict  # nested dicts of float32 arrays
    vocabularies: list[list[str]]  # pieces by our id: of both, or of source and target
    models: list[Path]  # files of SentencePiece, of source and target; not yet read
    files: tuple[Path, ...] = ()  # of the tokeniser besides, to export again
    tags: tuple[str, ...] = ()  # pieces of languages that both sides begin with


class UnsupportedError(Exception):
    """A fault of a checkpoint; the reader adds the folder and what to do."""
