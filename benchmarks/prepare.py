"""Time preparing text beside SentencePiece alone.

    python benchmarks/prepare.py [--text=STEM] [--join=1] [--pairs=1_000_000] [--quick]

The pairs are those of STEM.en and STEM.de, or built-in ones, again and again with a
number at the end of both sides, so that no pair occurs twice; `--join=N` joins N pairs
into one. Both use one vocabulary of 16,000 and all cores, and read the same files:

- "jaxformer" is --mode=prepare of text with a tokeniser: it reads the text twice,
  drops duplicates and pairs of wrong lengths, and writes ids and checksums.
- "SentencePiece" reads and encodes both sides in blocks, and drops the ids.

Each turn is a process of its own; memory is the most that any of these had, without
that of the processes which it starts.
"""

import argparse
import functools
import multiprocessing
import os
import resource
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import harness
from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.corpus.preparation import prepare
from jaxformer.text.sources import read_pairs
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import train_tokenizer

VOCABULARY, SAMPLE = 16_000, 100_000  # ids, and pairs that train them
QUICK = 20_000  # pairs with --quick
BLOCK = 20_000  # lines of each side that SentencePiece encodes at a time
LANGUAGES = "en", "de"


def config_of(stem: Path) -> DataConfig:
    """The config of the text STEM.en and STEM.de."""
    data = demo.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(stem.parent), "train": stem.name,
        "dev": "dev", "vocab_size": VOCABULARY, "max_length": 256,
        "source_language": "en", "target_language": "de",
    }  # fmt: skip
    return DataConfig(**data)


def write_text(folder: Path, stem: Path | None, count: int, join: int) -> None:
    """Write `count` pairs, each of `join` pairs of the text, and 100 of dev."""
    config = config_of(stem) if stem else DataConfig(**demo.get_config().data)
    read = read_pairs(config, "train")
    joined = iter(lambda: list(islice(read, join)), [])
    pairs = [
        tuple(map(" ".join, zip(*each, strict=True))) for each in islice(joined, count)
    ]
    for side, language in enumerate(LANGUAGES):
        with (folder / f"train.{language}").open("w") as file:
            for number in range(count):
                file.write(f"{pairs[number % len(pairs)][side]} {number}\n")
        lines = [f"{pair[side]}\n" for pair in pairs[:100]]
        (folder / f"dev.{language}").write_text("".join(lines))


def run_jaxformer(folder: Path, model: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        tokenizer = Tokenizer.load(model)
        prepare(config_of(folder / "train"), Path(workdir), tokenizer=tokenizer)


def run_sentencepiece(folder: Path, model: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(model))
    for language in LANGUAGES:
        with (folder / f"train.{language}").open() as file:
            while lines := list(islice(file, BLOCK)):
                processor.encode(lines, num_threads=len(os.sched_getaffinity(0)))


RUN = {"jaxformer": run_jaxformer, "SentencePiece": run_sentencepiece}


def memory_of(name: str, folder: Path, model: Path) -> int:
    """Run a contestant; returns the most memory of this process, in megabytes."""
    RUN[name](folder, model)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(options: argparse.Namespace) -> dict:
    count = QUICK if options.quick else options.pairs
    spawn, memory = multiprocessing.get_context("spawn"), dict.fromkeys(RUN, 0)
    with tempfile.TemporaryDirectory(prefix="jaxformer-prepare-") as name:
        folder, model = Path(name), Path(name, "tokenizer.model")
        write_text(folder, options.text, count, options.join)
        config = config_of(folder / "train")
        sample = islice(read_pairs(config, "train"), SAMPLE)
        lines = list(chain.from_iterable(sample))
        model.write_bytes(train_tokenizer(lines, config).content)

        def run(name: str) -> None:
            with ProcessPoolExecutor(1, spawn) as process:
                used = process.submit(memory_of, name, folder, model).result()
            memory[name] = max(memory[name], used)

        turns = {name: functools.partial(run, name) for name in RUN}
        rounds = harness.take_turns(turns, options.repeats)
    found = harness.figures(rounds, dict.fromkeys(RUN, count), "SentencePiece")
    for name, each in found.items():
        each["megabytes"] = memory[name]
    label, columns = f"{count:,} pairs", {"MB": "{megabytes:,.0f}"}
    harness.print_figures({label: found}, "pairs", "SentencePiece", columns)
    return {"pairs": count, "found": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), text=None, join=1, pairs=1_000_000
)


if __name__ == "__main__":
    sys.exit(main())
