"""Report a run: one progress line, `metrics.jsonl` and TensorBoard files.

Loss and accuracy are per target token; perplexity is per piece, as in Table 3.
"""

import contextlib
import functools
import json
import logging
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from jaxformer.system import first
from jaxformer.system.errors import InputError
from jaxformer.system.files import naming, write_atomically
from jaxformer.system.progress import draws_bars, progress, working_time
from jaxformer.training.loss import averages
from jaxformer.training.tensorboard_log import TensorBoardLog
from jaxformer.training.wandb_log import WandbLog

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"


def encode(line: Mapping[str, float | str | None]) -> str:
    """A line of `metrics.jsonl`: values, and their checksum."""
    checksum = zlib.crc32(json.dumps(line).encode())
    return json.dumps({**line, "crc32": checksum}) + "\n"


def read_metrics(workdir: Path, run: str | None = None) -> list[dict]:
    """The objects in `metrics.jsonl`; [] without it.

    Damaged lines are left out, with a warning. So is a line that a crash cut. `run` is
    `Record.run`. Raises InputError for a line of another run, if it is given.
    """
    file = workdir / METRICS_FILE
    found, damaged = _read(file, run)
    if damaged:
        lines = ", ".join(map(str, damaged[:9]))
        logger.warning("%s: damaged and not used: line %s", file, lines)
    return found


def _read(file: Path, run: str | None) -> tuple[list[dict], list[int]]:
    """The objects in a file, and the numbers of damaged lines."""
    found, damaged = [], []
    *lines, cut = file.read_bytes().split(b"\n") if file.exists() else [b""]
    # A cut line lacks its closing brace, or only the newline.
    for number, line in enumerate([*lines, cut] if b"}" in cut else lines, 1):
        try:
            value = json.loads(line)
            del value["crc32"]
            is_intact = encode(value).encode() == line + b"\n"
        except (ValueError, KeyError, TypeError):  # or no JSON object
            is_intact = False
        if not is_intact:
            damaged.append(number)
        elif run in (None, value.get("run", "")):  # earlier versions wrote no name
            found.append(value)
        else:
            raise InputError(
                f"line {number} of {file} was written by another run; move the file "
                "out of this folder"
            )
    return found, damaged


def score_by(name: str, values: Mapping[str, float | None]) -> float:
    """Return the score of an evaluation, `training.best_by`; the higher, the better.

    It is -inf for a value that is not finite, or None as in the log.
    """
    value = values[name]
    if value is None or not math.isfinite(value):
        return -math.inf
    return -value if name.endswith("nll") else value


def best_of(scores: Mapping[int, float]) -> int | None:
    """Return the step of the highest score, of equals the earliest; None without any.

    `training.patience` counts from it, so a score that stands still ends a run.
    """
    return max(sorted(scores), key=scores.get, default=None)


def read_scores(workdir: Path, run: str, name: str) -> dict[int, float]:
    """`score_by` by step, of the evaluations in training; as process 0 reads them.

    Raises InputError as `read_metrics`.
    """

    def read() -> list[tuple[int, float]]:
        return [
            (line["step"], score_by(name, line))
            for line in read_metrics(workdir, run)
            if line.get("kind") == "eval"
            and isinstance(line.get(name, ""), float | None)
        ]

    return dict(map(tuple, first.once(read)))


