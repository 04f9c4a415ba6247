"""What a run computes, and what a compiler says of its programs."""

from collections import Counter
from typing import Any, NamedTuple

from jaxformer.config.sections import Config

Figures = dict[str, Any]  # of an estimate, as --mode=check prints them in JSON


class Work(NamedTuple):
    """What a run computes, whatever it runs on."""

    config: Config
    vocab_size: int
    source_vocab_size: int
    shape: tuple[int, int, int]  # of a microbatch: rows, source and target length
    microbatches: int  # of an update
    flops: int  # of the matrix products of a microbatch
    tokens: float  # target tokens of an update


class Memory(NamedTuple):
    """Bytes on each device by kind; None for a program that does not fit."""

    arguments: int | None = None
    temporary: int | None = None
    outputs: int | None = None


class Exchange(NamedTuple):
    """What a device sends by the collectives of one kind and dtype."""

    count: int = 0
    bytes: int = 0
    largest: int = 0  # numbers of an array

    def plus(self, count: int, size: int, largest: int) -> "Exchange":
        """Add other collectives."""
        most = max(self.largest, largest)
        return Exchange(self.count + count, self.bytes + size, most)


class ProgramFacts(NamedTuple):
    """What the text of a program and its compiler say of it."""

    needed: int  # bytes on each device: all that is known if it does not fit
    memory: Memory
    compile_seconds: float
    parts: Counter[tuple[str, str]]  # cycles by `section`
    collectives: dict[tuple[str, str], Exchange]  # by kind and dtype
    kernels: Counter[str]
    has_float64: bool


class Compiled(NamedTuple):
    """The programs of a run on a topology."""

    mesh: dict[str, int]
    shape: tuple[int, int, int]  # of a microbatch, with rows that fill up the devices
    programs: dict[str, ProgramFacts]  # "update", or "microbatch" and "optimizer"
    decoder: ProgramFacts | None = None  # a step of the search
    sentences: int = 0  # in this step
