"""Measure seconds from a command to its first update and to its first translation.

    python benchmarks/startup.py [--quick] [--repeats=3]
        [--multi30k=data/multi30k [--workdir=runs/demo]]

The commands are started as a user starts them, for the demo's model and text, cold
(nothing compiled is kept) and warm (after a cold run). Cold and warm take turns. The
loss of the first update must be the same, cold and warm. With --multi30k also the first
update of configs/multi30k.py is measured, with the preparation of this text; and with
--workdir whole commands that translate one of its captions, or 1,000, with this run.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import harness
from jaxformer.system.errors import InputError
from jaxformer.text.lines import read_lines

Start = Callable[[Path], None]  # takes the folder of compiled programs

SENTENCE = "Yesterday the teacher gave the children two old books."
CONFIG = {
    "data.train": 2000, "data.dev": 2, "data.test": 2, "data.vocab_size": 500,
    "training.steps": 1, "training.log_every": 1, "training.eval_every": 1,
    "training.save_every": 1, "training.keep": 1, "training.average": 1,
    "batches.executor": "python", "decoding.beam_size": 1,
}  # fmt: skip


def run(
    mode: str,
    workdir: Path,
    cache: Path,
    until: str | None = None,
    *,
    config: dict = CONFIG,
    file: str = "demo",
) -> str:
    """Run `prepare` or `train`, and return what it printed.

    With `until`, it is killed after a line that begins so, and this line is returned.
    `config` and `file` are as for `start_command`. Raises RuntimeError if the command
    fails or ends before that line.
    """
    flags, kept = [f"--mode={mode}", f"--workdir={workdir}"], {"XDG_CACHE_HOME": cache}
    process = harness.start_command(
        flags, config, kept, file=file, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until is not None and line.startswith(until):
            process.kill()
            process.communicate()
            return line
    if process.wait() or until is not None:
        raise RuntimeError("".join(lines))
    return "".join(lines)


def translate(workdir: Path, cache: Path, lines: Sequence[str]) -> None:
    """Translate lines; raises RuntimeError if the command fails or leaves out lines."""
    streams = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    flags, kept = (
        ["--mode=translate", f"--workdir={workdir}"],
        {"XDG_CACHE_HOME": cache},
    )
    process = harness.start_command(flags, {}, kept, text=True, **streams)
    output, _ = process.communicate("".join(f"{line}\n" for line in lines))
    if process.returncode or output.count("\n") != len(lines):
        raise RuntimeError(f"translate ended with code {process.returncode}: {output}")


def starts(options: argparse.Namespace, folder: Path) -> dict[str, Start]:
    """Make what is measured, by name; each is called with a folder of programs."""
    training, losses = folder / "training", set()

    def first_update(cache: Path) -> None:
        shutil.rmtree(training, ignore_errors=True)
        shutil.copytree(folder / "text", training)
        line = run("train", training, cache, "step 1/")
        losses.add(line.partition(",")[0])
        if len(losses) > 1:
            raise RuntimeError(f"the first losses differ: {losses}")

    def of_multi30k(cache: Path) -> None:
        shutil.rmtree(training, ignore_errors=True)
        text = options.multi30k.absolute()
        config = {"data.directory": text, "training.log_every": 1}
        run("train", training, cache, "step 1/", config=config, file="multi30k")

    found: dict[str, Start] = {
        "first update": first_update,
        "first translation": functools.partial(
            translate, folder / "trained", lines=[SENTENCE]
        ),
    }
    if options.multi30k:
        found["text and first update of multi30k.py"] = of_multi30k
    if options.workdir:
        for count in (1, 1000):
            path = options.multi30k / "test_2016_flickr.en.gz"
            lines = [*islice(read_lines(path), count)]
            found[f"translate captions: {count:,}"] = functools.partial(
                translate, options.workdir.absolute(), lines=lines
            )
    return found


def measure(options: argparse.Namespace) -> dict:
    if options.workdir and not options.multi30k:
        raise InputError("--workdir translates the text of --multi30k; give both")
    with tempfile.TemporaryDirectory(prefix="jaxformer-startup-") as name:
        folder, found = Path(name), {}
        run("prepare", folder / "text", folder / "first")
        shutil.copytree(folder / "text", folder / "trained")
        run("train", folder / "trained", folder / "first")

        def turn(start: Start, *, is_cold: bool) -> None:
            if is_cold:
                shutil.rmtree(folder / "programs", ignore_errors=True)
            start(folder / "programs")

        for what, start in starts(options, folder).items():
            turns = {
                name: functools.partial(turn, start, is_cold=name == "cold")
                for name in ("cold", "warm")
            }
            rounds = harness.take_turns(turns, options.repeats)
            found[what] = harness.figures(rounds, dict.fromkeys(turns, 1), "cold")
    harness.print_figures(found, "starts", "cold", {})
    return {"starts": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), multi30k=None, workdir=None
)


if __name__ == "__main__":
    sys.exit(main())
