"""Prepare, train on, stop, resume and evaluate a corpus of many pairs.

    python benchmarks/large_corpus.py [--text=STEM] [--pairs=20_000_000] [--quick]

The pairs are those of STEM.en and STEM.de, or built-in ones, again and again with a
number at the end of both sides, so that no pair occurs twice. Each step is a command of
its own. Memory is the largest that the main process and each other process had; files
that are mapped count as far as they are in memory.
"""

import argparse
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
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


class Process:
    """A command, with the most memory of each of its processes."""

    def __init__(self, *arguments: str) -> None:
        self.start = time.perf_counter()
        self.memory: dict[int, int] = {}  # kibibytes by process id
        command = [sys.executable, "-m", "jaxformer.main", *arguments]
        self.process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL
        )

    def look(self) -> None:
        """Read the memory of all processes of the command."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                pid = int(folder.name)
                if os.getsid(pid) == self.process.pid:
                    lines = (folder / "status").read_text().splitlines()
                    (most,) = (line for line in lines if line.startswith("VmHWM"))
                    self.memory[pid] = int(most.split()[1])
            except (OSError, ValueError):  # it has ended
                continue

    def wait(self, until: Callable[[], bool] = lambda: False) -> float:
        """Return the seconds to the end, or `until` something is so; then kill it."""
        while self.process.poll() is None:
            self.look()
            if until():
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                return time.perf_counter() - self.start
            time.sleep(0.1)
        if self.process.returncode:
            raise SystemExit(f"a command ended with code {self.process.returncode}")
        return time.perf_counter() - self.start

    def gigabytes(self) -> dict[str, float]:
        others = [size for pid, size in self.memory.items() if pid != self.process.pid]
        main = self.memory.get(self.process.pid, 0)
        return {"main": main / 1e6, "largest other": max(others, default=0) / 1e6}


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
            process = Process(*given, *flags)
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
