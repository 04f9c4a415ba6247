"""A run's text, tokeniser and record when they are damaged: refused, never used."""

import json
import os
import random

import pytest

from jaxformer.files import CHECKSUMS


def files_of(workdir):
    """The files with checksums, but for those of checkpoints."""
    corpus = [path for path in (workdir / "corpus").rglob("*") if path.is_file()]
    return [workdir / "config.json", workdir / "tokenizer.model", *sorted(corpus)]


@pytest.mark.parametrize("flips", [40, pytest.param(500, marks=pytest.mark.nightly)])
def test_no_flipped_bit_is_used(command, own_run, flips):
    """One bit of a file, chosen at random: each file equally often."""
    draw, files = random.Random(1), files_of(own_run)
    assert len(files) == 16
    found = command("prepare", workdir=own_run).result
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        flipped = bytearray(content)
        bit = draw.randrange(8 * len(content))
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        answer = command("prepare", workdir=own_run)
        if answer.code == 0:  # white space of config.json
            assert answer.result == found, (file, bit)
            assert json.loads(flipped) == json.loads(content)
        else:
            # A flip in the file of checksums looks like damage of another file.
            named = "corpus is" if file.name == CHECKSUMS else file.name
            assert named in answer.complaint, (file, bit)
        file.write_bytes(content)
    assert command("prepare", workdir=own_run).result == found


DAMAGES = {
    "deleted": lambda file, _: file.unlink(),
    "emptied": lambda file, _: file.write_bytes(b""),
    "truncated": lambda file, _: os.truncate(file, file.stat().st_size // 2),
    "replaced": lambda file, other: file.write_bytes(other),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(command, own_run, damage):
    files = files_of(own_run)
    for index, file in enumerate(files):
        content = file.read_bytes()
        DAMAGES[damage](file, files[index - 1].read_bytes())
        complaint = command("prepare", workdir=own_run).complaint
        assert file.name in complaint or file.name == CHECKSUMS, file
        file.write_bytes(content)
    (own_run / "corpus" / "added").touch()
    assert "added is not in" in command("prepare", workdir=own_run).complaint
