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

DEMO = ("--config=configs/demo.py",)
SENTENCE = "Yesterday the teacher gave the children two old books."
CONFIG = {
    "data.train": 2000, "data.dev": 2, "data.test": 2, "data.vocab_size": 500,
    "training.steps": 1, "training.log_every": 1, "training.eval_every": 1,
    "training.save_every": 1, "training.keep": 1, "training.average": 1,
    "batches.executor": "python", "decoding.beam_size": 1,
}  # fmt: skip


def run(flags: Sequence[str], config: dict, cache: Path, until: str = "") -> str:
    """Run a command to its end, or until it prints a line that begins with `until`.

    Returns this line. Raises RuntimeError if the command fails or ends before.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = harness.start_command(flags, config, {"XDG_CACHE_HOME": cache}, **streams)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until and line.startswith(until):
            process.kill()
            process.communicate()
            return line
    if process.wait() or until:
        raise RuntimeError("".join(lines))
    return ""


def translate(workdir: Path, cache: Path, lines: Sequence[str]) -> None:
    """Translate lines; raises RuntimeError if the command fails or leaves out lines."""
    flags = ["--mode=translate", f"--workdir={workdir}"]
    streams = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    process = harness.start_command(flags, {}, {"XDG_CACHE_HOME": cache}, **streams)
    output, _ = process.communicate("".join(f"{line}\n" for line in lines))
    if process.returncode or output.count("\n") != len(lines):
        raise RuntimeError(f"translate ended with code {process.returncode}: {output}")


def starts(options: argparse.Namespace, folder: Path) -> dict[str, Start]:
    """Make what is measured, by name; each is called with a folder of programs."""
    training, losses = folder / "training", set()

    def first_update(cache: Path) -> None:
        shutil.rmtree(training, ignore_errors=True)
        shutil.copytree(folder / "text", training)
        line = run([*DEMO, f"--workdir={training}"], CONFIG, cache, "step 1/")
        losses.add(line.partition(",")[0])
        if len(losses) > 1:
            raise RuntimeError(f"the first losses differ: {losses}")

    def of_multi30k(cache: Path) -> None:
        shutil.rmtree(training, ignore_errors=True)
        flags = ["--config=configs/multi30k.py", f"--workdir={training}"]
        text = options.multi30k.absolute()
        config = {"data.directory": text, "training.log_every": 1}
        run(flags, config, cache, "step 1/")

    found: dict[str, Start] = {"first update": first_update}
    found["first translation"] = lambda cache: translate(
        folder / "trained", cache, [SENTENCE]
    )
    if options.multi30k:
        found["text and first update of multi30k.py"] = of_multi30k
    for count in (1, 1000) if options.workdir else ():
        captions = read_lines(options.multi30k / "test_2016_flickr.en.gz")
        lines = [*islice(captions, count)]
        found[f"translate captions: {count:,}"] = lambda cache, lines=lines: translate(
            options.workdir.absolute(), cache, lines
        )
    return found


def measure(options: argparse.Namespace) -> dict:
    if options.workdir and not options.multi30k:
        raise InputError("--workdir translates the text of --multi30k; give both")
    with tempfile.TemporaryDirectory(prefix="jaxformer-startup-") as name:
        folder, found = Path(name), {}
        programs, text, trained = (
            folder / each for each in ("programs", "text", "trained")
        )
        run([*DEMO, "--mode=prepare", f"--workdir={text}"], CONFIG, folder / "first")
        shutil.copytree(text, trained)
        run([*DEMO, f"--workdir={trained}"], CONFIG, folder / "first")
        for what, start in starts(options, folder).items():

            def cold(start: Start = start) -> None:
                shutil.rmtree(programs, ignore_errors=True)
                start(programs)

            turns = {"cold": cold, "warm": functools.partial(start, programs)}
            rounds = harness.take_turns(turns, options.repeats)
            found[what] = harness.figures(rounds, dict.fromkeys(turns, 1), "cold")
    harness.print_figures(found, "starts", "cold", {})
    return {"starts": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(3, 1), multi30k=None, workdir=None
)


if __name__ == "__main__":
    sys.exit(main())
