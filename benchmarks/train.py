"""Compare the speed of training with PyTorch and, on CPUs, with Marian.

    python benchmarks/train.py [--model=base|big|small|tiny] [--quick] [--repeats=7]
        [--updates=1] [--rows=32 --length=32] [--only=ours,...] [--dtype=float32]
        [--fused_attention] [--profile]

Every contestant makes complete updates: forward, backward, Adam, dropout 0.1, smoothed
loss, one matrix for embeddings and logits. "matrix products" are those of one update
alone, the limit; "share of products" is the part of their rate that is reached. The
first turn of each is not counted. Packages that are not installed are left out, and
named. Each contestant has a process of its own, ours as commands set it up. All run on
the GPU if there is one. A turn makes --updates updates and waits for the last; one
update of a GPU is too short to time. --profile says where the time of ours goes, and on
a GPU what its kernels take at least.
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# JAX would reserve most of the GPU's memory, which PyTorch needs as well.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from benchmarks import harness
from benchmarks.models import SIZES, Sizes, Trainer, device_name
from benchmarks.peers import marian
from benchmarks.peers.products import products_alone
from benchmarks.profiles import profile
from jaxformer.system.errors import InputError

OURS, PRODUCTS = "ours", "matrix products"
TORCH, COMPILED, SDPA = "PyTorch", "PyTorch compiled", "PyTorch SDPA"
PEERS, MARIAN = (TORCH, COMPILED, SDPA), "Marian"
PROFILED = 3  # updates


def their_updates(name: str, sizes: Sizes) -> Callable[[int], float]:
    """Make a peer's function that makes updates and returns the mean loss."""
    from benchmarks.peers.torch_update import torch_update

    update = torch_update(sizes, compiled=name != TORCH, fused=name == SDPA)
    batch = sizes.batch()

    def make(count: int) -> float:
        for _ in range(count):
            loss = update(batch)
        return float(loss)  # waits

    return make


def our_updates(sizes: Sizes) -> Callable[..., Any]:
    """Make our function that makes updates and returns the mean loss.

    With `profiled` it returns where the time of its updates goes.
    """
    trainer, batch = Trainer(sizes.model()), sizes.batch()

    def make(count: int, profiled: bool = False) -> Any:
        def updates() -> float:
            for _ in range(count):
                loss = trainer.start(batch)
            return float(loss)

        if not profiled:
            return updates()
        return profile(updates, trainer.compile(batch).as_text(), times=count)

    return make


def start_contestants(
    sizes: Sizes, names: list[str], folder: Path
) -> dict[str, Callable[..., Any]]:
    """Start the named contestants, each in its process; ours keeps freed memory."""
    if unknown := {*names} - {OURS, MARIAN, *PEERS}:
        raise InputError(f"there is no contestant {', '.join(sorted(unknown))}")
    started: dict[str, Callable[..., Any]] = {}
    if OURS in names:
        started[OURS] = harness.Apart(our_updates, sizes, keeps_memory=True)
    if harness.has("torch"):
        for name in filter(names.__contains__, PEERS):
            started[name] = harness.Apart(their_updates, name, sizes)
    if MARIAN in names and device_name() == "cpu" and marian.is_installed():
        cores = len(os.sched_getaffinity(0))
        started[MARIAN] = marian.marian_updates(folder, sizes, cores)
    return started


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="jaxformer-train-") as folder:
        return compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    changes = {
        "rows": options.rows, "source": options.length, "target": options.length,
        "dtype": options.dtype, "fused_attention": options.fused_attention,
    }  # fmt: skip
    changes = {key: value for key, value in changes.items() if value}
    sizes = dataclasses.replace(SIZES[options.model], **changes)
    contestants, count = start_contestants(sizes, options.only, folder), options.updates
    products = harness.Apart(products_alone, sizes, keeps_memory=True)
    # Not counted, since it compiles. Ours is alone: XLA's autotuning measures products.
    first = {name: functools.partial(each, 1) for name, each in contestants.items()}
    ours = {OURS: first.pop(OURS)} if OURS in first else {}
    losses, failed = harness.at_once(ours)
    others, more_failed = harness.at_once(first | {PRODUCTS: products})
    losses, failed = losses | others, failed | more_failed
    print({"first losses": losses}, file=sys.stderr)
    turns = {name: functools.partial(each, count) for name, each in contestants.items()}
    turns[PRODUCTS] = lambda: [products() for _ in range(count)]
    turns = {name: turn for name, turn in turns.items() if name in losses}
    rounds = harness.take_turns(turns, options.repeats)
    outcome = summarise(rounds, sizes, options)
    outcome |= {"first_losses": losses, "failed": failed, "rounds": rounds}
    if options.profile and OURS in losses:
        outcome["profile"] = contestants[OURS](PROFILED, True)
    return outcome


def summarise(
    rounds: harness.Rounds, sizes: Sizes, options: argparse.Namespace
) -> dict[str, Any]:
    """Print and return rates, and shares of the rate of the products alone."""
    beside = next((name for name in PEERS if name in rounds[0]), TORCH)
    count = options.updates
    amounts = dict.fromkeys(rounds[0], count * sizes.rows * sizes.target)
    found = harness.figures(rounds, amounts, beside)
    shares = harness.figures(rounds, amounts, PRODUCTS)
    flops = count * sizes.model().flops(sizes.rows, sizes.source, sizes.target)
    for name, each in found.items():
        each["gflops_per_second"] = flops / each["seconds"] / 1e9
        each["share_of_products"] = shares[name]["ratio"]
    label = f"{options.model}, {sizes.rows} x {sizes.target}"
    label += f", {count} updates" if count > 1 else ""
    columns = {
        "GFLOP/s": "{gflops_per_second:,.0f}",
        "share of products": "{share_of_products:.0%}",
    }
    harness.print_figures({label: found}, "target tokens", beside, columns)
    device = jax.devices()[0].device_kind
    return {"device": device, "model": vars(sizes), "one_shape": found}


main = functools.partial(
    harness.run, __doc__, measure, repeats=(7, 2), updates=1, model=tuple(SIZES),
    rows=0, length=0, dtype=("float32", "bfloat16"), fused_attention=False,
    only=[OURS, TORCH, COMPILED, MARIAN], profile=False,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
