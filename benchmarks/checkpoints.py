"""Flip bits of checkpoints and metrics, and time what their checksums cost.

    python benchmarks/checkpoints.py [--flips=500] [--seed=0] [--megabytes=1024]

Flips single bits, one at a time, all over the files of a small run's newest checkpoint
and its metrics.jsonl, and reads them as every command does: `found` is refused by name,
`harmless` gives the right numbers, `silent` gives others, and `traceback` is any other
error. Then saves a state of that many megabytes with and without checksums, and reads
its parameters. The exit code is 0 only if nothing was silent or a traceback.
"""

import argparse
import collections
import functools
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks import harness
from jaxformer.errors import InputError
from jaxformer.training import checkpoint_files
from jaxformer.training.checkpoint import Checkpoints
from jaxformer.training.log import MetricsLog, read_metrics

OUTCOMES = ("found", "harmless", "silent", "traceback")
PLAIN = "save without checksums"


def draw_state(megabytes: float) -> dict:
    rows = max(1, round(megabytes / 16))
    keys = jax.random.split(jax.random.key(0), rows)
    columns = round(megabytes * 2**18 / rows)
    state = {f"w{row}": jax.random.normal(key, columns) for row, key in enumerate(keys)}
    return jax.block_until_ready({"params": state})


def save(folder: Path, state: dict) -> None:
    with Checkpoints(folder, keep=2, scores={}) as checkpoints:
        checkpoints.save(1, state)


def read(workdir: Path) -> tuple:
    """Return all that the readers of a run get, by value."""
    reader = Checkpoints(workdir / "checkpoints", keep=None, scores={})
    params = reader.restore_parameters(None)
    return {k: v.tobytes() for k, v in params.items()}, read_metrics(workdir)


def outcome_of(workdir: Path, expected: tuple) -> str:
    """Read a run with a flipped bit; return what came of it."""
    with mock.patch.object(logging.Logger, "warning") as warning:
        try:
            params, lines = read(workdir)
        except InputError as error:
            return "found" if " is damaged (" in str(error) else "traceback"
        except Exception:
            return "traceback"
    if (params, lines) == expected:
        return "harmless"
    lost_lines = params == expected[0] and all(line in expected[1] for line in lines)
    return "found" if lost_lines and warning.called else "silent"


def flip(options: argparse.Namespace, workdir: Path) -> dict[str, dict[str, int]]:
    """Return how often each outcome was seen, by file."""
    save(workdir / "checkpoints", draw_state(1))
    sums = {"loss": 3.0, "nll": 2.0, "correct": 5.0, "tokens": 10.0}
    with MetricsLog(workdir, start_step=0, total_steps=9) as log:
        for step in range(1, 6):
            log.train(step, sums, learning_rate=0.1 / step)
            log.record(step, "eval", {"bleu": 30.0 + step, "direction": "en-de"})
    expected, draw = read(workdir), random.Random(options.seed)
    files = sorted(path for path in workdir.glob("checkpoints/**/*") if path.is_file())
    files += [workdir / "metrics.jsonl"] * (len(files) // 4)
    found = collections.defaultdict(collections.Counter)
    for _ in range(options.flips):
        file = draw.choice(files)
        content = file.read_bytes()
        bit = draw.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        name = file.relative_to(workdir).as_posix()
        found[name][outcome_of(workdir, expected)] += 1
        file.write_bytes(content)
    return found


def time_checksums(options: argparse.Namespace, workdir: Path) -> harness.Figures:
    """Time saves, alternately with and without checksums, and reads."""
    state, folder = draw_state(options.megabytes), workdir / "large"
    reader = Checkpoints(folder, keep=None, scores={})

    def save_without() -> None:
        with mock.patch.object(checkpoint_files, "write_checksums"):
            save(folder, state)

    turns = {
        PLAIN: save_without,
        "save": lambda: save(folder, state),
        "verify": lambda: checkpoint_files.find_damage(folder / "1"),
        "open": lambda: reader.restore_parameters(1),
    }
    rounds = harness.take_turns(turns, options.repeats)
    amounts = dict.fromkeys(turns, options.megabytes)
    return harness.figures(rounds, amounts, PLAIN)


def measure(options: argparse.Namespace) -> dict:
    workdir = Path(tempfile.mkdtemp())
    try:
        found = flip(options, workdir)
        timed = time_checksums(options, workdir)
    finally:
        shutil.rmtree(workdir)
    rows = [
        " | ".join([name, *(str(counts[kind]) for kind in OUTCOMES)])
        for name, counts in sorted(found.items())
    ]
    harness.print_table(" | ".join(["file", *OUTCOMES]), rows)
    label = f"{options.megabytes} MB"
    harness.print_figures({label: timed}, "MB", PLAIN, {})
    total = sum(found.values(), collections.Counter())
    return {
        **{kind: total[kind] for kind in OUTCOMES},
        "seconds": {name: each["seconds"] for name, each in timed.items()},
        "holds": not total["silent"] + total["traceback"],
    }


main = functools.partial(
    harness.run, __doc__, measure, repeats=(7, 2), flips=500, seed=0, megabytes=1024
)


if __name__ == "__main__":
    sys.exit(main())
