"""Inspect a corpus in another process; few imports here let it start at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxformer.config.data import DataConfig
from jaxformer.system.worker import Worker


@contextmanager
def inspect_in_background(config: DataConfig) -> Iterator[Callable[[], dict]]:
    """Run `inspect_corpus` in another process; yield a function that waits for it.

    The process ends with the block. The function raises InputError if it failed.
    """
    with Worker("jaxformer.inspection.corpus:inspect_corpus") as worker:
        worker.send(config)
        yield worker.receive
