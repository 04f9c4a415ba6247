"""The step `europarl` of benchmarks/gpu.py: text, training, scores, by users' commands.

The time that is left decides how many updates the run has. While it trains, other
processes score an early checkpoint. The scores at the end then find most programs in
the compilation cache.
"""

import contextlib
import json
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_session import Command, Failed, Part, Session

MEASURED = 50  # updates that are timed, after as many that compile
CHECKPOINTS = 20  # of a run; the last five are averaged
# Seconds that a run needs beside its updates (a start, checkpoints, the validation at
# its end), then for scores, and for the report.
BESIDE, SCORES, REPORT = 70, 75, 30
TINY = (
    "--config.model.encoder_layers=2", "--config.model.decoder_layers=2",
    "--config.model.d_model=128", "--config.model.d_ff=256",
    "--config.model.num_heads=4", "--config.model.d_k=32", "--config.model.d_v=32",
    "--config.model.dtype=float32", "--config.optimizer.warmup_steps=400",
    "--config.training.tokens_per_update=2048",
    "--config.training.tokens_per_microbatch=2048", "--config.data.vocab_size=4000",
)  # fmt: skip


def europarl(session: Session, options: Namespace) -> Iterator[Part]:
    """Prepare, train for the time there is, score and report.

    Raises Failed at its end if a command failed; the others have run.
    """
    made = _Europarl(session, options)
    yield "prepare", made.start("prepare").result()
    yield from made.measure()
    yield from made.train()
    yield from made.score()
    if made.failed:
        raise Failed("; ".join(made.failed))


class _Europarl:
    """The commands of one run, and the results that later commands need."""

    def __init__(self, session: Session, options: Namespace) -> None:
        self.session, self.rehearses = session, options.rehearse
        self.folder, self.failed = session.large / "europarl", []
        self.updates, self.steps = options.updates, 0
        text, news = options.data / "europarl_enfr", options.data / "newstest_enfr"
        self.config = ["--config=europarl_enfr", f"--config.data.directory={text}"]
        self.config += ["--config.batches.executor=python"]
        self.config += TINY if self.rehearses else []
        self.measured = 10 if self.rehearses else MEASURED
        times = (0, 0, 0) if self.rehearses else (BESIDE, SCORES, REPORT)
        self.beside, self.scores, self.report = times
        test = "newstest2013" if self.rehearses else "newstest2014"
        self.texts = {
            test: news / f"{test}.en-fr",
            "test_debates": text / "test_debates",
        }

    def start(self, mode: str, *flags: str, **training: int) -> Command:
        changes = [
            f"--config.training.{key}={value}" for key, value in training.items()
        ]
        own = [*self.config, *changes] if mode in ("prepare", "train") else []
        common = ["-m", "jaxformer.main", f"--mode={mode}", f"--workdir={self.folder}"]
        return self.session.start(*common, *own, *flags)

    def measure(self) -> Iterator[Part]:
        """Train a little, and set the number of updates by their time."""
        begin, log = time.monotonic(), self.folder / "metrics.jsonl"
        training = self.start("train", steps=self.updates, log_every=self.measured)
        lines = read_progress(self.session, training, log, 2)
        training.stop()
        update = (lines[1]["time"] - lines[0]["time"]) / self.measured
        training.result()
        left = self.session.left - self.beside - self.scores - self.report
        steps = max(4 * self.measured, min(self.updates, int(left / update)))
        self.steps = max(1, steps // CHECKPOINTS) * CHECKPOINTS
        yield (
            "speed",
            {
                "update_seconds": update,
                "tokens_per_second": lines[1]["tokens_per_second"],
                "seconds": time.monotonic() - begin,
                "steps": self.steps,
                "hours_of_the_paper": 100_000 * update / 3600,  # section 5.2, base
            },
        )

    def train(self) -> Iterator[Part]:
        """Train to the end or to the time of scoring, and validate one checkpoint."""
        every = self.steps // CHECKPOINTS
        plan = {"steps": self.steps, "save_every": every}
        plan["eval_every"] = every * (CHECKPOINTS + 1)  # only at the end
        training = self.start("train", log_every=2 * self.measured, **plan)
        after = self.scores + self.report
        step = self.wait_for_checkpoint(training, self.steps // 3)
        if training.is_running:
            chosen, stem = f"--checkpoint={step}", self.texts["test_debates"]
            files = f"--source={stem}.en.gz", f"--reference={stem}.fr.gz"
            validation = self.start("evaluate", chosen, "--split=dev")
            self.start("evaluate", chosen, *files)  # to compile
            with self.noting("validation"):
                yield "validation", {"step": step, **validation.result(after)}
        training.wait(self.session.left - after)
        if training.is_running:
            training.stop()
        with self.noting("train"):
            yield "train", training.result(self.report)
        with contextlib.suppress(OSError):
            log = self.folder / "metrics.jsonl"
            shutil.copy(log, self.session.output / "europarl_metrics.jsonl")

    def wait_for_checkpoint(self, training: Command, least: int) -> int:
        """Wait for a checkpoint of at least a step; return its step, or 0."""
        folder = self.folder / "checkpoints"
        while training.is_running and self.session.left > 0:
            found = [
                int(path.name) for path in folder.glob("*") if path.name.isdecimal()
            ]
            if max(found, default=0) >= least:
                return max(found)
            time.sleep(0.1)
        return 0

    def score(self) -> Iterator[Part]:
        """Score the texts side by side, then write the report."""
        pending = {}
        for name, stem in self.texts.items():
            files = [f"--source={stem}.en.gz", f"--reference={stem}.fr.gz"]
            files.append(f"--output={self.session.output / name}.fr")
            pending[name] = self.start("evaluate", *files)
        while pending:
            for name, command in list(pending.items()):
                if not command.is_running or self.session.left < 1:
                    del pending[name]
                    with self.noting(name):
                        yield name, command.result()
            time.sleep(0.1)
        page = f"--output={self.session.output / 'europarl_report.html'}"
        split = "--split=dev" if self.rehearses else "--split=test"
        with self.noting("report"):
            yield "report", self.start("report", page, split).result()

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Note a command that failed, and go on."""
        try:
            yield
        except Failed as error:
            self.failed.append(f"{name}: {error}")


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
