"""How fast we train beside PyTorch and a usual Flax port, in one run on one machine.

    python benchmarks/train.py [--model=base|big|small|tiny] [--quick] [--repeats=7]
        [--rows=32 --length=32] [--only=ours,...] [--dtype=float32] [--fused_attention]
        [--workdir=DIR --tokens=4096 --batches=8 --layout=buckets --join=1]

Every contestant makes whole updates: forward, backward, Adam, dropout 0.1, smoothed
loss, one matrix for embeddings and logits. "matrix products" are those of one update
alone, which is the limit: our share of it is printed. With --workdir, whose text was
prepared by `--mode=prepare`, the batches are real text instead: ours in the layout of
this repository, PyTorch's sorted by length, both of at most --tokens places a side; the
figure is then of target tokens that are not padding. --join=6 makes sentences long.
Contestants take turns, after one turn that is not counted, and a ratio compares two of
the same round. Packages that are not installed are left out, and named. Prints a table,
then the same as a line of JSON. On a GPU all of them run there.
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks.harness import figures, has, machine, print_table, row, take_turns
from benchmarks.peers import training
from benchmarks.peers.train_flax import flax_update
from benchmarks.peers.train_ours import ours
from benchmarks.peers.train_products import products_alone
from benchmarks.peers.train_text import Text, read_text
from benchmarks.peers.train_torch import torch_update
from benchmarks.peers.training import TrainSizes, Update
from jaxformer.batch import PAD, Batch
from jaxformer.errors import InputError

OURS, TORCH, COMPILED, FLAX = "ours", "PyTorch", "PyTorch compiled", "Flax port"
PRODUCTS = "matrix products"
MODELS = {
    "base": training.BASE,
    "big": training.BIG,
    "small": training.SMALL,
    "tiny": training.TINY,
}
REPEATS, QUICK_REPEATS = 7, 2
HEADER = ("what", "who", "seconds, median", "spread", "target tokens/s",
          f"times {TORCH}")  # fmt: skip


def contestants(
    sizes: TrainSizes, names: list[str], device: str, longest: int
) -> dict[str, Update]:
    """Make those of the names that can be made here."""
    fused = device == "cuda"  # what PyTorch's users take there
    torch = {"device": device, "fused": fused, "longest": longest}
    makers = {
        OURS: lambda: ours(sizes),
        TORCH: lambda: torch_update(sizes, compiled=False, **torch),
        COMPILED: lambda: torch_update(sizes, compiled=True, **torch),
        FLAX: lambda: flax_update(sizes, longest=longest),
    }
    wanted = [name for name in makers if name in names]
    if not has("torch"):
        wanted = [name for name in wanted if name not in (TORCH, COMPILED)]
    return {name: makers[name]() for name in wanted}


# One shape, no padding ----------------------------------------------------------------


def one_shape(
    sizes: TrainSizes, options: argparse.Namespace, device: str
) -> dict[str, dict]:
    """Time updates of `sizes`, and the products that they are made of."""
    updates = contestants(sizes, options.only, device, max(sizes.source, sizes.target))
    batch = sizes.batch(seed=0)
    turns: dict[str, Any] = {
        name: (lambda update=update: update(batch)) for name, update in updates.items()
    }
    turns[PRODUCTS] = products_alone(sizes)
    losses = {name: turn() for name, turn in turns.items()}  # not counted: it compiles
    print(json.dumps({"first losses": losses}), file=sys.stderr)
    rounds = take_turns(turns, options.repeats)
    tokens = sizes.rows * sizes.target
    found: dict[str, dict] = {}
    for name in turns:
        found[name] = figures(rounds, name, tokens, beside=TORCH)
        found[name]["gflops_per_second"] = (
            training.flops(sizes) / found[name]["seconds"] / 1e9
        )
        shares = sorted(each[PRODUCTS] / each[name] for each in rounds)
        found[name]["share_of_products"] = shares[len(shares) // 2]
    label = f"{options.model}, {sizes.rows} x {sizes.target}"
    header = (*HEADER, "GFLOP/s", "share of products")
    rows = [
        f"{row(label, name, each)} {each['gflops_per_second']:,.0f} "
        f"| {100 * each['share_of_products']:.0f} % |"
        for name, each in found.items()
    ]
    print_table(header, rows)
    return found


# Real text ----------------------------------------------------------------------------


def real_text(
    sizes: TrainSizes, text: Text, options: argparse.Namespace, device: str
) -> dict[str, dict]:
    """Time updates on batches spread over an epoch, each contestant's its own.

    A round is a share of an epoch that holds about the same tokens for all, so what is
    compared is seconds a token.
    """
    updates = contestants(sizes, options.only, device, text.longest)
    compiling = {name for name in updates if name != TORCH}  # few shapes, or waits
    epochs = {
        name: text.ours(options.tokens)
        if name in compiling
        else text.sorted_by_length(options.tokens)
        for name in updates
    }
    parts = {}
    for name, update in updates.items():
        parts[name] = epochs[name].parts(options.repeats, options.batches)
        warm = epochs[name].one_of_each_shape() if name in compiling else parts[name][0]
        for batch in warm:
            update(batch)  # not counted
    rounds: list[dict[str, float]] = []  # seconds for a thousand real target tokens
    for part in range(options.repeats):
        turns = {
            name: functools.partial(list, map(update, parts[name][part]))
            for name, update in updates.items()
        }
        (seconds,) = take_turns(turns, 1)
        rounds.append(
            {
                name: 1000 * seconds[name] / real_targets(parts[name][part])
                for name in updates
            }
        )
    found = {}
    for name in updates:
        found[name] = figures(rounds, name, 1000, beside=TORCH)
        found[name]["real_token_share"] = epochs[name].real_token_share
        found[name]["shapes"] = epochs[name].shape_count
    label = f"{options.model}, {text.mean_length:.0f} pieces a sentence"
    header = (HEADER[0], HEADER[1], "seconds for 1,000", *HEADER[3:])
    print_table(
        (*header, "real tokens", "shapes"),
        [
            f"{row(label, name, each)} {100 * each['real_token_share']:.1f} % "
            f"| {each['shapes']} |"
            for name, each in found.items()
        ],
    )
    return found


def real_targets(batches: Sequence[Batch]) -> int:
    """Count target tokens that are not padding."""
    return sum(int((batch.target != PAD).sum()) for batch in batches)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--repeats", type=int, help=f"rounds, by default {REPEATS}")
    parser.add_argument("--rows", type=int, help="rows of the batch")
    parser.add_argument("--length", type=int, help="pieces a row, of either side")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--fused_attention", action="store_true", help="ours by cuDNN where it fits"
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[OURS, TORCH, FLAX],
        help=f"of {OURS},{TORCH},{COMPILED},{FLAX}; by default all but {COMPILED}",
    )  # fmt: skip
    parser.add_argument("--workdir", type=Path, help="of prepared text")
    parser.add_argument("--layout", default="", help="of ours, else the run's own")
    parser.add_argument("--tokens", type=int, default=4096, help="places of a side")
    parser.add_argument("--batches", type=int, default=8, help="of a round, about")
    parser.add_argument(
        "--join", type=int, default=1, help="pairs made one, for long sentences"
    )
    options = parser.parse_args(argv)
    if unknown := set(options.only) - {OURS, TORCH, COMPILED, FLAX}:
        parser.error(f"there is no contestant {', '.join(sorted(unknown))}")
    if options.repeats is None:
        options.repeats = QUICK_REPEATS if options.quick else REPEATS
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its outcome; returns the exit code."""
    options = parse(argv)
    sizes = MODELS[options.model]
    changes = {
        "rows": options.rows, "source": options.length, "target": options.length,
        "dtype": options.dtype, "fused_attention": options.fused_attention,
    }  # fmt: skip
    given = {key: value for key, value in changes.items() if value is not None}
    sizes = dataclasses.replace(sizes, **given)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    outcome: dict = {
        "machine": machine() | {"device": jax.devices()[0].device_kind},
        "model": dataclasses.asdict(sizes),
        "repeats": options.repeats,
    }
    print(json.dumps(outcome["machine"]), file=sys.stderr)
    if options.workdir is None:
        outcome["one_shape"] = one_shape(sizes, options, device)
    else:
        try:
            text = read_text(options.workdir, layout=options.layout, join=options.join)
        except InputError as error:
            print(f"train: {error}", file=sys.stderr)
            return 2
        sizes = dataclasses.replace(sizes, vocabulary=text.vocabulary)
        outcome["text"] = real_text(sizes, text, options, device)
    print(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