class MetricsLog(contextlib.ExitStack):
    """The log of one run; a context manager that closes its files and its bar.

    On a terminal the progress line is a bar below the log messages; elsewhere every
    call of `train` logs one line. `workdir/metrics.jsonl` gets one object per call with
    step, kind ("train", "eval" or "final"), time (seconds since 1970), run and the
    values, null if not finite; `workdir/tensorboard` gets the numbers as kind/name.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        run: str,
        start_step: int,
        total_steps: int,
        tokens_before: float = 0.0,
        trackers: Sequence[str] = (),
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Continue the log of `run` in `workdir` after `start_step`, 0 for a new run.

        Later lines are dropped, since they will be made again. The first window has
        `tokens_before` tokens of earlier processes, which do not count for the speed.
        Of several processes only the first one writes. Weights & Biases gets the
        `config` and the numbers of the lines if `trackers` names it.
        """
        super().__init__()
        self._path, writes = workdir / METRICS_FILE, first.is_here()
        if writes and self._path.exists():
            lines = _read(self._path, run)[0] if start_step else []
            kept = [line for line in lines if line["step"] <= start_step]
            text = "".join(map(encode, kept)).encode()
            # A copy by hard links shares the file.
            if text != self._path.read_bytes() or self._path.stat().st_nlink > 1:
                write_atomically(self._path, text)
        self._run, self._start_step, self._total_steps = run, start_step, total_steps
        self._last = working_time()
        self._begun = start_step, self._last  # an update, and when it was finished
        self._trained_tokens = self._trained_seconds = 0.0
        self._tokens_before = tokens_before
        self._writes = writes
        if writes:
            has_wandb = "wandb" in trackers
            logs = [WandbLog(workdir, run, config or {})] if has_wandb else []
            self._trackers = [*map(self.enter_context, logs)]
        self._draws, self._last_values = draws_bars(), ""
        self._bar = self.enter_context(
            progress(
                "training", total_steps, unit="updates", initial=start_step,
                delay=0, leave=True,
                bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
                "[{elapsed}{postfix}]",
            )
        )  # fmt: skip
        self.callback(self._show, "")

    @functools.cached_property
    def _board(self) -> TensorBoardLog:
        """The event file; importing its library takes longer than a small update."""
        with self.pause():
            folder = self._path.parent / "tensorboard"
            board = TensorBoardLog(folder, first_step=self._start_step + 1)
        self.callback(board.close)
        return board

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second over all updates reported so far; 0 before any."""
        return self._trained_tokens / max(self._trained_seconds, 1e-9)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time spent inside, evaluating, out of tokens per second."""
        begin = working_time()
        yield
        self._last += working_time() - begin

    def made(self, step: int) -> None:
        """Move the bar to an update that the devices have finished, never back."""
        step = max(step, self._bar.n)
        if step > self._start_step == self._begun[0]:  # what is read for it takes long
            self._begun = step, working_time()
        is_known = self._begun[0] < step < self._total_steps
        self._show(f"ETA {self._left(step)}" if is_known else "")
        self._bar.update(step - self._bar.n)

    def _show(self, left: str) -> None:
        """Put the last values and the time left on the bar."""
        if self._draws:
            shown = ", ".join(filter(None, (self._last_values, left)))
            self._bar.set_postfix_str(shown, False)

    def _left(self, step: int) -> timedelta:
        """The time left, at the mean speed without compiling."""
        first, since = self._begun
        taken = (working_time() - since) / max(step - first, 1)
        return timedelta(seconds=round((self._total_steps - step) * taken))

    def train(self, step: int, sums: Mapping[str, float], **others: float) -> None:
        """Report the updates since the last call; `step` is the last of them.

        `sums` are their `LossSums`; `others` are reported as they are, among them
        `learning_rate`.
        """
        now, tokens = working_time(), float(sums["tokens"]) - self._tokens_before
        self._tokens_before = 0.0
        seconds = max(now - self._last, 1e-9)
        self._trained_tokens += tokens
        self._trained_seconds += seconds
        self._last = now
        values = {**averages(sums), **others, "tokens_per_second": tokens / seconds}
        speed = f"{tokens / seconds:,.0f} tokens/s"
        if self._draws:
            self._last_values = f"loss {values['loss']:.3f}, {speed}"
            self.made(step)
            self._bar.refresh()
        else:
            logger.info(
                "step %s: loss %.4f, ppl %.2f, lr %.3e, %s, ETA %s",
                f"{step:,}/{self._total_steps:,}",
                *(values[name] for name in ("loss", "ppl", "learning_rate")),
                speed,
                self._left(step),
            )
            self._bar.update(max(0, step - self._bar.n))  # its last line shows it
        self.record(step, "train", values)

    def record(self, step: int, kind: str, values: Mapping[str, float | str]) -> None:
        """Write values to the files, under the `kind` "train", "eval" or "final".

        A "final" line replaces that of the same step. Raises OSError.
        """
        line = {"step": step, "kind": kind, "time": time.time(), "run": self._run}
        for name, value in values.items():
            is_text = isinstance(value, str)
            line[name] = value if is_text or math.isfinite(value) else None
        if not self._writes:
            return
        with naming(self._path):
            if kind == "final":
                old, same = _read(self._path, self._run)[0], (step, kind)
                kept = [each for each in old if (each["step"], each["kind"]) != same]
                write_atomically(self._path, "".join(map(encode, [*kept, line])))
            else:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(encode(line))
        numbers = {n: v for n, v in values.items() if not isinstance(v, str)}
        tagged = {f"{kind}/{name}": v for name, v in numbers.items()}
        with naming(self._path.parent / "tensorboard"):
            self._board.write(step, line["time"], tagged)
        for tracker in self._trackers:
            tracker.write(step, line["time"], tagged)
