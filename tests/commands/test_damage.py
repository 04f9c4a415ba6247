"""A run's files when they are damaged: refused by name, never used, nothing lost."""

import contextlib
import errno
import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from jaxformer.corpus.prepared import open_prepared
from jaxformer.runs.workdir import Workdir
from jaxformer.system.errors import InputError
from jaxformer.system.files import CHECKSUMS, write_checksums
from tests.commands.fuzzing import LIMIT, contents
from tests.damage import DAMAGES, damaged, files_of, flip_bit


def files_to_verify(workdir):
    """Files with checksums, but for those of checkpoints."""
    files = [workdir / "config.json", workdir / "tokenizer.model"]
    files += files_of(workdir / "corpus")
    assert len(files) == 16
    return files


def name_of(file):
    """A damaged file of checksums seems to be damage of another file."""
    if file.name != CHECKSUMS:
        return file.name
    return "corpus is damaged" if "corpus" in file.parts else "100 is damaged"


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_command_names_each_damaged_file_and_loses_nothing(command, own_run, kind):
    checkpoint = files_of(own_run / "checkpoints" / "100")
    cases = [(file, ["prepare"]) for file in files_to_verify(own_run)]
    cases += [(file, ["translate", "--checkpoint=100"]) for file in checkpoint]
    assert len(cases) > 24
    for file, arguments in cases:
        with damaged(file, kind):
            before = contents(own_run)
            answer = command(*arguments, workdir=own_run, stdin=["bo"])
            assert name_of(file) in answer.complaint
            assert contents(own_run) == before
    assert command("prepare", workdir=own_run).code == 0


@pytest.mark.parametrize("hidden", [".", "checkpoints", "corpus", "checkpoints/100"])
def test_a_folder_that_cannot_be_listed_at_present_is_not_a_new_run(
    command, toy, own_run, monkeypatch, hidden
):
    iterdir = Path.iterdir

    def fail(path):
        if path == own_run / hidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    before = contents(own_run)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        for mode, *flags in (["train", *toy.flags], ["translate"], ["prepare"]):
            answer = command(mode, *flags, workdir=own_run, stdin=["bo"])
            if answer.code or (hidden, mode) not in {
                ("corpus", "translate"), ("checkpoints/100", "prepare"),
            }:  # fmt: skip
                assert "Permission denied" in answer.complaint
    assert contents(own_run) == before


def test_a_corpus_of_other_text_than_the_checkpoints_is_refused(
    command, toy, own_run, tmp_path, toy_is_gone
):
    other = tmp_path / "other"
    shutil.copytree(own_run / "corpus", other)
    report = json.loads((other / "report.json").read_text())
    report["text"] = "0" * len(report["text"])
    (other / "report.json").write_text(json.dumps(report))
    write_checksums(other)
    shutil.rmtree(own_run / "corpus")
    other.rename(own_run / "corpus")
    before = contents(own_run)
    for mode in ("train", "prepare", "check", "evaluate"):
        flags = ["--split=dev"] if mode == "evaluate" else []
        complaint = command(mode, *flags, workdir=own_run).complaint
        assert "corpus has another text than the checkpoints" in complaint
    assert contents(own_run) == before


READERS = [
    "translate", "translate --checkpoint=best", "translate --checkpoint=latest",
    "score --split=dev", "evaluate --split=dev", "report --output=page.html",
    "export --format=huggingface --output=new",
]  # fmt: skip


@pytest.mark.nightly
def test_a_reader_of_a_damaged_run_gives_the_right_answer_or_none(
    command, own_run, tmp_path, monkeypatch
):
    """Each file is damaged once. A report of a damaged log says that lines are lost."""
    monkeypatch.chdir(tmp_path)
    expected, draw = {}, random.Random(0)

    def answer_of(reader):
        shutil.rmtree("new", ignore_errors=True)
        start = time.monotonic()
        answer = command(*reader.split(), workdir=own_run, stdin=["bo da fe", "ni"])
        assert time.monotonic() - start < LIMIT
        if answer.code or reader.startswith("translate"):
            return answer, answer.out
        data = Path("page.json").read_bytes() if reader.startswith("report") else b""
        return answer, (answer.result, data)

    for reader in READERS:
        answer, expected[reader] = answer_of(reader)
        assert answer.code == 0, answer.err
    outcomes = Counter()
    for number, file in enumerate(files_of(own_run)):
        kind, reader = draw.choice([*DAMAGES]), READERS[number % len(READERS)]
        with damaged(file, kind):
            before = contents(own_run)
            answer, found = answer_of(reader)
            assert contents(own_run) == before
        outcomes[answer.code] += 1
        if answer.code:
            assert answer.complaint
        elif "lacks its last lines" not in answer.err:
            assert found == expected[reader], (file, kind, reader)
    assert min(outcomes[0], outcomes[2]) > 3


def test_a_file_that_is_added_to_the_corpus_is_named(command, own_run):
    (own_run / "corpus" / "added").touch()
    complaint = command("prepare", workdir=own_run).complaint
    assert "added does not have its checksum" in complaint


def has_same_values(file, content):
    """Whether a flip only changed white space of config.json."""
    with contextlib.suppress(ValueError):
        is_record = file.name == "config.json"
        return is_record and json.loads(file.read_bytes()) == json.loads(content)
    return False


def read(workdir):
    """Read all files with checksums, but for those of checkpoints."""
    record, prepared = Workdir(workdir).read_record(), open_prepared(workdir)
    return record, prepared.report, Workdir(workdir).read_tokenizer(record).hash


@pytest.mark.parametrize("flips", [100, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_flipped_bit_is_used(own_run, flips):
    """One bit of a file, chosen at random: each file equally often."""
    draw, found, files = random.Random(1), read(own_run), files_to_verify(own_run)
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        bit = draw.randrange(8 * len(content))
        flip_bit(file, bit)
        if has_same_values(file, content):
            assert read(own_run) == found
        else:
            with pytest.raises(InputError, match=name_of(file)):
                read(own_run)
        flip_bit(file, bit)
    assert read(own_run) == found
