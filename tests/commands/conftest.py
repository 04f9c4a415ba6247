"""A toy language, a model trained on it, and commands in this process or in others.

The model is trained once for all tests of commands. A test that changes a workdir
changes a copy.
"""

import contextlib
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

from jaxformer.main import main
from tests.commands.cluster import Cluster, start_processes

# Word by word, in the same order: learnt in a few seconds.
WORDS = {
    "bo": "SU", "da": "RI", "fe": "BO", "gi": "KA", "hu": "FE", "ka": "MO",
    "le": "TE", "mo": "DA", "ni": "HU", "pa": "LE", "ru": "NI", "te": "GI",
}  # fmt: skip
CONFIG = '''"""A run of seconds."""

from jaxformer.configs import wmt_base


def get_config():
    config = wmt_base.get_config()
    config.data.update(
        corpus="directory", train="train", dev="dev", test="test", vocab_size=96,
        character_coverage=1.0, max_length=32,
    )
    config.batches.update(layout="packed", row_length=32, executor="python")
    config.model.update(
        encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64, num_heads=2, d_k=16,
        d_v=16, dropout=0.02, dtype="float32",
    )
    config.optimizer.update(warmup_steps=40, learning_rate_scale=0.5)
    config.training.update(
        steps=100, tokens_per_update=768, tokens_per_microbatch=768, log_every=20,
        eval_every=50, save_every=25, keep=3, average=2, label_smoothing=0.0,
    )
    config.decoding.update(beam_size=2, extra_length=8, batch_tokens=512)
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

    def translate(self, sentence: str) -> str:
        """The one right translation."""
        return " ".join(WORDS[word] for word in sentence.split())


class Answer(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def result(self) -> dict:
        """The JSON of a successful command: the only line on stdout."""
        (line,) = self.lines
        return json.loads(line, parse_constant=pytest.fail)

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


Command = Callable[..., Answer]


class Trained(NamedTuple):
    """A finished run, which tests do not change."""

    workdir: Path
    answer: Answer


@pytest.fixture(scope="session")
def command(own_logging) -> Command:
    """Give the command line as a function of its arguments and stdin."""

    def run(*argv: str, stdin: bytes = b"") -> Answer:
        out = io.TextIOWrapper(io.BytesIO(), "ascii")  # of a poor locale
        err = io.StringIO()
        with (
            own_logging(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        ):
            code = main(["jaxformer", *argv])
        out.flush()
        return Answer(code, out.buffer.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """Write the toy language's text and a config for it."""
    directory = tmp_path_factory.mktemp("toy")
    draw = random.Random(0)
    sentences = {
        " ".join(draw.choices(list(WORDS), k=draw.randint(1, 6))) for _ in range(1000)
    }
    order = sorted(sentences)
    draw.shuffle(order)
    splits = {"dev": order[:12], "test": order[12:24], "train": order[24:]}
    config = directory / "toy.py"
    config.write_text(CONFIG)
    toy = Toy(directory, config, splits["dev"], splits["test"])
    for split, sources in splits.items():
        for language, lines in (("en", sources), ("de", map(toy.translate, sources))):
            text = "".join(f"{line}\n" for line in lines)
            (directory / f"{split}.{language}").write_text(text)
    return toy


@pytest.fixture(scope="session")
def trained(toy, command, tmp_path_factory) -> Trained:
    """Train on the toy language."""
    workdir = tmp_path_factory.mktemp("runs") / "toy"
    answer = command(*toy.flags, f"--workdir={workdir}")
    assert answer.code == 0, answer.err
    return Trained(workdir, answer)


@pytest.fixture(scope="session")
def use(command, trained) -> Command:
    """Give commands on the finished run as a function of mode, flags and stdin."""

    def run(mode: str, *flags: str, lines: Iterable[str] = ()) -> Answer:
        stdin = "".join(f"{line}\n" for line in lines).encode()
        workdir = f"--workdir={trained.workdir}"
        return command(f"--mode={mode}", workdir, *flags, stdin=stdin)

    return run


@pytest.fixture
def pair_flags(tmp_path) -> Callable[..., tuple[str, str]]:
    """Write sentence pairs to files; returns the flags that name them."""

    def write(pairs: Iterable[tuple[str, str]]) -> tuple[str, str]:
        files = (tmp_path / "source", tmp_path / "reference")
        for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines))
        return (f"--source={files[0]}", f"--reference={files[1]}")

    return write


@pytest.fixture
def own_run(trained, tmp_path) -> Path:
    """Copy the finished run, for a test to change."""
    return Path(shutil.copytree(trained.workdir, tmp_path / "own"))


@pytest.fixture
def toy_is_gone(toy) -> Iterator[None]:
    """Take the text and the config away while a test runs."""
    elsewhere = toy.directory.with_name("elsewhere")
    os.rename(toy.directory, elsewhere)
    yield
    os.rename(elsewhere, toy.directory)


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path, str], list[dict]]:
    """Read the lines of one kind from a workdir's metrics.jsonl."""

    def read(workdir: Path, kind: str) -> list[dict]:
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    return read


# Real processes -------------------------------------------------------------------


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Cluster]]:
    """Start processes as `start_processes` does; kills what is left of them."""
    started: list[Cluster] = []

    def run(count: int, *argv: str, **options: Any) -> Cluster:
        folder = tmp_path / f"cluster{len(started)}"
        started.append(start_processes(folder, count, *argv, **options))
        return started[-1]

    yield run
    for process in (process for cluster in started for process in cluster.processes):
        process.kill()
        process.wait()


@pytest.fixture
def flags(toy) -> tuple[str, ...]:
    """Flags of a run whose every step is logged."""
    return (
        *toy.flags,
        "--config.optimizer.learning_rate_scale=0.02",
        "--config.training.log_every=1",
        "--config.training.save_every=10",
        "--config.training.eval_every=1000000",
    )


@pytest.fixture
def losses(metrics) -> Callable[[Path], dict[int, float]]:
    """Read the training loss of a workdir by step."""
    return lambda workdir: {
        line["step"]: line["loss"] for line in metrics(workdir, "train")
    }


@pytest.fixture
def newest_step() -> Callable[[Path], int]:
    """Find the newest complete checkpoint of a workdir, 0 without any."""

    def find(workdir: Path) -> int:
        names = [path.name for path in (workdir / "checkpoints").glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    return find
