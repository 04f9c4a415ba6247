"""Seconds from a command to its first update and to its first translation.

    python benchmarks/startup.py [--quick] [--repeats=3] [--shapes=8x32,8x64,16x64]

The commands are started as a user starts them, for the demo's model and text, cold
(nothing compiled is kept) and warm (by the cold run before). Cold and warm take turns.
The loss of the first update must be the same, cold and warm. Then, for the layers of
the base model, what compiling them costs for each shape of a batch and how long a step
takes: unrolled, as training has them, and as a loop. The last line is JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks.harness import figures, machine, print_table, take_turns
from benchmarks.stacks import config_of, gradients_of, scanned, unrolled
from jaxformer.training.log import METRICS_FILE

ROOT = Path(__file__).resolve().parents[1]
REPEATS, QUICK_REPEATS = 3, 1
SHAPES, QUICK_SHAPES = "8x32,8x64,16x64", "4x32"
SENTENCE = "Yesterday the teacher gave the children two old books.\n"
PATIENCE = 600  # seconds
CONFIG = {
    "data.builtin_pairs": 2000, "data.builtin_eval_pairs": 2, "data.vocab_size": 500,
    "training.steps": 1, "training.log_every": 1, "training.eval_every": 1,
    "training.save_every": 1, "training.keep": 1, "training.average": 1,
    "batches.executor": "python", "decoding.beam_size": 1,
}  # fmt: skip


class Starts:
    """Commands started in turn; each has its workdir and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        """Prepare the text, and train one update for the translator."""
        self.folder, self.losses = folder, []
        self.flags = [f"--config.{key}={value}" for key, value in CONFIG.items()]
        self.flags.insert(0, "--config=configs/demo.py")
        self._run("--mode=prepare", folder / "text", cache="first")
        shutil.copytree(folder / "text", folder / "trained")
        self._run("--mode=train", folder / "trained", cache="first")

    def _start(self, mode: str, workdir: Path, cache: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "jaxformer.main", mode]
        command.append(f"--workdir={workdir}")
        if mode != "--mode=translate":
            command += self.flags
        environment = {
            k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"
        }
        return subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment | {"XDG_CACHE_HOME": str(self.folder / cache)},
        )  # fmt: skip

    def _run(self, mode: str, workdir: Path, cache: str) -> None:
        process = self._start(mode, workdir, cache)
        _, errors = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError(errors)

    def update(self, *, is_cold: bool) -> None:
        """Train until the first update is reported."""
        workdir = self.folder / "training"
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(self.folder / "text", workdir)
        if is_cold:
            shutil.rmtree(self.folder / "update", ignore_errors=True)
        process = self._start("--mode=train", workdir, "update")
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step 1/"):
                break
        process.kill()
        process.communicate()
        if not said or not said[-1].startswith("step 1/"):
            raise RuntimeError("".join(said))
        first = json.loads((workdir / METRICS_FILE).read_text().splitlines()[0])
        self.losses.append(first["loss"])

    def translation(self, *, is_cold: bool) -> None:
        """Translate until the first line is there."""
        if is_cold:
            shutil.rmtree(self.folder / "translation", ignore_errors=True)
        workdir = self.folder / "trained"
        process = self._start("--mode=translate", workdir, "translation")
        process.stdin.write(SENTENCE)
        process.stdin.flush()
        line = process.stdout.readline()
        process.kill()
        _, errors = process.communicate()
        if not line.endswith("\n"):
            raise RuntimeError(errors)


def starts(options: argparse.Namespace, folder: Path) -> dict:
    """Seconds of each command, cold and warm."""
    commands = Starts(folder)
    found: dict = {}
    for name in ("update", "translation"):
        command = getattr(commands, name)
        turns = {
            "cold": lambda command=command: command(is_cold=True),
            "warm": lambda command=command: command(is_cold=False),
        }
        rounds = take_turns(turns, options.repeats)
        found[name] = {each: figures(rounds, each, 1, beside="cold") for each in turns}
    if len(set(commands.losses)) > 1:
        raise RuntimeError(f"the first losses differ: {commands.losses}")
    found["first_loss"] = commands.losses[0]
    return found


def stacks(options: argparse.Namespace) -> dict:
    """Seconds to compile and to run both kinds of stack, by shape."""
    jax.config.update("jax_enable_compilation_cache", False)
    found: dict = {}
    for shape in options.shapes.split(","):
        rows, length = map(int, shape.split("x"))
        turns, compiled = {}, {}
        for name, run in (("unrolled", unrolled), ("scanned", scanned)):
            function, arguments = gradients_of(
                run, config_of(
                    encoder_layers=options.layers, decoder_layers=options.layers,
                    d_model=options.d_model,
                ),
                rows, length,
            )  # fmt: skip
            lowered = function.lower(*arguments)
            start = time.perf_counter()
            program = lowered.compile()
            compiled[name] = time.perf_counter() - start
            turns[name] = lambda program=program, arguments=arguments: (
                jax.block_until_ready(program(*arguments))
            )
            turns[name]()  # not counted
        rounds = take_turns(turns, options.repeats)
        found[shape] = {
            name: {"compile_seconds": compiled[name]}
            | figures(rounds, name, rows * length, beside="unrolled")
            for name in turns
        }
    return found


def report(outcome: dict) -> None:
    """Print the tables and what follows from them."""
    rows = [
        f"| {what} | {name} | {each['seconds']:.1f} | {100 * each['spread']:.0f} % "
        f"| {each['ratio']:.2f} "
        f"({each['ratio_least']:.2f} - {each['ratio_most']:.2f}) |"
        for what in ("update", "translation")
        for name, each in outcome["starts"][what].items()
    ]
    print_table(("to the first", "", "s, median", "spread", "times cold"), rows)
    rows = [
        f"| {shape} | {name} | {each['compile_seconds']:.1f} | {each['seconds']:.3f} "
        f"| {100 * each['spread']:.0f} % | {each['ratio']:.2f} "
        f"({each['ratio_least']:.2f} - {each['ratio_most']:.2f}) |"
        for shape, found in outcome["stacks"].items()
        for name, each in found.items()
    ]
    header = (
        "rows x length", "layers", "s to compile", "s a step", "spread",
        "times unrolled",
    )  # fmt: skip
    print_table(header, rows)
    shapes = outcome["stacks"].values()
    saved = sum(
        each["unrolled"]["compile_seconds"] - each["scanned"]["compile_seconds"]
        for each in shapes
    )
    lost = statistics.median(
        each["scanned"]["seconds"] / each["unrolled"]["seconds"] - 1 for each in shapes
    )
    outcome["scan_saves_seconds"], outcome["scan_costs_share"] = saved, lost
    print(
        f"scanning saves {saved:.1f} s of compiling, once for all shapes; a step takes "
        f"{100 * lost:+.0f} %"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its outcome; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, one shape")
    parser.add_argument("--repeats", type=int, help=f"rounds, by default {REPEATS}")
    parser.add_argument("--shapes", help=f"rows x length, by default {SHAPES}")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--d_model", type=int, default=512)
    options = parser.parse_args(argv)
    if options.repeats is None:
        options.repeats = QUICK_REPEATS if options.quick else REPEATS
    if options.shapes is None:
        options.shapes = QUICK_SHAPES if options.quick else SHAPES
    outcome: dict = {"machine": machine(), "repeats": options.repeats}
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="jaxformer-startup-") as folder:
        outcome["starts"] = starts(options, Path(folder))
    outcome["stacks"] = stacks(options)
    report(outcome)
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
