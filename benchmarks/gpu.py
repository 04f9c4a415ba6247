"""Measure what only a GPU can show, the most useful first, in the minutes there are.

    python benchmarks/gpu.py --output=FOLDER --deadline=580 [--steps=agreement,europarl]
    python benchmarks/gpu.py --output=FOLDER --rehearse
    python benchmarks/gpu.py --output=FOLDER --pack=text

A step starts only if it can end before the deadline, in seconds from the start of this
command, and ends in time. Each result is a line of FOLDER/gpu.jsonl as soon as it is
known, with card, driver, clock, power, versions and commit. A step that fails leaves
its error there, and the next one begins. Without --steps the steps run that have not
ended in benchmarks/gpu.jsonl, to which new results are added by hand.

    agreement  losses, gradients and updates beside those of the CPU
    europarl   configs/europarl_enfr.py: text, training, scores, translations, report
    train      base and big beside PyTorch; where the time of an update goes
    decode     base beside CTranslate2 and Transformers; 64 and 512 sentences

--data has europarl_enfr/ and newstest_enfr/. The steps need no network, no TensorFlow
and no repository. --pack=text and --pack=ctranslate2 make a folder with all that they
need on a machine with JAX and PyTorch (benchmarks/packing.py); there the command is the
same. --rehearse runs the same code with tiny sizes on the CPU, europarl with --updates
updates and newstest2013 as its test.
"""

import contextlib
import functools
import json
import os
import shutil
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
from benchmarks.gpu_session import Command, Failed, Session, describe_machine, watched
from jaxformer.errors import InputError

RESULTS = harness.ROOT / "benchmarks" / "gpu.jsonl"
MARGIN = 5  # seconds before the deadline in which nothing runs
MEMORY = Path("/dev/shm")  # where checkpoints take less time than on a disk
MEMORY_BYTES = 20 * 2**30  # that europarl needs there
PEERS = "--only=ours,PyTorch compiled,PyTorch SDPA"
ENDED = "all"  # the part whose line says that a step has ended
# Europarl: updates that are measured, after as many that compile; seconds of a start
# and two validations beside the updates after it, and of scores and report at last.
MEASURED, BESIDE, SCORING = 50, 100, 80
TINY = {
    "agreement": ["--model=tiny", "--rows=4", "--length=16"],
    "decode": [
        "--layers=1", "--d_model=8", "--d_ff=8", "--num_heads=2", "--vocabulary=40",
        "--source=5", "--target=9", "--quick",
    ],
    "europarl": [
        "--config.model.encoder_layers=2", "--config.model.decoder_layers=2",
        "--config.model.d_model=128", "--config.model.d_ff=256",
        "--config.model.num_heads=4", "--config.model.d_k=32", "--config.model.d_v=32",
        "--config.model.dtype=float32", "--config.optimizer.warmup_steps=400",
        "--config.training.tokens_per_update=2048",
        "--config.training.tokens_per_microbatch=2048", "--config.data.vocab_size=4000",
    ],
}  # fmt: skip

Part = tuple[str, dict[str, Any]]  # its name, and what was found


def agreement(session: Session, options: Namespace) -> Iterator[Part]:
    sizes = TINY["agreement"] if options.rehearse else []
    yield "base", session.run("benchmarks/agreement.py", *sizes)


