"""Marian as a peer on CPUs: the command of the package pymarian.

Its models have what ours of these sizes have, and biases of attention and logits.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.models import (
    BETA1,
    BETA2,
    DROPOUT,
    EPSILON,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    Sizes,
)

COMMAND = "pymarian"
OUTPUT_BIAS = "decoder_ff_logit_out_b"  # [1, V] of model.npz
NEVER = -1e9
UPDATES = 10_000  # whose text is written


def is_installed() -> bool:
    """Whether its command is found; if not, that is logged."""
    if shutil.which(COMMAND) is None:
        print(f"{COMMAND} is not installed and left out", file=sys.stderr)
        return False
    return True


def _end(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    with process:  # closes its pipes
        pass


class Paused:
    """A process that stands still between two calls."""

    def __init__(self, folder: Path, arguments: Sequence[object]) -> None:
        self._process = subprocess.Popen(
            [COMMAND, *map(str, arguments)], cwd=folder, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._log: list[str] = []
        weakref.finalize(self, _end, self._process)

    def send(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def write(self, lines: Sequence[str]) -> None:
        self._process.stdin.writelines(f"{line}\n" for line in lines)
        self._process.stdin.flush()

    def read(self) -> str:
        """Return the next line of its output. RuntimeError if it has ended."""
        line = self._process.stdout.readline()
        self._log = [*self._log[-20:], line]
        if not line:
            raise RuntimeError(f"Marian has ended: {''.join(self._log)}")
        return line


def _prepare(folder: Path, sizes: Sizes, count: int) -> list[object]:
    """Write text and vocabulary; return the options of training that both modes share.

    A sentence of n tokens has n - 1 words and EOS.
    """
    names = ["</s>", "<unk>", *map(str, range(4, sizes.vocabulary + 2))]
    vocabulary = {name: number for number, name in enumerate(names)}
    (folder / "vocab.yml").write_text(json.dumps(vocabulary))
    for seed, (side, length) in enumerate(
        (("source", sizes.source), ("target", sizes.target))
    ):
        rows = sizes.sentences(length, seed)[:, :-1].tolist()
        batch = "".join(" ".join(map(str, row)) + "\n" for row in rows)
        (folder / side).write_text(batch * count)
    return [
        "train", "--type", "transformer", "--enc-depth", sizes.layers, "--dec-depth",
        sizes.layers, "--dim-emb", sizes.d_model, "--transformer-heads",
        sizes.num_heads, "--transformer-dim-ffn", sizes.d_ff,
        "--transformer-ffn-activation", "relu", "--tied-embeddings-all",
        "--transformer-postprocess", "dan", "--transformer-dropout", DROPOUT,
        "--label-smoothing", LABEL_SMOOTHING, "--learn-rate", LEARNING_RATE,
        "--optimizer-params", BETA1, BETA2, EPSILON, "--clip-norm", 0, "--cost-type",
        "ce-mean-words", "--sync-sgd", "--maxi-batch", 1, "--shuffle", "none",
        "--max-length", 1000, "--disp-freq", "1u", "--seed", 1,
        "-w", 2000, "-m", "model.npz", "-t", "source", "target",
        "--vocabs", "vocab.yml", "vocab.yml",
    ]  # fmt: skip


def marian_updates(folder: Path, sizes: Sizes, threads: int) -> Callable[[int], float]:
    """Make a function that makes updates and returns the mean loss of the last."""

    @functools.cache
    def start() -> Paused:
        options = _prepare(folder, sizes, UPDATES)
        how = "--cpu-threads", threads, "--mini-batch", sizes.rows  # of all threads
        return Paused(folder, [*options, *how])

    def make(count: int) -> float:
        process = start()
        process.send(signal.SIGCONT)
        for _ in range(count):
            while " Cost " not in (line := process.read()):
                pass
        process.send(signal.SIGSTOP)
        return float(line.partition(" Cost ")[2].split()[0])

    return make


def marian_translator(
    folder: Path, sizes: Sizes, beam_size: int, threads: int
) -> Callable[[Sequence[str]], list[str]]:
    """Make a function that translates to exactly `target` tokens, EOS left out."""
    folder.mkdir(parents=True)
    options = _prepare(folder, sizes, 1)
    once = ["--cpu-threads", 1, "--mini-batch", sizes.rows, "--after-batches", 1]
    command = [COMMAND, *map(str, [*options, *once])]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    with np.load(folder / "model.npz") as archive:
        arrays = dict(archive)
    arrays[OUTPUT_BIAS] = np.zeros((1, sizes.vocabulary), np.float32)
    arrays[OUTPUT_BIAS][0, :2] = NEVER  # </s> and <unk>
    np.savez(folder / "model.npz", **arrays)
    parts = 1 if sizes.rows % threads else threads  # each a batch of one thread
    process = Paused(folder, [
        "decode", "-m", "model.npz", "--vocabs", "vocab.yml", "vocab.yml", "-b",
        beam_size, "--normalize", 0.6, "--quiet", "--max-length-factor",
        sizes.target / sizes.source, "--cpu-threads", parts, "--maxi-batch", parts,
        "--mini-batch", sizes.rows // parts,
    ])  # fmt: skip

    def translate(lines: Sequence[str]) -> list[str]:
        process.write(lines)
        return [process.read().strip() for _ in lines]

    return translate
