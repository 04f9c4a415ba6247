"""Time what the checksums of checkpoints cost.

    python benchmarks/checkpoints.py [--quick] [--repeats=7] [--megabytes=1024]

Saves a state of that many megabytes with and without checksums, alternately, verifies
them, and reads the parameters.
"""

import argparse
import functools
import sys
import tempfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks import harness
from jaxformer.training import checkpoint_files
from jaxformer.training.checkpoint import Checkpoints

PLAIN = "save without checksums"


def draw_state(megabytes: int) -> dict:
    rows = max(1, round(megabytes / 16))
    keys = jax.random.split(jax.random.key(0), rows)
    columns = megabytes * 2**18 // rows
    state = {f"w{row}": jax.random.normal(key, columns) for row, key in enumerate(keys)}
    return jax.block_until_ready({"params": state})


def measure(options: argparse.Namespace) -> dict:
    state = draw_state(options.megabytes)
    with tempfile.TemporaryDirectory(prefix="jaxformer-checkpoints-") as name:
        folder = Path(name, "checkpoints")
        reader = Checkpoints(folder, keep=None, scores={})

        def save() -> None:
            with Checkpoints(folder, keep=2, scores={}) as checkpoints:
                checkpoints.save(1, state)

        def save_without() -> None:
            with mock.patch.object(checkpoint_files, "write_checksums"):
                save()

        turns = {
            PLAIN: save_without,
            "save": save,
            "verify": lambda: checkpoint_files.find_damage(folder / "1"),
            "open": lambda: reader.restore_parameters(1),
        }
        rounds = harness.take_turns(turns, options.repeats)
    amounts = dict.fromkeys(turns, options.megabytes)
    found = harness.figures(rounds, amounts, PLAIN)
    harness.print_figures({f"{options.megabytes} MB": found}, "MB", PLAIN, {})
    return {"seconds": {name: each["seconds"] for name, each in found.items()}}


main = functools.partial(harness.run, __doc__, measure, repeats=(7, 2), megabytes=1024)


if __name__ == "__main__":
    sys.exit(main())