def train(session: Session, options: Namespace) -> Iterator[Part]:
    for model in ("tiny",) if options.rehearse else ("base", "big"):
        flags = [f"--model={model}", "--rows=96", "--length=256", "--updates=10"]
        flags += ["--repeats=3", "--fused_attention"]
        flags = [f"--model={model}", "--quick"] if options.rehearse else flags
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

    It loads cuBLAS of CUDA 12. Where only that of CUDA 13 is, a link may do.
    """
    if not harness.has("ctranslate2"):
        return "not installed"
    folder, step_ends = session.scratch / "cublas", session.until
    folder.mkdir(exist_ok=True)
    for library in packing.find_libraries("libcublas*.so.13"):
        name = library.name.removesuffix("13") + "12"
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(library)
    known = session.environment.get("LD_LIBRARY_PATH", "")
    session.environment["LD_LIBRARY_PATH"] = f"{folder}:{known}".rstrip(":")
    session.until = min(step_ends, time.monotonic() + 60)
    try:
        flags = ["--rows=3", "--only=ours,CTranslate2", *TINY["decode"]]
        session.run("benchmarks/decode.py", *flags)
    except Failed as error:
        return str(error)
    finally:
        session.until = step_ends
    return ""


def europarl(session: Session, options: Namespace) -> Iterator[Part]:
    """Prepare, train for the time there is, score and report, by commands of users."""
    folder, text = session.scratch / "europarl", options.data / "europarl_enfr"
    measured, beside, scoring = MEASURED, BESIDE, SCORING
    if options.rehearse:
        measured, beside, scoring = 10, 0, 0
    config = ["--config=europarl_enfr", f"--config.data.directory={text}"]
    config += ["--config.batches.executor=python"]
    config += TINY["europarl"] if options.rehearse else []

    def start(mode: str, *flags: str, **changes: int) -> Command:
        own = [*config, *(f"--config.training.{k}={v}" for k, v in changes.items())]
        own = own if mode in ("prepare", "train") else []
        common = ["-m", "jaxformer.main", f"--mode={mode}", f"--workdir={folder}"]
        return session.start(*common, *own, *flags)

    yield "prepare", start("prepare").result()
    begin, log = time.monotonic(), folder / "metrics.jsonl"
    first = start("train", steps=options.updates, log_every=measured)
    lines = read_progress(session, first, log, 2)
    first.stop()
    update = (lines[1]["time"] - lines[0]["time"]) / measured
    first.result()
    fits = int((session.left - beside - scoring) / update)
    steps = max(4 * measured, min(options.updates, fits))
    # A checkpoint every 5 % of the updates, and a validation before the last one.
    plan = {"steps": steps, "save_every": steps // 20, "eval_every": steps // 20 * 11}
    yield (
        "speed",
        {
            "update_seconds": update,
            "tokens_per_second": lines[1]["tokens_per_second"],
            "seconds_to_measure": time.monotonic() - begin,
            "hours_of_the_paper": 100_000
            * update
            / 3600,  # section 5.2, the base model
            **plan,
        },
    )
    second = start("train", log_every=2 * measured, **plan)
    second.wait(session.left - scoring)
    if second.is_running:  # slower than measured
        second.stop()
    trained = second.result()
    shutil.copy(log, session.output / "europarl_metrics.jsonl")
    yield "train", trained
    test = "newstest2013" if options.rehearse else "newstest2014"
    stems = {test: options.data / "newstest_enfr" / f"{test}.en-fr"}
    stems["test_debates"] = text / "test_debates"
    side_by_side = {}  # each compiles
    for name, stem in stems.items():
        files = [f"--source={stem}.en.gz", f"--reference={stem}.fr.gz"]
        files.append(f"--output={session.output / name}.fr")
        side_by_side[name] = start("evaluate", *files)
    page = f"--output={session.output / 'europarl_report.html'}"
    split = "--split=dev" if options.rehearse else "--split=test"
    side_by_side["report"] = start("report", page, split)
    for name, command in side_by_side.items():
        yield name, command.result()


def read_progress(
    session: Session, training: Command, log: Path, count: int
) -> list[dict[str, Any]]:
    """Wait for the first `count` lines of a training's log and return them.

    Raises Failed if the training or the time ends before.
    """
    while session.left > 0 and training.is_running:
        with contextlib.suppress(FileNotFoundError):
            *lines, _ = log.read_text("utf-8").split("\n")
            if len(lines) >= count:
                return [json.loads(line) for line in lines[:count]]
        time.sleep(0.05)
    training.result()
    raise Failed(f"the training ended before it had written {count} lines")


class Step(NamedTuple):
    """A step, and the seconds that it takes at least and at most."""

    run: Callable[[Session, Namespace], Iterator[Part]]
    least: int
    most: int


STEPS = {  # the most useful first
    "agreement": Step(agreement, 25, 60),
    "europarl": Step(europarl, 300, 520),
    "train": Step(train, 90, 400),
    "decode": Step(decode, 60, 400),
}


def run_step(name: str, session: Session, options: Namespace, machine: dict) -> bool:
    """Run a step and write a line for each part; return whether it failed nowhere."""
    begin = last = time.monotonic()
    parts = STEPS[name].run(session, options)
    while True:
        line: dict[str, Any] = {"step": name, "part": ENDED}
        with watched() as card:
            try:
                line["part"], line["found"] = next(parts)
            except StopIteration:
                pass
            except Exception as error:
                known = isinstance(error, Failed | InputError)
                line["part"] = "error"
                line["error"] = str(error) if known else traceback.format_exc()
        now, has_ended = time.monotonic(), "found" not in line
        line["seconds"] = round(now - (begin if has_ended else last), 1)
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
        names = ", ".join(STEPS)
        raise InputError(
            f"there is no step {', '.join(unknown)}; --steps takes {names}"
        )
    output.mkdir(parents=True, exist_ok=True)
    names = [*STEPS] if options.rehearse else without_result()
    done: dict[str, str] = {}
    has_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    with tempfile.TemporaryDirectory(dir=MEMORY if has_memory else None) as folder:
        environment = {
            **os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XDG_CACHE_HOME": f"{folder}/cache",
        }  # fmt: skip
        if options.rehearse:
            environment["JAX_PLATFORMS"] = "cpu"
        session = Session(output.resolve(), Path(folder), environment)
        packing.install(session.scratch / "site", environment)
        machine = describe_machine()
        for name in options.steps or names:
            left = begin + options.deadline - MARGIN - time.monotonic()
            session.until = time.monotonic() + min(left, STEPS[name].most)
            if options.rehearse:
                session.until = time.monotonic() + left
            if left < STEPS[name].least:
                done[name] = f"not started: {left:.0f} s are left"
            else:
                is_done = run_step(name, session, options, machine)
                done[name] = "ended" if is_done else "failed"
    return {"steps": done, "holds": {*done.values()} == {"ended"}}


main = functools.partial(
    harness.run, __doc__, measure, output=None, deadline=580.0, steps=[],
    rehearse=False, updates=9000, data=packing.default_data(),
    pack=("", *packing.KINDS),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
