"""A toy language, a model trained on it, and commands in this process or in others.

The model is trained once for all tests of commands. A test that changes a workdir
changes a copy.
"""

import contextlib
import functools
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from jaxformer import main as main_module
from jaxformer.main import main
from tests.commands.cluster import Cluster
from tests.commands.runs import config_flags, text_of

SOURCE = "bo da fe gi hu ka le mo ni pa ru te".split()  # noqa: SIM905
TARGET = "SU RI BO KA FE MO TE DA HU LE NI GI".split()  # noqa: SIM905
# Word by word, in the same order: learnt in a few seconds.
WORDS = dict(zip(SOURCE, TARGET, strict=True))
EXTRA_LENGTH = 8  # tokens
CONFIG = f'''"""A run of seconds."""

from jaxformer.configs import wmt_base


def get_config():
    config = wmt_base.get_config()
    config.data.update(
        corpus="directory", train="train", dev="dev", test="test", vocab_size=96,
        character_coverage=1.0, max_length=32, max_foreign=None,
    )
    config.batches.update(layout="packed", row_length=32, executor="python")
    config.model.update(
        encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64, num_heads=2, d_k=16,
        d_v=16, dropout=0.02, dtype="float32",
    )
    config.optimizer.update(warmup_steps=40, peak_learning_rate=0.5 * (32 * 40) ** -0.5)
    config.training.update(
        steps=100, tokens_per_update=3072, tokens_per_microbatch=3072, log_every=20,
        eval_every=50, save_every=25, keep=3, average=2, label_smoothing=0.0,
    )
    config.decoding.update(beam_size=2, extra_length={EXTRA_LENGTH}, batch_tokens=512)
    return config
'''


class Toy(NamedTuple):
    """The toy language on disk."""

    directory: Path  # train, dev and test, in "en" and "de"
    config: Path
    dev: list[str]
    test: list[str]

    @property
    def flags(self) -> tuple[str, str]:
        """The flags of every command that reads the config."""
        return (f"--config={self.config}", f"--config.data.directory={self.directory}")

    @staticmethod
    def translate(sentence: str) -> str:
        """The one right translation."""
        return " ".join(WORDS[word] for word in sentence.split())


class Answer(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def result(self) -> dict:
        """The JSON of a successful command without its time: all of stdout."""
        (line,) = self.lines
        found = json.loads(line, parse_constant=pytest.fail)
        assert found.pop("seconds") >= 0
        return found

    @property
    def lines(self) -> list[str]:
        """The lines on stdout of a successful command."""
        assert self.code == 0, self.err
        assert "Traceback" not in self.err
        *lines, rest = self.out.decode().split("\n")
        assert rest == ""
        return lines

    @property
    def complaint(self) -> str:
        """The last line on stderr of a command that refused its input."""
        assert (self.code, self.out) == (2, b""), self.err
        assert "Traceback" not in self.err
        *_, last = self.err.splitlines()
        assert last.startswith("jaxformer: "), self.err
        return last.removeprefix("jaxformer: ")


class Trained(NamedTuple):
    """A finished run, which tests do not change."""

    workdir: Path
    answer: Answer


Command = Callable[..., Answer]


@pytest.fixture(autouse=True, scope="session")
def keep_memory() -> Iterator[mock.Mock]:
    """What commands call in this process, whose allocator they leave alone."""
    with mock.patch.object(main_module, "keep_memory") as called:
        yield called


@pytest.fixture(scope="session")
def command(own_logging) -> Command:
    """Give the command line as a function of mode, flags, workdir and stdin."""

    def run(
        mode: str,
        *flags: str,
        workdir: Path | str | None = None,
        stdin: bytes | Iterable[str] = b"",
        is_terminal: bool = False,
    ) -> Answer:
        given = stdin if isinstance(stdin, bytes) else text_of(stdin).encode()
        read = io.BytesIO(given)
        read.isatty = lambda: is_terminal
        out = io.TextIOWrapper(io.BytesIO(), "ascii")  # of a poor locale
        err = io.StringIO()
        out.isatty = err.isatty = read.isatty
        err.fileno = lambda: 2
        size = os.terminal_size((100, 40))
        with (
            own_logging(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(read)),
            mock.patch.object(os, "get_terminal_size", return_value=size),
        ):
            folder = [] if workdir is None else [f"--workdir={workdir}"]
            code = main(["jaxformer", f"--mode={mode}", *folder, *flags])
        out.flush()
        return Answer(code, out.buffer.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """Write the toy language's text and a config for it."""
    directory = tmp_path_factory.mktemp("toy")
    draw = random.Random(0)
    sentences = {
        " ".join(draw.choices(SOURCE, k=draw.randint(1, 6))) for _ in range(4000)
    }
    order = sorted(sentences)
    draw.shuffle(order)
    splits = {"dev": order[:12], "test": order[12:24], "train": order[24:]}
    for split, lines in splits.items():
        (directory / f"{split}.en").write_text(text_of(lines))
        (directory / f"{split}.de").write_text(text_of(map(Toy.translate, lines)))
    config = directory / "toy.py"
    config.write_text(CONFIG)
    return Toy(directory, config, splits["dev"], splits["test"])


@pytest.fixture(scope="session")
def trained(toy, command, tmp_path_factory) -> Trained:
    """Train on the toy language."""
    workdir = tmp_path_factory.mktemp("runs") / "toy"
    answer = command("train", *toy.flags, workdir=workdir)
    assert answer.code == 0, answer.err
    return Trained(workdir, answer)


@pytest.fixture(scope="session")
def use(command, trained) -> Command:
    """Give commands on the finished run."""
    return functools.partial(command, workdir=trained.workdir)


@pytest.fixture
def own_run(trained, tmp_path) -> Path:
    """Copy the finished run, for a test to change."""
    return Path(shutil.copytree(trained.workdir, tmp_path / "own"))


@pytest.fixture
def toy_is_gone(toy) -> Iterator[None]:
    """Take the text and the config away while a test runs."""
    elsewhere = toy.directory.rename(toy.directory.with_name("elsewhere"))
    yield
    elsewhere.rename(toy.directory)


@pytest.fixture(scope="session", autouse=True)
def short_timing():
    """Time a small matrix product in `check`."""
    with mock.patch("jaxformer.runs.estimates.SIZES_TO_TIME", (64,)):
        yield


# Real processes -------------------------------------------------------------------


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Cluster]]:
    """Start processes; kills what is left of them."""
    started: list[Cluster] = []

    def run(count: int, *argv: str, **options: Any) -> Cluster:
        folder = tmp_path / f"cluster{len(started)}"
        started.append(Cluster(folder, count, *argv, **options))
        return started[-1]

    yield run
    for cluster in started:
        cluster.kill()


@pytest.fixture
def flags(toy) -> tuple[str, ...]:
    """Flags of a run whose every step is logged."""
    rate = config_flags("optimizer", peak_learning_rate=5.6e-4)
    saves = config_flags("training", log_every=1, save_every=10, eval_every=10**6)
    return (*toy.flags, *rate, *saves)


@pytest.fixture
def quick_check(monkeypatch):
    """Let `check` neither inspect the text nor compile; test_check.py tests both."""
    monkeypatch.setattr("jaxformer.commands.check.Worker", mock.MagicMock())
    for name in "inspection.piece_findings.add_pieces", "commands.check.report_text":
        monkeypatch.setattr(f"jaxformer.{name}", lambda *_: None)
    monkeypatch.setattr("jaxformer.inspection.findings.without_text", lambda _: None)
    monkeypatch.setattr("jaxformer.runs.estimates.step_memory", lambda *_, **__: None)
