"""Prepare, train on, stop, resume and evaluate a corpus of many pairs.

    python benchmarks/large_corpus.py [--text=STEM] [--pairs=20_000_000] [--quick]

The pairs are those of STEM.en and STEM.de, or built-in ones, again and again with a
number at the end of both sides, so that no pair occurs twice. Each step is a command of
its own. Memory is the largest that the main process and each other process had; files
that are mapped count as far as they are in memory.
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from benchmarks.watched import Process
from jaxformer.configs import demo
from jaxformer.data.sources import read_pairs
from jaxformer.data_config import DataConfig
from jaxformer.progress import track

VOCABULARY = 16_000
SMALL = ("--config.model.d_model=64", "--config.model.d_ff=128")
UPDATES = 60  # of a training that is killed halfway


def write_text(folder: Path, stem: Path | None, count: int) -> None:
    data = demo.get_config().data.to_dict() | {"builtin_pairs": min(count, 200_000)}
    if stem is not None:
        data |= {"corpus": "directory", "directory": str(stem.parent)}
        data |= {"train": stem.name, "source_language": "en", "target_language": "de"}
    pairs = list(islice(read_pairs(DataConfig(**data), "train"), count))
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
            found[what] = {"seconds": seconds, **process.gigabytes()}
            rows.append(
                f"{what} | {seconds:.1f} | {found[what]['main']:.2f} | "
                f"{found[what]['largest other']:.2f}"
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
    columns = "step | seconds | main process, GB | largest other process, GB"
    harness.print_table(columns, rows)
    return found


main = functools.partial(
    harness.run, __doc__, measure, quick=False, text=None, pairs=20_000_000
)


if __name__ == "__main__":
    sys.exit(main())
