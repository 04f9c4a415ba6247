"""Prepare, train on, stop, resume and evaluate a corpus of many pairs.

    python benchmarks/large_corpus.py [--text=STEM] [--pairs=20_000_000] [--quick]

The pairs are those of STEM.en and STEM.de, or built-in ones, again and again with a
number at the end of both sides, so that no pair occurs twice. Each step is a command of
its own. Memory is the largest that the main process and each other process had; files
that are mapped count as far as they are in memory.

Last, the corpus is dropped from the page cache, and this process makes batches of it:
target tokens a second of wall time and of processor time, checksums included. Ids of
less than 1 GiB are all read when the corpus is opened.
"""

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import harness
from benchmarks.pipeline import MICROBATCHES, plan_of
from benchmarks.watched import Process
from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.corpus.pipeline import updates
from jaxformer.corpus.prepared import open_prepared
from jaxformer.system.progress import track
from jaxformer.text.sources import read_pairs

VOCABULARY = 16_000
SMALL = ("--config.model.d_model=64", "--config.model.d_ff=128")
UPDATES = 60  # of a training that is killed halfway
BATCHES = 1000  # with the corpus on disk, and as many after them


def write_text(folder: Path, stem: Path | None, count: int, join: int = 1) -> None:
    """Write `count` pairs, each of `join` pairs of the text, and 100 of dev."""
    data = demo.get_config().data.to_dict() | {"train": str(min(count, 200_000))}
    if stem is not None:
        data |= {"corpus": "directory", "directory": str(stem.parent)}
        data |= {"train": stem.name, "source_language": "en", "target_language": "de"}
    read = read_pairs(DataConfig(**data), "train")
    joined = iter(lambda: list(islice(read, join)), [])
    pairs = [
        tuple(map(" ".join, zip(*each, strict=True))) for each in islice(joined, count)
    ]
    with (folder / "train.en").open("w") as en, (folder / "train.de").open("w") as de:
        for number in track(range(count), "writing", unit="pairs"):
            source, target = pairs[number % len(pairs)]
            en.write(f"{source} {number}\n")
            de.write(f"{target} {number}\n")
    for side, language in enumerate(("en", "de")):
        lines = [f"{pair[side]}\n" for pair in pairs[:100]]
        (folder / f"dev.{language}").write_text("".join(lines))


def size_of(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def batches_from_disk(workdir: Path) -> tuple[float, list[dict[str, float]]]:
    """Time opening the corpus; the rates of its first batches, and of further ones."""
    for file in (workdir / "corpus").rglob("*.npy"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    train = open_prepared(workdir).train
    opened = time.perf_counter() - start
    plan = plan_of(train, "packed", MICROBATCHES[-1])
    batches, found = updates(train, plan, seed=0, start=0, executor="python"), []
    for _ in range(2):
        wall, cores, tokens = time.perf_counter(), time.process_time(), 0
        for (batch,) in islice(batches, BATCHES):
            tokens += int(np.count_nonzero(batch.target_segments))
        wall, cores = time.perf_counter() - wall, time.process_time() - cores
        found.append({"tokens/s": tokens / wall, "a core": tokens / cores})
    return opened, found


def measure(options: argparse.Namespace) -> dict:
    count = 50_000 if options.quick else options.pairs
    found, rows = {"pairs": count}, []
    with tempfile.TemporaryDirectory(prefix="jaxformer-large-") as name:
        folder = Path(name)
        write_text(folder, options.text, count)
        run, checkpoints = folder / "run", folder / "run" / "checkpoints"
        flags = [
            f"--workdir={run}", "--config=demo", "--config.data.corpus=directory",
            f"--config.data.directory={folder}", "--config.data.train=train",
            "--config.data.dev=dev", "--config.data.test=dev",
            f"--config.data.vocab_size={VOCABULARY}",
            "--config.data.vocab_sentences=1000000", "--config.training.save_every=10",
            "--config.training.eval_every=1000000", *SMALL,
        ]  # fmt: skip

        def step(what: str, *given: str, until: Callable[[], bool] | None = None):
            command = [sys.executable, "-m", "jaxformer.main", *given, *flags]
            process = Process(command)
            seconds = process.wait(*([until] if until else []))
            used = process.gigabytes(), process.core_seconds()
            found[what] = {"seconds": seconds, "gigabytes": used[0], "cores": used[1]}
            most, others = used[0].values()
            rows.append(
                f"{what} | {seconds:.1f} | {most:.2f} | {others:.2f} | "
                f"{used[1]['main']:.0f} | {used[1]['others']:.0f}"
            )

        def is_halfway() -> bool:
            return (checkpoints / str(UPDATES // 2)).exists()

        step("prepare", "--mode=prepare")
        found["text bytes a pair"] = size_of(folder) / count
        found["corpus bytes a pair"] = size_of(run / "corpus") / count
        found["text bytes a pair"] -= found["corpus bytes a pair"]
        step("first update", "--config.training.steps=1")
        more = f"--config.training.steps={UPDATES}"
        step("to the kill", more, until=is_halfway)
        step("resumed", more)
        step("evaluate", "--mode=evaluate")
        found["opened"], found["batches"] = batches_from_disk(run)
    columns = (
        "step | seconds | main process, GB | largest other process, GB | seconds of a "
        "core, main process | all others"
    )
    rows.append(f"opening the corpus from disk | {found['opened']:.2f} | | | | ")
    harness.print_table(columns, rows)
    lines = [
        f"{which} {BATCHES:,} | {each['tokens/s']:,.0f} | {each['a core']:,.0f}"
        for which, each in zip(("first", "next"), found["batches"], strict=True)
    ]
    head = (
        f"batches of {MICROBATCHES[-1]:,} tokens | target tokens/s | a second of a core"
    )
    harness.print_table(head, lines)
    return found


main = functools.partial(
    harness.run, __doc__, measure, quick=False, text=None, pairs=20_000_000
)


if __name__ == "__main__":
    sys.exit(main())
