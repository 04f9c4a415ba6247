"""Sentences to decode, as arrays."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.decoding.phrases import phrase_arrays
from jaxformer.decoding.rules import Requests
from jaxformer.decoding.search import SearchResult
from jaxformer.tokens import PAD


class Task(NamedTuple):
    """A sentence to decode."""

    source: Sequence[int]  # ids, EOS last
    max_length: int  # of the translation, EOS included
    min_length: int = 0
    prefix: Sequence[int] = ()
    seed: int = 0
    done: Callable[[SearchResult], None] | None = None  # gets NumPy arrays [W, ...]
    request: object = None  # whose tasks are cancelled together
    before: int = 0  # source tokens of the earlier tasks of the request
    phrases: Sequence[Sequence[int]] = ()  # `distinct` ones that it contains
    text: str = ""  # of the source, its tag included


def pad_rows(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Stack ids of different lengths: int32 [rows, length], padded with PAD."""
    padded = np.full((len(rows), length), PAD, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def as_arrays(
    tasks: Sequence[Task], *, count: int, source: int, output: int, with_phrases: bool
) -> tuple[np.ndarray, Requests]:
    """Stack sources and requests of tasks, and of empty ones up to `count`.

    `source` and `output` are the lengths of the rows of sources and of prefixes.
    """
    tasks = [*tasks, *[Task((), max_length=0)] * (count - len(tasks))]
    phrases = phrase_arrays([task.phrases for task in tasks]) if with_phrases else None
    requests = Requests(
        max_lengths=np.array([task.max_length for task in tasks], np.int32),
        min_lengths=np.array([task.min_length for task in tasks], np.int32),
        prefixes=pad_rows([task.prefix for task in tasks], output),
        seeds=np.array([task.seed % 2**32 for task in tasks], np.uint32),
        phrases=phrases,
    )
    return pad_rows([task.source for task in tasks], source), requests
