"""A toy language, a model that learnt it, and the command line as a user meets it.

The model is trained once for all tests of the modes, by the command line itself. A
test that changes a workdir changes a copy.
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxformer.main import main

# Word by word, and the order stays: learnt in a few seconds.
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
        d_v=16, dropout=0.0, dtype="float32",
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
        """What every command that reads the config is given."""
        return (f"--config={self.config}", f"--config.data.directory={self.directory}")

    def translate(self, sentence: str) -> str:
        """The one right translation."""
        return " ".join(WORDS[word] for word in sentence.split())


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def result(self) -> dict:
        """The JSON of a command that went well: the only line on stdout."""
        assert self.code == 0, self.err
        assert "Traceback" not in self.err
        assert self.out.count(b"\n") == 1
        assert self.out.endswith(b"\n")
        return json.loads(self.out, parse_constant=pytest.fail)

    @property
    def lines(self) -> list[str]:
        """The translations of a command that went well."""
        assert self.code == 0, self.err
        assert "Traceback" not in self.err
        *lines, rest = self.out.decode().split("\n")
        assert rest == ""
        return lines

    @property
    def complaint(self) -> str:
        """The one line, after what was reported before, of a command that refused."""
        assert (self.code, self.out) == (2, b""), self.err
        assert "Traceback" not in self.err
        assert self.err.endswith("\n")
        _, start, message = self.err[:-1].rpartition("jaxformer: ")
        assert start, self.err
        assert "\n" not in message
        return message


Command = Callable[..., Answer]


class Trained(NamedTuple):
    """A finished run; not to be changed."""

    workdir: Path
    answer: Answer


@contextlib.contextmanager
def quickly_compiled(cache: Path) -> Iterator[None]:
    """Compile with little optimisation, and no program twice."""
    wanted = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in wanted}
    _configure(wanted)
    try:
        yield
    finally:
        _configure(before)


def _configure(values: dict) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def own_logging() -> Iterator[None]:
    """Let a command set up logging, and undo it."""
    room = logging.getLogger("jaxformer")
    levels = logging.root.level, room.level
    with mock.patch.object(logging.root, "handlers", []):
        yield
    logging.root.setLevel(levels[0])
    room.setLevel(levels[1])


@pytest.fixture(scope="session")
def command(tmp_path_factory) -> Command:
    """Give the command line as a function of its arguments and stdin."""
    cache = tmp_path_factory.mktemp("compiled")

    def run(*argv: str, stdin: bytes = b"") -> Answer:
        out = io.TextIOWrapper(io.BytesIO(), "ascii")  # of a poor locale
        err = io.StringIO()
        with (
            quickly_compiled(cache),
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


# Real processes -------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
PEER_TIMEOUT = 10  # seconds, the least that the flag takes


class Cluster:
    """Some processes that were started together."""

    def __init__(self, processes: list[subprocess.Popen], folder: Path) -> None:
        self.processes = processes
        self.folder = folder

    def stderr(self, index: int) -> str:
        return (self.folder / f"{index}.err").read_text()

    def stdout(self, index: int) -> str:
        return (self.folder / f"{index}.out").read_text()

    def complaint(self, index: int) -> str:
        """The one line of ours about a failure; Gloo's thread may print after it."""
        lines = self.stderr(index).splitlines()
        (ours,) = [line for line in lines if line.startswith("jaxformer: ")]
        return ours

    def wait(self, seconds: float) -> list[int]:
        """Exit codes; a process that has not ended by then is a failure."""
        end = time.monotonic() + seconds
        return [
            process.wait(max(0.1, end - time.monotonic())) for process in self.processes
        ]

    def until(self, happened: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not happened():
            codes = [process.poll() for process in self.processes]
            assert not any(codes), (codes, self.stderr(0), self.stderr(1))
            assert time.monotonic() < end, self.stderr(0)
            time.sleep(0.05)

    def results(self) -> dict:
        """The JSON of process 0; all have to end well, and the others mutely."""
        codes = self.wait(180)
        everything = [self.stderr(index) for index in range(len(codes))]
        assert set(codes) == {0}, everything
        assert not any(self.stdout(index) for index in range(1, len(codes)))
        return json.loads(self.stdout(0).rstrip("\n").rpartition("\n")[2])


Start = Callable[..., Cluster]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def start(tmp_path, compiled) -> Iterator[Start]:
    """Start `count` processes with `devices` each; kills what is left of them."""
    started: list[subprocess.Popen] = []

    def run(
        count: int,
        *argv: str,
        devices: int = 2,
        stdin: bytes = b"",
        join_timeout: int = 60,
        only: int | None = None,
        found: Callable[[int], dict[str, str]] | None = None,
    ) -> Cluster:
        """`found` gives the environment of a cluster, in the place of flags."""
        folder = tmp_path / f"cluster{len(started)}"
        folder.mkdir()
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_COMPILATION_CACHE_DIR": str(compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COORDINATOR_PORT": str(port),
        }
        mine = []
        for index in range(count) if only is None else [only]:
            together = (
                ()
                if count == 1 or found
                else (
                    f"--coordinator_address=127.0.0.1:{port}",
                    f"--num_processes={count}",
                    f"--process_id={index}",
                    f"--peer_timeout={PEER_TIMEOUT}",
                    f"--join_timeout={join_timeout}",
                )
            )
            with (
                (folder / f"{index}.out").open("wb") as out,
                (folder / f"{index}.err").open("wb") as err,
            ):
                process = subprocess.Popen(
                    [sys.executable, "-m", "jaxformer.main", *argv, *together],
                    cwd=ROOT,
                    env={**environment, **(found(index) if found else {})},
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                )
            process.stdin.write(stdin if index == 0 else b"")
            process.stdin.close()
            mine.append(process)
        started.extend(mine)
        return Cluster(mine, folder)

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def flags(toy) -> tuple[str, ...]:
    """Give a run with dropout whose every step is logged."""
    return (
        *toy.flags,
        "--config.model.dropout=0.1",
        "--config.optimizer.learning_rate_scale=0.02",
        "--config.training.log_every=1",
        "--config.training.save_every=10",
        "--config.training.eval_every=1000000",
    )


@pytest.fixture
def losses() -> Callable[[Path], dict[int, float]]:
    """Read the training loss of a workdir by step."""

    def read(workdir: Path) -> dict[int, float]:
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}

    return read


@pytest.fixture
def newest_step() -> Callable[[Path], int]:
    """Find the newest checkpoint of a workdir that is complete, 0 without any."""

    def find(workdir: Path) -> int:
        names = [path.name for path in (workdir / "checkpoints").glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    return find
