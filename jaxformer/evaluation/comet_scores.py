"""COMET (Rei et al. 2020), a learned metric, by its own package in its own process.

The package `unbabel-comet` needs NumPy 1 and JAX needs NumPy 2, so COMET has a Python
environment of its own. Nothing is downloaded.
"""

import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.evaluation import comet_process
from jaxformer.evaluation.minimum_bayes_risk import Triple
from jaxformer.system.errors import InputError
from jaxformer.system.first import once

logger = logging.getLogger(__name__)

PACKAGE = "unbabel-comet>=2.2.4"
BLOCK = 2**14  # triples that are sent at a time, a few megabytes


class Comet:
    """A process with a COMET checkpoint, which scores translations.

    `python` runs the process, by default the Python of this one. COMET's package
    chooses a GPU or the CPU. Raises InputError if the package or the checkpoint cannot
    be used.
    """

    def __init__(self, checkpoint: Path, python: str | Path | None) -> None:
        python = python or Path(sys.executable)
        if not checkpoint.is_file():
            raise InputError(
                f"comet={checkpoint} is no file; give the model.ckpt of a COMET model"
            )
        self._python = python
        try:
            process = subprocess.Popen(
                [python, comet_process.__file__, os.path.abspath(checkpoint)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
            )
        except OSError as error:
            raise InputError(
                f"the Python of comet {python} cannot be run: {error.strerror}; "
                "give that in which COMET is installed"
            ) from None
        self._process = process
        self._close = weakref.finalize(self, _close, process)
        self.signature = f"unbabel-comet:{self._answer()['version']}|model:{checkpoint}"

    def __call__(self, triples: Sequence[Triple]) -> list[float]:
        """Score each translation of a source against a reference; 1 is about the best.

        They are sent in blocks, which COMET batches.
        """
        names, scores = ("src", "mt", "ref"), []
        for begin in range(0, len(triples), BLOCK):
            block = triples[begin : begin + BLOCK]
            samples = [dict(zip(names, each, strict=True)) for each in block]
            with contextlib.suppress(BrokenPipeError):  # the missing answer says so
                self._process.stdin.write(json.dumps(samples) + "\n")
                self._process.stdin.flush()
            scores += self._answer()
        return scores

    def _answer(self) -> dict[str, str] | list[float]:
        line = self._process.stdout.readline()
        if not line:
            raise InputError(
                f"COMET has ended with exit status {self._process.wait()} before it "
                "answered; see its messages above, and whether its memory suffices"
            )
        answer = json.loads(line)
        if "missing" in answer:
            raise InputError(
                f"{self._python} lacks {answer['missing']}, which COMET needs; make an "
                "environment for it (python -m venv comet; comet/bin/pip install "
                f"'{PACKAGE}') and name its Python: --comet=FILE,comet/bin/python"
            )
        if "error" in answer:
            raise InputError(f"COMET cannot be used: {answer['error']}")
        return answer


def mean_comet(metric: Comet | None, *sides: Sequence[str]) -> dict[str, Any]:
    """Return the mean score of `sides`, as of a `Triple`, and how it was computed."""
    if metric is None:
        return {}
    triples = [*zip(*sides, strict=True)]
    mean = once(lambda: statistics.fmean(metric(triples)))
    logger.info("COMET %.4f (%s)", mean, metric.signature)
    return {"comet": mean, "comet_signature": metric.signature}


def _close(process: subprocess.Popen) -> None:
    """End the process by the end of its input."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    process.wait()
