"""Inspect a corpus in another process; few imports here let it start at once."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxformer.config import DataConfig
from jaxformer.errors import InputError


@contextmanager
def inspect_in_background(config: DataConfig) -> Iterator[Callable[[], dict]]:
    """Run `inspect_corpus` in another process; yield a function that waits for it.

    The process ends with the block. The function raises InputError if it was killed.
    """
    command = [sys.executable, "-m", "jaxformer.inspection.corpus"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process to handle
    ) as process:
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()

        def result() -> dict:
            content = process.stdout.read()
            if code := process.wait():
                raise InputError(
                    f"the process that inspects the text ended with code {code}, "
                    "possibly for lack of memory; free memory and start again"
                )
            return pickle.loads(content)

        try:
            yield result
        finally:
            process.kill()
