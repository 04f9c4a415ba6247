"""Inspect a corpus in another process; few imports here let it start at once."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError


@contextmanager
def inspect_in_background(config: DataConfig) -> Iterator[Callable[[], dict]]:
    """Run `inspect_corpus` in another process; yield a function that waits for it.

    The process ends with the block. The function raises InputError if it failed.
    """
    command = [sys.executable, "-P", "-m", "jaxformer.inspection.corpus"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with Popen(command, env=environment, stdin=PIPE, stdout=PIPE) as process:
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()

        def result() -> dict:
            content = process.stdout.read()
            if code := process.wait():
                raise InputError(
                    f"the process that inspects the text ended with code {code} (-9 "
                    "may be for lack of memory); see the messages above"
                )
            return pickle.loads(content)

        try:
            yield result
        finally:
            process.kill()
