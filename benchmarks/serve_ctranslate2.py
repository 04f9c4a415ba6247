"""Serve a model with CTranslate2 behind jaxformer's web server, to compare both.

    jaxformer --mode=export --format=ctranslate2 --workdir=runs/m30k --output=FOLDER
    python benchmarks/serve_ctranslate2.py --model=FOLDER [--port=8000]

It translates as the program in FOLDER/README.md does: all texts that wait, in batches
of at most 4096 tokens.
"""

import argparse
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from jaxformer.decoding.parts import Hypothesis
from jaxformer.serving.batching import Limits
from jaxformer.serving.server import Service, listen
from jaxformer.system.errors import InputError

LIMITS = Limits(8192, 16, 65536, 30.0, 30.0)


class Peer:
    """Has the methods of ServedTranslator that the server calls."""

    options = SimpleNamespace(n_best=1)
    tags = ()

    def __init__(self, translate: Callable[[Sequence[str]], list[str]]) -> None:
        self._translate, self._jobs = translate, []
        words = lambda texts: [text.split() for text in texts]  # noqa: E731
        self.tokenizer = SimpleNamespace(encode=words, encode_target=words)

    @property
    def load(self) -> tuple[int, int]:
        return len(self._jobs), 0

    def compile(self, *_: int) -> Iterator[tuple[int, int]]:
        self._translate(["a"])
        return iter(())

    def prepare(self, text: str, *_: object) -> str:
        return text

    def submit(self, texts: list[str], done: Callable, *, request: Any) -> None:
        self._jobs.append((texts, done, request))

    def cancel(self, request: Any) -> None:
        self._jobs = [job for job in self._jobs if job[2] is not request]

    def advance(self) -> bool:
        jobs, self._jobs = self._jobs, []
        found = iter(self._translate([text for texts, _, _ in jobs for text in texts]))
        for texts, done, _ in jobs:
            done([[Hypothesis(next(found), 0.0, 0.0, 1)] for _ in texts])
        return False


def serve(options: argparse.Namespace) -> dict:
    if options.model is None or not (options.model / "README.md").is_file():
        raise InputError("give --model, a folder of --mode=export --format=ctranslate2")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    text = (options.model / "README.md").read_text(encoding="utf-8")
    program: dict[str, Any] = {"__name__": "translate"}
    os.chdir(options.model)
    exec(re.search("```python\n(.*?)```", text, re.DOTALL)[1], program)
    details = {"languages": ("en", "de"), "limits": LIMITS, "hosts": (), "examples": ()}
    with closing(listen("127.0.0.1", options.port)) as opened:
        peer = Peer(program["translate"])
        return Service(peer, opened, **details).run_until_stopped()


main = functools.partial(harness.run, __doc__, serve, model=None, port=8000)


if __name__ == "__main__":
    sys.exit(main())
