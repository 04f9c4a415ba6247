"""Compare the speed of training with PyTorch and a usual Flax port.

    python benchmarks/train.py [--model=base|big|small|lstm|convs2s|tiny] [--quick]
        [--repeats=7] [--updates=1]
        [--rows=32 --length=32] [--only=ours,...] [--dtype=float32] [--fused_attention]
        [--workdir=DIR --tokens=4096 --batches=8] [--profile]

Every contestant makes complete updates: forward, backward, Adam, dropout 0.1, smoothed
loss, one matrix for embeddings and logits. "matrix products" are those of one update
alone, the limit; "share of products" is the part of their rate that is reached. With
--workdir, whose text was prepared by `--mode=prepare`, the batches are real text: ours
in the layout of this repository, PyTorch's sorted by length, both of at most --tokens
entries a side; the rate is then of target tokens that are not padding. The first turn
of each is not counted. Packages that are not installed are left out, and named. Each
contestant has a process of its own, ours as commands set it up. All run on the GPU if
there is one. A turn makes --updates updates and waits for the last; one update of a GPU
is too short to time.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# JAX would reserve most of the GPU's memory, which PyTorch needs as well.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np

from benchmarks import harness
from benchmarks.models import SIZES, Sizes, Trainer, one_device
from benchmarks.peers import batches
from benchmarks.peers.flax_port import flax_update
from benchmarks.peers.products import products_alone
from benchmarks.peers.torch_transformer import torch_update
from benchmarks.profiles import profile
from jaxformer.batch import Batch
from jaxformer.system.errors import InputError

OURS, FLAX, PRODUCTS = "ours", "Flax port", "matrix products"
TORCH, COMPILED, SDPA = "PyTorch", "PyTorch compiled", "PyTorch SDPA"
OF_TORCH = TORCH, COMPILED, SDPA
PROFILED = 3  # updates
Updates = Callable[[Sequence[Batch]], float]  # the mean loss of the last one


def update_of(name: str, sizes: Sizes, longest: int) -> Callable[[Batch], Any]:
    """Make a contestant's update; float() of what it returns waits for the mean loss.

    Sentences have up to `longest` pieces.
    """
    torch = functools.partial(torch_update, sizes, longest=longest)
    makers = {
        TORCH: lambda: torch(compiled=False),
        COMPILED: lambda: torch(compiled=True),
        SDPA: lambda: torch(compiled=True, fused=True),
        FLAX: lambda: flax_update(sizes, longest=longest),
    }
    return makers[name]()


def updates_of(name: str, sizes: Sizes, longest: int) -> Updates:
    """Make the function that makes updates, waits for the last, returns its loss."""
    update = update_of(name, sizes, longest)

    def make(work: Sequence[Batch]) -> float:
        *_, loss = map(update, work)
        return float(loss)

    return make


def our_updates(sizes: Sizes) -> Callable:
    """Make the function of `updates_of` for jaxformer.

    With `profiled` it returns where the time of its updates goes.
    """
    trainer = Trainer(sizes.model(), one_device())

    def make(work: Sequence[Batch], profiled: bool = False) -> Any:
        def updates() -> float:
            *_, loss = map(trainer.start, work)
            return float(loss)

        if not profiled:
            return updates()
        text = trainer.compile(work[0]).as_text()
        return profile(updates, text, times=len(work))

    return make


def start_contestants(
    sizes: Sizes, names: list[str], longest: int
) -> dict[str, Updates]:
    """Start the named contestants, each in its process; ours keeps freed memory."""
    known = OURS, *OF_TORCH, FLAX
    if unknown := {*names} - {*known}:
        raise InputError(f"there is no contestant {', '.join(sorted(unknown))}")
    if sizes.architecture != "transformer":
        names = [name for name in names if name not in (FLAX, SDPA)]
    if not harness.has("torch"):
        names = [name for name in names if name not in OF_TORCH]
    return {
        name: harness.Apart(our_updates, sizes, keeps_memory=True)
        if name == OURS
        else harness.Apart(updates_of, name, sizes, longest)
        for name in known
        if name in names
    }


def one_shape(sizes: Sizes, options: argparse.Namespace) -> dict:
    """Time updates with one full batch, and their matrix products alone."""
    longest, batch = max(sizes.source, sizes.target), sizes.batch()
    contestants, count = (
        start_contestants(sizes, options.only, longest),
        options.updates,
    )
    turns = {
        name: functools.partial(each, [batch] * count)
        for name, each in contestants.items()
    }
    products = harness.Apart(products_alone, sizes, keeps_memory=True)
    turns[PRODUCTS] = lambda: [products() for _ in range(count)]
    # Not counted, since it compiles. Ours is alone: XLA's autotuning measures products.
    calls = {
        name: functools.partial(each, [batch]) for name, each in contestants.items()
    }
    first, failed = harness.at_once(
        {name: calls.pop(name) for name in (OURS,) if name in calls}
    )
    others, without = harness.at_once(calls | {PRODUCTS: products})
    first, failed = first | others, failed | without
    print({"first losses": first}, file=sys.stderr)
    turns = {name: turn for name, turn in turns.items() if name in first}
    rounds = harness.take_turns(turns, options.repeats)
    beside = next((name for name in OF_TORCH if name in turns), TORCH)
    amounts = dict.fromkeys(turns, count * sizes.rows * sizes.target)
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
    outcome: dict[str, Any] = {"one_shape": found, "first_losses": first}
    outcome |= {"failed": failed, "rounds": rounds}
    if options.profile and OURS in first:
        outcome["profile"] = contestants[OURS]([batch] * PROFILED, True)
    return outcome


def real_text(sizes: Sizes, text: batches.Text, options: argparse.Namespace) -> dict:
    """Time updates with batches of each contestant's own, spread over an epoch.

    Rounds hold seconds for 1,000 target tokens that are not padding.
    """
    updates = start_contestants(sizes, options.only, text.batching["row_length"])
    epochs, parts = {}, {}
    for name, update in updates.items():
        # Uncompiled PyTorch may have any number of shapes.
        is_free = name == TORCH
        planned = batches.sorted_by_length if is_free else batches.planned
        epochs[name] = epoch = planned(text, options.tokens)
        parts[name] = batches.parts(epoch, options.repeats, options.batches)
        for batch in parts[name][0] if is_free else batches.by_shape(epoch).values():
            update([batch])  # not counted
    rounds = []
    for part in range(options.repeats):
        turns = {
            name: functools.partial(update, parts[name][part])
            for name, update in updates.items()
        }
        (seconds,) = harness.take_turns(turns, 1)
        tokens = {
            name: sum(np.count_nonzero(batch.target) for batch in parts[name][part])
            for name in updates
        }
        rounds.append({name: 1000 * seconds[name] / tokens[name] for name in updates})
    found = harness.figures(rounds, dict.fromkeys(updates, 1000), TORCH)
    for name, epoch in epochs.items():
        found[name]["real_token_share"] = batches.real_token_share(epoch)
        found[name]["shapes"] = len(batches.by_shape(epoch))
    pieces = text.corpus.target.lengths.mean()
    label = f"{options.model}, {pieces:.0f} pieces a sentence, 1,000 tokens"
    columns = {"real tokens": "{real_token_share:.1%}", "shapes": "{shapes}"}
    harness.print_figures({label: found}, "target tokens", TORCH, columns)
    return {"text": found}


def measure(options: argparse.Namespace) -> dict:
    changes = {
        "rows": options.rows, "source": options.length, "target": options.length,
        "dtype": options.dtype, "fused_attention": options.fused_attention,
    }  # fmt: skip
    changes = {key: value for key, value in changes.items() if value}
    sizes = dataclasses.replace(SIZES[options.model], **changes)
    common = {"device": jax.devices()[0].device_kind, "model": vars(sizes)}
    if options.workdir is None:
        return common | one_shape(sizes, options)
    text = batches.read_text(options.workdir)
    sizes = dataclasses.replace(sizes, vocabulary=text.vocabulary)
    return common | real_text(sizes, text, options)


main = functools.partial(
    harness.run, __doc__, measure, repeats=(7, 2), updates=1, model=tuple(SIZES),
    rows=0, length=0, dtype=("float32", "bfloat16"), fused_attention=False,
    only=[OURS, TORCH, FLAX], workdir=None, tokens=4096, batches=8, profile=False,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
