"""Every command logs a line before anything compiles."""

import pytest

from jaxformer.errors import InputError
from jaxformer.training.checkpoint import Checkpoints


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("train", "corpus: using "),
        ("translate", "reading parameters of "),
        ("evaluate", "reading parameters of "),
        ("score", "reading parameters of "),
        ("align", "reading parameters of "),
        ("visualize", "reading parameters of "),
        ("serve", "reading parameters of "),
        ("report", "report: toy\nreading parameters of "),
        ("export", "reading parameters of "),
    ],
)
def test_a_line_comes_before_checkpoints_are_opened(use, monkeypatch, mode, line):
    """Commands compile after opening checkpoints; prepare and check log the corpus."""

    def stop(*_, **__):
        raise InputError("stopped by the test")

    monkeypatch.setattr(Checkpoints, "__init__", stop)
    flags = {"serve": ["--port=0"], "export": ["--format=stablehlo", "--output=x"]}
    answer = use(mode, *flags.get(mode, []))
    assert answer.complaint == "stopped by the test"
    assert answer.err.startswith(line)
