"""Processes that make batches ready, each on cores of its own: for pipeline.py.

`python -m benchmarks.readers FOLDER CORE...` opens the tokenised corpus in the folder;
for each line of its input, `Work` as JSON, it makes batches ready and answers with a
line, the target tokens in them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.data.pipeline import updates
from jaxformer.data.plan import Plan, make_plan
from jaxformer.data.store import TokenizedCorpus, open_corpus

ROW_LENGTH, MAX_SHAPES = 128, 8


class Work(NamedTuple):
    """What a reader does in its turn."""

    layout: str
    tokens: int  # places a side of a microbatch, of which each update has one
    executor: str
    microbatches: int
    seed: int = 0


def plan_of(corpus: TokenizedCorpus, work: Work, pairs: int | None = None) -> Plan:
    """Plan the corpus, or as many pairs as are wanted, its lengths repeated."""
    source, target = (
        side.lengths if pairs is None else np.resize(side.lengths, pairs)
        for side in corpus
    )
    return make_plan(
        source, target, layout=work.layout, row_length=ROW_LENGTH,
        max_shapes=MAX_SHAPES, tokens_per_microbatch=work.tokens,
        tokens_per_update=work.tokens, row_multiple=1,
    )  # fmt: skip


def count_tokens(corpus: TokenizedCorpus, plan: Plan, work: Work) -> int:
    """Make the microbatches of a turn ready; returns their target tokens."""
    batches = updates(corpus, plan, seed=work.seed, start=0, executor=work.executor)
    tokens = 0
    for _ in range(work.microbatches):
        (batch,) = next(batches)
        tokens += np.count_nonzero(batch.target_segments)
    return int(tokens)


def serve(folder: Path, cores: set[int]) -> None:
    """Answer the lines of standard input, on these cores alone."""
    os.sched_setaffinity(0, cores)  # before any thread is born, which inherits them
    corpus, plans = open_corpus(folder), {}
    for line in sys.stdin:
        work = Work(*json.loads(line))
        key = work.layout, work.tokens
        if key not in plans:
            plans[key] = plan_of(corpus, work)
        print(count_tokens(corpus, plans[key], work), flush=True)


@contextmanager
def reader(folder: Path, cores: set[int]) -> Iterator[subprocess.Popen]:
    """A process that serves on these cores; it ends with the block."""
    command = [sys.executable, "-m", "benchmarks.readers", str(folder)]
    with subprocess.Popen(
        [*command, *map(str, cores)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=Path(__file__).resolve().parents[1],
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def turn(readers: list[subprocess.Popen], work: Work) -> Callable[[], int]:
    """All of them do the work, each with an order of its own; returns the tokens."""

    def run() -> int:
        for seed, each in enumerate(readers):
            print(json.dumps(work._replace(seed=seed)), file=each.stdin, flush=True)
        return sum(int(each.stdout.readline()) for each in readers)

    return run


if __name__ == "__main__":
    serve(Path(sys.argv[1]), set(map(int, sys.argv[2:])))
