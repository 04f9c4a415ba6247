"""Measure how many target tokens a second the input pipeline makes ready.

    python benchmarks/pipeline.py [--quick] [--repeats=5] [--subword_sampling=0]

Plan, gather, pad, batches in host memory, of the built-in corpus. For both layouts,
small and large microbatches and both executors: one process on one core, and one
process on each of two cores, each with microbatches of its own. Beside them, what a
train step of the Multi30k model consumes on this CPU, and how long planning takes. The
first turn of each is not counted. Figures for 16 cores are extrapolated.
`--subword_sampling` is `data.subword_sampling`; the train steps and the planning are
without.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import harness
from benchmarks.models import SIZES, Trainer, one_device
from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.corpus.pipeline import updates
from jaxformer.corpus.plan import Plan, make_plan
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.store import TokenizedCorpus, open_corpus
from jaxformer.corpus.subwords import Subwords

LAYOUTS = "packed", "buckets"
EXECUTORS = "tf.data", "python"
# Entries a side of a microbatch: of Multi30k, and of the paper.
MICROBATCHES = 2048, 25_000
ROW_LENGTH, MAX_SHAPES = 128, 8
CORES = 16  # what the figures are extrapolated to
STEPS = 4  # train steps timed
ALONE, APART = "1 process, 1 core", "2 processes, 2 cores"
AMOUNTS = {  # of text and work, usually and with --quick
    "pairs": (100_000, 10_000), "vocabulary": (8000, 500), "microbatches": (400, 100),
    "plan_pairs": (10**6, 10**5),
}  # fmt: skip


def plan_of(
    corpus: TokenizedCorpus,
    layout: str,
    tokens: int,
    pairs: int | None = None,
    subwords: Subwords | None = None,
) -> Plan:
    """Plan the corpus, or `pairs` pairs, with one microbatch an update.

    `tokens` are the entries of a side; more pairs than the corpus has repeat lengths.
    """
    lengths = [np.resize(side.lengths, pairs or len(side)) for side in corpus]
    if subwords:
        lengths = subwords.lengths_to_plan(ROW_LENGTH)
    batching = SimpleNamespace(
        layout=layout, row_length=ROW_LENGTH, max_shapes=MAX_SHAPES, row_multiple=1,
        tokens_per_microbatch=tokens, tokens_per_update=tokens,
    )  # fmt: skip
    return make_plan(*lengths, batching, batching, subwords=subwords)


@functools.cache
def opened(folder: Path, layout: str, tokens: int) -> tuple[TokenizedCorpus, Plan]:
    """Open a prepared folder and plan its training text, once a process."""
    settings = json.loads((folder / "report.json").read_text())["settings"]
    corpus, subwords = open_corpus(folder / "train"), Subwords.open(folder, settings)
    return corpus, plan_of(corpus, layout, tokens, subwords=subwords)


def count_tokens(
    folder: Path, layout: str, tokens: int, executor: str, microbatches: int, seed: int
) -> int:
    """Make the microbatches of a turn; count their target tokens."""
    corpus = opened(folder, layout, tokens)
    batches = updates(*corpus, seed=seed, start=0, executor=executor)
    made = itertools.islice(batches, microbatches)
    return sum(int(np.count_nonzero(each.target_segments)) for (each,) in made)


def turn(processes: list[ProcessPoolExecutor], *work: Any) -> int:
    """Run the work in all processes, each in its own order; count their tokens."""
    running = [each.submit(count_tokens, *work, i) for i, each in enumerate(processes)]
    return sum(each.result() for each in running)


def rates(folder: Path, microbatches: int, repeats: int) -> dict[str, harness.Figures]:
    """Time every executor and arrangement of processes, by layout and size."""
    executors = EXECUTORS if harness.has("tensorflow") else EXECUTORS[1:]
    spawn, found = multiprocessing.get_context("spawn"), {}
    with ExitStack() as stack:
        processes = [  # each stays on its core, set before it starts any thread
            stack.enter_context(
                ProcessPoolExecutor(1, spawn, os.sched_setaffinity, (0, {core}))
            )
            for core in sorted(os.sched_getaffinity(0))[:2]
        ]
        for layout, tokens in itertools.product(LAYOUTS, MICROBATCHES):
            turns = {}
            for executor in executors:
                work = folder, layout, tokens, executor, microbatches
                for number, team in enumerate((ALONE, APART)[: len(processes)], 1):
                    each = functools.partial(turn, processes[:number], *work)
                    turns[f"{executor}, {team}"] = each
            amounts = {name: each() for name, each in turns.items()}  # not counted
            rounds = harness.take_turns(turns, repeats)
            beside = f"python, {ALONE}"
            found[f"{layout}, {tokens:,}"] = harness.figures(rounds, amounts, beside)
    return found


def planning(corpus: TokenizedCorpus, pairs: int, repeats: int) -> harness.Figures:
    """Time planning a run of so many pairs, once, and putting an epoch in order."""
    turns = {}
    for layout in LAYOUTS:
        plan = functools.partial(plan_of, corpus, layout, MICROBATCHES[-1], pairs)
        turns[f"a run, {layout}"] = plan
        turns[f"an epoch, {layout}"] = functools.partial(plan().epoch, seed=0, epoch=1)
    rounds = harness.take_turns(turns, repeats)
    found = harness.figures(rounds, dict.fromkeys(turns, pairs), "")
    harness.print_figures({f"planning {pairs:,} pairs": found}, "pairs", "-", {})
    return found


def step_rate(corpus: TokenizedCorpus, vocabulary: int) -> float:
    """Measure target tokens a second that train steps of the Multi30k model consume."""
    plan = plan_of(corpus, "packed", MICROBATCHES[0])
    sizes = dataclasses.replace(SIZES["small"], vocabulary=vocabulary)  # Multi30k's
    trainer = Trainer(sizes.model(), one_device())
    batches = updates(corpus, plan, seed=0, start=0, executor="python")
    first, *others = (batch for (batch,) in itertools.islice(batches, STEPS + 1))
    trainer(first)  # compiles
    (seconds,) = harness.take_turns({"": lambda: [*map(trainer, others)]}, 1)
    return sum(np.count_nonzero(batch.target) for batch in others) / seconds[""]


def measure(options: argparse.Namespace) -> dict:
    amounts = {name: values[options.quick] for name, values in AMOUNTS.items()}
    data = demo.get_config().data.to_dict() | {
        "train": str(amounts["pairs"]), "dev": "2", "test": "2",
        "vocab_size": amounts["vocabulary"], "max_length": ROW_LENGTH,
        "subword_sampling": options.subword_sampling or None,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="jaxformer-pipeline-") as name:
        folder = Path(name)
        prepared = prepare(DataConfig(**data), folder)
        consumed = step_rate(prepared.train, prepared.tokenizer.vocab_size)
        found = rates(folder / "corpus", amounts["microbatches"], options.repeats)
        slowest: dict[str, float] = {}  # rates by arrangement of processes
        for name, each in itertools.chain(*(f.items() for f in found.values())):
            each["times_step"] = each["per_second"] / consumed
            team = name.partition(", ")[2]
            slowest[team] = min(slowest.get(team, np.inf), each["per_second"])
        harness.print_figures(
            found, "target tokens", f"python, {ALONE}",
            {f"times a step of {consumed:,.0f} tokens/s": "{times_step:,.0f}"},
        )  # fmt: skip
        plans = planning(prepared.train, amounts["plan_pairs"], options.repeats)
    # Assumes that memory keeps up with more processes.
    many, least = CORES / 2 * slowest.get(APART, 0), slowest[ALONE] / consumed
    print(
        f"the slowest on one core makes {least:,.0f} times what a train step consumes; "
        f"two processes times {CORES // 2}, at their slowest: {many / 1e6:.1f}M "
        f"tokens/s on {CORES} cores (extrapolated)"
    )
    return {
        **amounts, "step_rate": consumed, "rates": found, "planning": plans,
        "least_times_step": least, f"extrapolated_to_{CORES}_cores": many,
    }  # fmt: skip


main = functools.partial(
    harness.run, __doc__, measure, repeats=(5, 1), subword_sampling=0.0
)


if __name__ == "__main__":
    sys.exit(main())
