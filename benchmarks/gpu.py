"""Run the measurements that need a GPU within a given time, the most useful first.

    python benchmarks/gpu.py --output=FOLDER --deadline=580 [--steps=agreement,europarl]
    python benchmarks/gpu.py --output=FOLDER --rehearse
    python benchmarks/gpu.py --output=FOLDER --pack=text

A step starts only if it can end before the deadline, in seconds from the start of this
command, and ends in time. Each result is a line of FOLDER/gpu.jsonl as soon as it is
known, with card, driver, clock, power, versions and commit. A step that fails leaves
its error there, and the next one begins. Without --steps the steps run that have not
ended in benchmarks/gpu.jsonl, to which new results are added by hand.

    agreement  losses, gradients and updates beside those of the CPU
    attention  the ways to compute base's attention beside each other
    europarl   configs/europarl_enfr.py: text, training, scores, translations, report
    train      base beside PyTorch; where the time of an update goes
    decode     base beside CTranslate2 and Transformers; 64 and 512 sentences
    big        as train, with the big model

--data has europarl_enfr/ and newstest_enfr/. The steps need no network, no TensorFlow
and no repository. --pack=text and --pack=ctranslate2 make a folder with all that they
need on a machine with JAX and PyTorch (benchmarks/packing.py); there the command is the
same. --rehearse runs the same code with tiny sizes on the CPU. Then europarl makes
--updates updates, and its test is newstest2013.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness, packing
from benchmarks.gpu_europarl import europarl
from benchmarks.gpu_session import (
    Failed,
    Part,
    Session,
    describe_machine,
    sampled,
)
from jaxformer.system.errors import InputError

RESULTS = harness.ROOT / "benchmarks" / "gpu.jsonl"
MARGIN = 5  # seconds before the deadline in which nothing runs
MEMORY = Path("/dev/shm")  # where checkpoints take less time than on a disk
MEMORY_BYTES = 20 * 2**30  # that europarl needs there
PEERS = "--only=ours,PyTorch compiled,PyTorch SDPA"
TRIAL = 90  # seconds in which CTranslate2 must work
ENDED = "all"  # the part whose line says that a step has ended
TINY = {
    "agreement": ["--model=tiny", "--rows=4", "--length=16"],
    "attention": [
        "--rows=2", "--length=16", "--heads=2", "--size=8", "--layers=1", "--quick",
    ],
    "decode": [
        "--layers=1", "--d_model=8", "--d_ff=8", "--num_heads=2", "--vocabulary=40",
        "--source=5", "--target=9", "--quick",
    ],
}  # fmt: skip


def agreement(session: Session, options: Namespace) -> Iterator[Part]:
    sizes = TINY["agreement"] if options.rehearse else []
    yield "base", session.run("benchmarks/agreement.py", *sizes)


def attention(session: Session, options: Namespace) -> Iterator[Part]:
    sizes = TINY["attention"] if options.rehearse else []
    yield "masks", session.run("benchmarks/attention.py", *sizes)


def train(
    session: Session, options: Namespace, *, model: str = "base"
) -> Iterator[Part]:
    flags = ["--rows=96", "--length=256", "--updates=10", "--repeats=3"]
    flags += [f"--model={model}", "--fused_attention"]
    flags = ["--model=tiny", "--quick"] if options.rehearse else flags
    flags += ["--dtype=bfloat16", "--profile", PEERS]
    yield model, session.run("benchmarks/train.py", *flags)


def decode(session: Session, options: Namespace) -> Iterator[Part]:
    without, names = try_ctranslate2(session), ["ours", "HF compiled"]
    names += [] if without else ["CTranslate2"]
    flags = ["--dtype=bfloat16", f"--only={','.join(names)}"]
    flags += TINY["decode"] if options.rehearse else ["--repeats=3"]
    for rows in (3,) if options.rehearse else (64, 512):
        found = session.run("benchmarks/decode.py", f"--rows={rows}", *flags)
        yield f"{rows} sentences", found | {"without_ctranslate2": without}


def try_ctranslate2(session: Session) -> str:
    """Return why CTranslate2 does not work here, or "".

    It loads cuBLAS of CUDA 12. Links with that name to cuBLAS of CUDA 13 are tried.
    """
    if not harness.has("ctranslate2"):
        return "not installed"
    folder, step_ends = session.scratch / "cublas", session.until
    folder.mkdir(exist_ok=True)
    for library in packing.find_libraries("libcublas*.so.13"):
        for name in (library.name, library.name.removesuffix("13") + "12"):
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(library)
    known = session.environment.get("LD_LIBRARY_PATH", "")
    session.environment["LD_LIBRARY_PATH"] = f"{folder}:{known}".rstrip(":")
    session.until = min(step_ends, time.monotonic() + TRIAL)
    try:
        flags = ["--rows=3", "--only=ours,CTranslate2", *TINY["decode"]]
        session.run("benchmarks/decode.py", *flags)
    except Failed as error:
        return str(error)
    finally:
        session.until = step_ends
    return ""


class Step(NamedTuple):
    """A step, and the seconds that it takes at least and at most."""

    run: Callable[[Session, Namespace], Iterator[Part]]
    least: int
    most: int


STEPS = {  # the most useful first
    "agreement": Step(agreement, 40, 60),
    "attention": Step(attention, 50, 90),
    "europarl": Step(europarl, 320, 520),
    "train": Step(train, 130, 220),
    "decode": Step(decode, 130, 400),
    "big": Step(functools.partial(train, model="big"), 150, 240),
}


def run_step(name: str, session: Session, options: Namespace, machine: dict) -> bool:
    """Run a step and write a line for each part; return whether all parts succeeded."""
    begin = last = time.monotonic()
    parts = STEPS[name].run(session, options)
    while True:
        line: dict[str, Any] = {"step": name, "part": ENDED}
        with sampled() as card:
            try:
                line["part"], line["found"] = next(parts)
            except StopIteration:
                pass
            except Exception as error:
                known = isinstance(error, Failed | InputError)
                line["part"] = "error"
                line["error"] = str(error) if known else traceback.format_exc()
        now, has_ended = time.monotonic(), "found" not in line
        seconds = now - (begin if has_ended else last)
        # Commands that ran side by side know their own.
        line["seconds"] = round(line.get("found", {}).get("seconds", seconds), 1)
        line |= {"sampled": card, "time": datetime.now().isoformat(" ", "seconds")}
        last = now
        with (session.output / "gpu.jsonl").open("a") as file:
            file.write(f"{json.dumps(line | machine)}\n")
        print(f"{name}, {line['part']}: {line['seconds']} s", file=sys.stderr)
        if has_ended:
            session.end_all()
            return line["part"] == ENDED


def without_result() -> list[str]:
    """Return the steps that have not ended in benchmarks/gpu.jsonl."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    found = map(json.loads, lines)
    ended = {each["step"] for each in found if each["part"] == ENDED}
    return [name for name in STEPS if name not in ended]


