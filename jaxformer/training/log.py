"""What a run reports: one progress line, `metrics.jsonl` and TensorBoard files.

The training loop hands over sums over tokens; they are divided here, once, on the host.
Loss and accuracy are per target token; perplexity is per piece, as in Table 3.
"""

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from jaxformer.errors import InputError
from jaxformer.training.loss import averages

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"


def read_scores(workdir: str | Path) -> dict[int, float]:
    """BLEU by step, of the evaluations during training that `metrics.jsonl` tells."""
    scores = {}
    for line in _lines(Path(workdir) / METRICS_FILE):
        if line.get("kind") == "eval" and isinstance(line.get("bleu"), float):
            scores[line["step"]] = line["bleu"]
    return scores


def read_metrics(workdir: str | Path) -> list[dict]:
    """Everything that `metrics.jsonl` tells, as it was written; [] without a log."""
    return list(_lines(Path(workdir) / METRICS_FILE))


class MetricsLog:
    """The log of one run; a context manager that closes its files and its bar.

    On a terminal the progress line is a bar that log messages do not tear; elsewhere
    every call of `train` logs one line. `workdir/metrics.jsonl` gets one object per
    call with step, kind ("train", "eval" or "final"), time (seconds since 1970) and
    the values, null where not finite; `workdir/tensorboard` gets the numbers as
    kind/name.
    """

    def __init__(
        self,
        workdir: str | Path,
        *,
        start_step: int,
        total_steps: int,
        writes: bool = True,
    ) -> None:
        """Continue the log in `workdir` after `start_step`, 0 for a new run.

        What a crashed run logged beyond the checkpoint it resumes from is dropped: it
        is about to be logged again. Of several processes only one `writes`.
        """
        from tensorboardX import SummaryWriter  # imports torch where it is installed

        path = Path(workdir) / METRICS_FILE
        if writes:
            _drop_lines_after(path, start_step)
        self._start_step = start_step
        self._total_steps = total_steps
        self._start = self._last = time.monotonic()
        self._paused = 0.0  # seconds since the last call of `train`
        self._trained_tokens = self._trained_seconds = 0.0
        self._closing = contextlib.ExitStack()
        file = path if writes else Path(os.devnull)
        self._file = self._closing.enter_context(file.open("a", encoding="utf-8"))
        self._board = SummaryWriter(
            str(path.parent / "tensorboard"),
            purge_step=start_step + 1,
            write_to_disk=writes,
        )
        self._closing.callback(self._close_board)
        self._bar = None
        if writes and _stderr_can_show_a_bar():
            self._closing.enter_context(logging_redirect_tqdm())
            self._bar = self._closing.enter_context(
                tqdm(
                    initial=start_step,
                    total=total_steps,
                    file=sys.stderr,
                    dynamic_ncols=True,
                    bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
                    "[{elapsed}<{remaining}{postfix}]",
                )
            )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def _close_board(self) -> None:
        """On a full disk what it still holds is lost; metrics.jsonl says why."""
        with contextlib.suppress(OSError):
            self._board.close()

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second over all updates reported so far; 0 before any."""
        return self._trained_tokens / max(self._trained_seconds, 1e-9)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time spent inside, evaluating, out of tokens per second."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - begin

    def train(
        self,
        step: int,
        sums: Mapping[str, float],
        *,
        learning_rate: float,
        gradient_norm: float,
        skipped_updates: int,
    ) -> None:
        """Report the updates since the last call, `step` being the last of them.

        `sums` over all of them, as `averages` takes them; rate and norm of the last;
        `skipped_updates` since the beginning of the run.
        """
        now = time.monotonic()
        values = averages(sums)
        values["learning_rate"] = learning_rate
        values["gradient_norm"] = gradient_norm
        values["skipped_updates"] = skipped_updates
        seconds = max(now - self._last - self._paused, 1e-9)
        values["tokens_per_second"] = float(sums["tokens"]) / seconds
        self._trained_tokens += float(sums["tokens"])
        self._trained_seconds += seconds
        self._last, self._paused = now, 0.0
        self._record(step, "train", values)
        self._show(step, values)

    def evaluation(
        self, step: int, scores: Mapping[str, float | str], *, kind: str = "eval"
    ) -> None:
        """Record an evaluation, which has told its scores itself.

        `kind` is "eval" for the parameters of that step, "final" for those that
        translation will use.
        """
        self._record(step, kind, scores)

    def _record(self, step: int, kind: str, values: Mapping[str, float | str]) -> None:
        now = time.time()
        finite = {
            name: value if isinstance(value, str) or math.isfinite(value) else None
            for name, value in values.items()
        }
        line = {"step": step, "kind": kind, "time": now, **finite}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()  # a crash loses nothing, and `tail -f` sees it
        except OSError as error:
            raise InputError(
                f"metrics could not be written to {self._file.name}: {error.strerror}; "
                "make room and start again"
            ) from error
        for name, value in values.items():
            if not isinstance(value, str):
                self._board.add_scalar(f"{kind}/{name}", value, step, now)

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        speed = f"{values['tokens_per_second']:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed}")
            return
        elapsed = time.monotonic() - self._start
        left = (self._total_steps - step) * elapsed / max(step - self._start_step, 1)
        logger.info(
            "step %s/%s: loss %.4f, ppl %.2f, lr %.3e, %s, ETA %s",
            f"{step:,}",
            f"{self._total_steps:,}",
            values["loss"],
            values["ppl"],
            values["learning_rate"],
            speed,
            timedelta(seconds=round(left)),
        )


def _stderr_can_show_a_bar() -> bool:
    """Whether it is a terminal of known size; in others tqdm draws nothing at all."""
    return sys.stderr.isatty() and all(os.get_terminal_size(sys.stderr.fileno()))


def _lines(path: Path) -> Iterator[dict]:
    """The objects in a file, without a line torn by a crash; none without a file."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):  # not JSON, or not even text
            value = json.loads(line)
            if isinstance(value, dict) and isinstance(value.get("step"), int):
                yield value


def _drop_lines_after(path: Path, step: int) -> None:
    """Rewrite the file atomically without later steps and a line torn by a crash."""
    if not path.exists():
        return
    kept = [json.dumps(line) + "\n" for line in _lines(path) if line["step"] <= step]
    unfinished = path.with_suffix(".jsonl.tmp")
    unfinished.write_text("".join(kept), encoding="utf-8")
    os.replace(unfinished, path)
