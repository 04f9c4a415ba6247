"""Measure seconds from a command to its first update and to its first translation.

    python benchmarks/startup.py [--quick] [--repeats=3]

The commands are started as a user starts them, for the demo's model and text, cold
(nothing compiled is kept) and warm (after a cold run). Cold and warm take turns. The
loss of the first update must be the same, cold and warm.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import harness
from jaxformer.training.log import read_metrics

SENTENCE = "Yesterday the teacher gave the children two old books.\n"
CONFIG = {
    "data.builtin_pairs": 2000, "data.builtin_eval_pairs": 2, "data.vocab_size": 500,
    "training.steps": 1, "training.log_every": 1, "training.eval_every": 1,
    "training.save_every": 1, "training.keep": 1, "training.average": 1,
    "batches.executor": "python", "decoding.beam_size": 1,
}  # fmt: skip


def run(mode: str, workdir: Path, cache: Path, until: str | None = None) -> None:
    """Run a command; with `until`, kill it after the first line that begins so.

    Lines are those of both streams, those of `translate` of stdout alone. Raises
    RuntimeError if the command fails or ends before that line.
    """
    config, streams = CONFIG, dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    if mode == "translate":
        config = {}
    else:
        streams["stderr"] = subprocess.STDOUT
    flags, kept = [f"--mode={mode}", f"--workdir={workdir}"], {"XDG_CACHE_HOME": cache}
    process = harness.start_command(flags, config, kept, text=True, **streams)
    if mode == "translate":
        process.stdin.write(SENTENCE)
        process.stdin.flush()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until is not None and line.startswith(until):
            process.kill()
            break
    else:
        if process.wait() or until is not None:
            raise RuntimeError("".join(lines))
    process.communicate()


def measure(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory(prefix="jaxformer-startup-") as name:
        folder, losses, found = Path(name), [], {}
        run("prepare", folder / "text", folder / "first")
        shutil.copytree(folder / "text", folder / "trained")
        run("train", folder / "trained", folder / "first")

        def turn(what: str, *, is_cold: bool) -> None:
            if is_cold:
                shutil.rmtree(folder / what, ignore_errors=True)
            if what == "translation":
                run("translate", folder / "trained", folder / what, "")
                return
            workdir = folder / "training"
            shutil.rmtree(workdir, ignore_errors=True)
            shutil.copytree(folder / "text", workdir)
            run("train", workdir, folder / what, "step 1/")
            losses.append(read_metrics(workdir)[0]["loss"])

        for what in ("update", "translation"):
            turns = {
                name: functools.partial(turn, what, is_cold=name == "cold")
                for name in ("cold", "warm")
            }
            rounds = harness.take_turns(turns, options.repeats)
            found[what] = harness.figures(rounds, dict.fromkeys(turns, 1), "cold")
    if len(set(losses)) > 1:
        raise RuntimeError(f"the first losses differ: {losses}")
    harness.print_figures(found, "starts", "cold", {})
    return {"starts": {**found, "first_loss": losses[0]}}


main = functools.partial(harness.run, __doc__, measure, repeats=(3, 1))


if __name__ == "__main__":
    sys.exit(main())
