"""What a report is told about a run: its log, its corpus, what it made of a text.

Used by `jaxformer.commands.report`, which fills it, and by the modules that show it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Aligned(Protocol):
    """Pieces of both sides, the end last, and which looks at which."""

    source: list[str]
    target: list[str]

    def alignment(self) -> list[tuple[int, int]]:
        """(source, target) places."""


class Text(NamedTuple):
    """What was translated, and how people did it."""

    name: str
    sources: list[str]
    references: list[str]


class Translated(NamedTuple):
    """What a run made of the text."""

    translations: list[str]
    nll: float  # nats per target piece of the references
    ppl: float
    checkpoint: str  # which parameters
    align: Callable[[str, str], Aligned]  # a source and its translation


class Facts(NamedTuple):
    """What a workdir tells about a run."""

    name: str
    config: Mapping[str, Mapping[str, Any]]
    direction: str
    tokenizer: str  # sha256
    vocabulary: int
    parameters: int
    metrics: Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl
    corpus: Mapping[str, Any] | None  # corpus/report.json
    batches: Mapping[str, Any] | None
    versions: Mapping[str, str]  # as recorded
    translated: Translated | None
