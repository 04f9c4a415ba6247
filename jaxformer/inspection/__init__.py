"""What a parallel corpus holds, for `jaxformer check`, found by another process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxformer.config.data import DataConfig
from jaxformer.system.worker import Worker


@contextmanager
def inspect_in_background(config: DataConfig) -> Iterator[Callable[[], dict]]:
    """Run `inspect_corpus` in another process; yield a function that waits for it.

    The process ends with the block. The function raises InputError if it failed.
    """
    with Worker("jaxformer.inspection.text_findings:inspect_corpus") as worker:
        worker.send(config)
        yield worker.receive
