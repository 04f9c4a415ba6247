"""Time preparing text beside what others use for the same work.

    python benchmarks/prepare.py [--text=STEM] [--join=1] [--pairs=1_000_000] [--quick]

The pairs are those of benchmarks/large_corpus.py; `--join=N` joins N pairs into one.
All use one vocabulary of 16,000 and all cores, and read the same plain files:

- "jaxformer" is --mode=prepare of text with a tokeniser: it reads the text twice,
  drops duplicates and pairs of wrong lengths, and writes ids and checksums.
- "SentencePiece" reads and encodes both sides in blocks, and drops the ids.
- "datasets" maps the pairs with Hugging Face's `tokenizers` and writes Arrow files, if
  both are installed; its BPE vocabulary is trained on the same sentences.

Each runs in a process of its own; memory is the most that it had, without that of the
processes which it starts.
"""

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import harness
from benchmarks.large_corpus import write_text
from benchmarks.watched import Process
from jaxformer.config.data import DataConfig
from jaxformer.configs import demo
from jaxformer.corpus.preparation import prepare
from jaxformer.text import sources
from jaxformer.text.sources import in_chunks, read_pairs
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import VocabularySamples

VOCABULARY, SAMPLE = 16_000, 200_000  # ids, and sentences that train them
QUICK = 20_000  # pairs with --quick
BLOCK = 20_000  # lines of each side that SentencePiece encodes at a time
FAST = "fast.json"  # the vocabulary of Hugging Face's tokenizers


def config_of(folder: Path) -> DataConfig:
    data = demo.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(folder), "train": "train",
        "dev": "dev", "vocab_size": VOCABULARY, "vocab_sentences": SAMPLE,
        "source_language": "en", "target_language": "de", "max_length": 256,
    }  # fmt: skip
    return DataConfig(**data)


def run_jaxformer(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
        prepare(config_of(folder), Path(workdir), tokenizer=tokenizer)


def run_sentencepiece(folder: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for language in ("en", "de"):
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
        columns, cores = ["en", "de"], len(os.sched_getaffinity(0))
        text.map(encode, batched=True, remove_columns=columns, num_proc=cores)


RUN = {
    "jaxformer": run_jaxformer, "SentencePiece": run_sentencepiece,
    "datasets": run_datasets,
}  # fmt: skip


def train_fast(folder: Path) -> None:
    """Train a vocabulary for Hugging Face's tokenizers."""
    from tokenizers import SentencePieceBPETokenizer

    fast = SentencePieceBPETokenizer()
    sides = [(folder / f"train.{side}").open() for side in ("en", "de")]
    with sides[0], sides[1]:
        lines = islice(chain.from_iterable(zip(*sides, strict=True)), SAMPLE)
        fast.train_from_iterator(lines, VOCABULARY, show_progress=False)
    fast.save(str(folder / FAST))


def measure(options: argparse.Namespace) -> dict:
    if options.turn:
        RUN[options.turn](options.folder)
        return {}
    who = list(RUN) if harness.has("datasets", "tokenizers") else list(RUN)[:2]
    with tempfile.TemporaryDirectory(prefix="jaxformer-prepare-") as name:
        folder = Path(name)
        count = QUICK if options.quick else options.pairs
        write_text(folder, options.text, count, options.join)
        samples = VocabularySamples(config_of(folder))
        chunks = in_chunks(read_pairs(config_of(folder), "train"))
        for number, pairs in enumerate(chunks):
            samples.add(number * sources.CHUNK, pairs, "")
        tokenizer = samples.train()
        (folder / "tokenizer.model").write_bytes(tokenizer.content)
        if "datasets" in who:
            train_fast(folder)
        memory: dict[str, float] = {}

        def run(name: str) -> None:
            command = [sys.executable, __file__, f"--turn={name}", f"--folder={folder}"]
            process = Process(command)
            process.wait()
            memory[name] = max(1000 * process.gigabytes()["main"], memory.get(name, 0))

        turns = {name: functools.partial(run, name) for name in who}
        rounds = harness.take_turns(turns, options.repeats)
    found = harness.figures(rounds, dict.fromkeys(who, count), "SentencePiece")
    for name, each in found.items():
        each["megabytes"] = memory[name]
    label = f"{count:,} pairs"
    harness.print_figures(
        {label: found}, "pairs", "SentencePiece", {"MB": "{megabytes:,.0f}"}
    )
    return {"pairs": count, "found": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), text=None, join=1, pairs=1_000_000,
    turn="", folder=None,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
