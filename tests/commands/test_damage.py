"""A run's text, tokeniser and record when they are damaged: refused, never used."""

import contextlib
import json
import random

import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import CHECKSUMS
from tests.damage import DAMAGES, damaged, files_of, flip_bit


def read(workdir):
    """Read all files with checksums, but for those of checkpoints."""
    record, prepared = Workdir(workdir).read_record(), open_prepared(workdir)
    return record, prepared.report, Workdir(workdir).read_tokenizer(record).hash


@pytest.fixture
def files(own_run):
    files = [own_run / "config.json", own_run / "tokenizer.model"]
    files += files_of(own_run / "corpus")
    assert len(files) == 16
    return files


def has_same_values(file, content):
    """Whether a flip only changed white space of config.json."""
    with contextlib.suppress(ValueError):
        is_record = file.name == "config.json"
        return is_record and json.loads(file.read_bytes()) == json.loads(content)
    return False


@pytest.mark.parametrize("flips", [100, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_flipped_bit_is_used(own_run, files, flips):
    """One bit of a file, chosen at random: each file equally often."""
    draw, found = random.Random(1), read(own_run)
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        bit = draw.randrange(8 * len(content))
        flip_bit(file, bit)
        # A flip in the file of checksums seems to be damage of another file.
        name = "corpus is" if file.name == CHECKSUMS else file.name
        if has_same_values(file, content):
            assert read(own_run) == found
        else:
            with pytest.raises(InputError, match=name):
                read(own_run)
        flip_bit(file, bit)
    assert read(own_run) == found


def test_each_damaged_file_is_named(own_run, files):
    for kind in DAMAGES:
        for file in files:
            name = "corpus is" if file.name == CHECKSUMS else file.name
            with damaged(file, kind), pytest.raises(InputError, match=name):
                read(own_run)
    (own_run / "corpus" / "added").touch()
    with pytest.raises(InputError, match="added does not have its checksum"):
        read(own_run)
