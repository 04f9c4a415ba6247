"""Measure how many target tokens a second the input pipeline makes ready on one core.

    python benchmarks/pipeline.py [--quick] [--repeats=5]

Gather, pad, batches in host memory, of the built-in corpus, for both layouts, small and
large microbatches and both executors, which take turns. The first turn of each is not
counted.
"""

import argparse
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import harness
from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.corpus.pipeline import updates
from jaxformer.corpus.plan import Plan, make_plan
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.store import TokenizedCorpus, open_corpus

LAYOUTS = "packed", "buckets"
EXECUTORS = "tf.data", "python"
# Entries a side of a microbatch: of Multi30k, and of the paper.
MICROBATCHES = 2048, 25_000
ROW_LENGTH, MAX_SHAPES = 128, 8
AMOUNTS = {  # of text and work, usually and with --quick
    "pairs": (100_000, 10_000), "vocabulary": (8000, 500), "microbatches": (400, 100),
}  # fmt: skip


def plan_of(corpus: TokenizedCorpus, layout: str, tokens: int) -> Plan:
    """Plan the corpus, with one microbatch of `tokens` entries a side an update."""
    lengths = [side.lengths for side in corpus]
    batching = SimpleNamespace(
        layout=layout, row_length=ROW_LENGTH, max_shapes=MAX_SHAPES, row_multiple=1,
        tokens_per_microbatch=tokens, tokens_per_update=tokens,
    )  # fmt: skip
    return make_plan(*lengths, batching, batching)


def count_tokens(
    corpus: TokenizedCorpus, plan: Plan, executor: str, microbatches: int
) -> int:
    """Make the microbatches of a turn; count their target tokens."""
    batches = updates([corpus], plan, seed=0, start=0, executor=executor)
    made = itertools.islice(batches, microbatches)
    return sum(int(np.count_nonzero(each.target_segments)) for (each,) in made)


def counter(folder: Path, layout: str, tokens: int) -> Callable[[str, int], int]:
    """Put this process on one core; make `count_tokens` of a prepared folder."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before any thread
    corpus = open_corpus(folder / "train")
    plan = plan_of(corpus, layout, tokens)
    return functools.partial(count_tokens, corpus, plan)


def measure(options: argparse.Namespace) -> dict:
    amounts = {name: values[options.quick] for name, values in AMOUNTS.items()}
    data = demo.get_config().data.to_dict() | {
        "train": str(amounts["pairs"]), "dev": "2", "test": "2",
        "vocab_size": amounts["vocabulary"], "max_length": ROW_LENGTH,
    }  # fmt: skip
    found, beside = {}, EXECUTORS[1]
    executors = EXECUTORS if harness.has("tensorflow") else EXECUTORS[1:]
    with tempfile.TemporaryDirectory(prefix="jaxformer-pipeline-") as name:
        prepare(DataConfig(**data), Path(name))
        for layout, size in itertools.product(LAYOUTS, MICROBATCHES):
            count = harness.Apart(counter, Path(name, "corpus"), layout, size)
            turns = {
                executor: functools.partial(count, executor, amounts["microbatches"])
                for executor in executors
            }
            tokens = {executor: turn() for executor, turn in turns.items()}
            rounds = harness.take_turns(turns, options.repeats)
            label = f"{layout}, {size:,}"
            found[label] = harness.figures(rounds, tokens, beside)
    harness.print_figures(found, "target tokens", beside, {})
    return {**amounts, "rates": found}


main = functools.partial(harness.run, __doc__, measure, repeats=(5, 1))


if __name__ == "__main__":
    sys.exit(main())