def measure(options: Namespace) -> dict[str, Any]:
    begin, output = time.monotonic(), options.output
    if output is None:
        raise InputError("--output is missing; give a folder for the results")
    if options.pack:
        return packing.pack(options.pack, output, options.data)
    if unknown := {*options.steps} - {*STEPS}:
        raise InputError(
            f"there is no step {', '.join(unknown)}; --steps takes {', '.join(STEPS)}"
        )
    output.mkdir(parents=True, exist_ok=True)
    options.data = options.data.resolve()
    names = [*STEPS] if options.rehearse else without_result()
    done: dict[str, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with folders() as (scratch, large):
        environment = {
            **os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XDG_CACHE_HOME": f"{scratch}/cache",
        }  # fmt: skip
        if options.rehearse:
            environment["JAX_PLATFORMS"] = "cpu"
        session = Session(output.resolve(), scratch, large, environment)
        packing.install(scratch / "site", environment)
        machine = describe_machine()
        try:
            for name in options.steps or names:
                left = begin + options.deadline - MARGIN - time.monotonic()
                most = left if options.rehearse else min(left, STEPS[name].most)
                session.until = time.monotonic() + most
                if left < STEPS[name].least:
                    done[name] = f"not started: {left:.0f} s are left"
                else:
                    is_done = run_step(name, session, options, machine)
                    done[name] = "ended" if is_done else "failed"
        finally:
            session.end_all()
    return {"steps": done, "holds": {*done.values()} <= {"ended"}}


@contextlib.contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    """Give a temporary folder, and one for what is large, in memory if there is room.

    A disk may take seconds for a checkpoint. Libraries cannot be loaded from a memory
    that is mounted without the right to execute.
    """
    is_large = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    with (
        tempfile.TemporaryDirectory(prefix="jaxformer-gpu-") as scratch,
        tempfile.TemporaryDirectory(
            prefix="jaxformer-gpu-", dir=MEMORY if is_large else None
        ) as large,
    ):
        yield Path(scratch), Path(large)


main = functools.partial(
    harness.run, __doc__, measure, output=None, deadline=580.0, steps=[],
    rehearse=False, updates=9000, data=packing.default_data(),
    pack=("", *packing.KINDS),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
