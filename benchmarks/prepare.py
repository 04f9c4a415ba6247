"""Time preparing text beside what others use for the same work.

    python benchmarks/prepare.py [--text=STEM] [--join=1] [--pairs=1_000_000] [--quick]

The pairs are those of STEM.en and STEM.de, or built-in ones, again and again with a
number at the end of both sides, so that no pair occurs twice; `--join=N` joins N pairs
into one. All use one vocabulary of 16,000 and all cores, and read the same plain files:

- "jaxformer" is --mode=prepare of text with a tokeniser: it reads the text twice,
  drops duplicates and pairs of wrong lengths, and writes ids and checksums.
- "SentencePiece" reads and encodes both sides in blocks, and drops the ids.
- "datasets" maps the pairs with Hugging Face's `tokenizers` and writes Arrow files, if
  both are installed; its BPE vocabulary is trained on the same sentences.

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
from collections.abc import Iterator
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

VOCABULARY, SAMPLE = 16_000, 200_000  # ids, and sentences that train them
QUICK = 20_000  # pairs with --quick
BLOCK = 20_000  # lines of each side that SentencePiece encodes at a time
LANGUAGES = "en", "de"
FAST = "fast.json"  # the vocabulary of Hugging Face's tokenizers


def config_of(folder: Path, name: str = "train") -> DataConfig:
    """The config of the text `name` in a folder."""
    data = demo.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(folder), "train": name, "dev": "dev",
        "vocab_size": VOCABULARY, "vocab_sentences": SAMPLE, "max_length": 256,
        "source_language": "en", "target_language": "de",
    }  # fmt: skip
    return DataConfig(**data)


def write_text(folder: Path, stem: Path | None, count: int, join: int) -> None:
    """Write `count` pairs, each of `join` pairs of the text, and 100 of dev."""
    config = DataConfig(**demo.get_config().data)
    read = read_pairs(config_of(stem.parent, stem.name) if stem else config, "train")
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


def run_jaxformer(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
        prepare(config_of(folder), Path(workdir), tokenizer=tokenizer)


def run_sentencepiece(folder: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for language in LANGUAGES:
        with (folder / f"train.{language}").open() as file:
            while lines := list(islice(file, BLOCK)):
                processor.encode(lines, num_threads=len(os.sched_getaffinity(0)))


def run_datasets(folder: Path) -> None:
    import datasets
    import tokenizers

    fast = tokenizers.Tokenizer.from_file(str(folder / FAST))

    def records() -> Iterator[dict]:
        with (folder / "train.en").open() as en, (folder / "train.de").open() as de:
            for source, target in zip(en, de, strict=True):
                yield {"en": source, "de": target}

    def encode(batch: dict) -> dict:
        sides = {side: fast.encode_batch(texts) for side, texts in batch.items()}
        return {f"{side}_ids": [x.ids for x in found] for side, found in sides.items()}

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        text = datasets.Dataset.from_generator(records, cache_dir=cache)
        columns, cores = list(LANGUAGES), len(os.sched_getaffinity(0))
        text.map(encode, batched=True, remove_columns=columns, num_proc=cores)


RUN = {
    "jaxformer": run_jaxformer, "SentencePiece": run_sentencepiece,
    "datasets": run_datasets,
}  # fmt: skip


def memory_of(name: str, folder: Path) -> int:
    """Run a contestant; returns the most memory of this process, in megabytes."""
    RUN[name](folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def train_vocabularies(folder: Path, with_fast: bool) -> None:
    """Train SentencePiece's vocabulary, and that of Hugging Face's tokenizers."""
    pairs = islice(read_pairs(config_of(folder), "train"), SAMPLE // 2)
    lines = list(chain.from_iterable(pairs))
    trained = train_tokenizer(lines, config_of(folder))
    (folder / "tokenizer.model").write_bytes(trained.content)
    if with_fast:
        from tokenizers import SentencePieceBPETokenizer

        fast = SentencePieceBPETokenizer()
        fast.train_from_iterator(lines, VOCABULARY, show_progress=False)
        fast.save(str(folder / FAST))


def measure(options: argparse.Namespace) -> dict:
    who = list(RUN) if harness.has("datasets", "tokenizers") else list(RUN)[:2]
    count = QUICK if options.quick else options.pairs
    spawn, memory = multiprocessing.get_context("spawn"), dict.fromkeys(who, 0)
    with tempfile.TemporaryDirectory(prefix="jaxformer-prepare-") as name:
        folder = Path(name)
        write_text(folder, options.text, count, options.join)
        train_vocabularies(folder, "datasets" in who)

        def run(name: str) -> None:
            with ProcessPoolExecutor(1, spawn) as process:
                used = process.submit(memory_of, name, folder).result()
            memory[name] = max(memory[name], used)

        turns = {name: functools.partial(run, name) for name in who}
        rounds = harness.take_turns(turns, options.repeats)
    found = harness.figures(rounds, dict.fromkeys(who, count), "SentencePiece")
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
