"""Mistakes of the user: one line on stderr, exit code 2, and nothing is written."""

import gzip
import os
import shutil
import sys
from unittest import mock

import pytest

from jaxformer.runs.config_files import parse_config
from jaxformer.runs.workdir import Workdir
from jaxformer.system import processes
from tests.commands.refusals import CONFIGS, FOUND, MISTAKES
from tests.commands.runs import mtimes
from tests.runs.test_workdir import tokenizer_of

FILES = {
    "short": b"SU\nRI\n", "one": b"bo\n", "empty": b"", "blank": b" \n",
    "many": b"bo\n" * 51, "odd": "\n\u4f60\n\n".encode(), "binary": b"a\n\xff",
    "ragged.tsv": b"SU\tRI\nRI\n", "long": b"bo " * 40,
    "cut.gz": gzip.compress(b"bo\n" * 99)[:-9], "terms": b"bo\tSU\n",
}  # fmt: skip
# Runs that differ in a value of `data`.
CHANGED = {
    "other": {"test": "dev"},
    "french": {"target_language": "fr"},
    "english": {"target_language": "en"},
    "martian": {"target_language": "xx"},
}


@pytest.fixture(scope="module")
def folder(trained, toy, tmp_path_factory):
    """The finished run, others that lack something, and files."""
    folder = tmp_path_factory.mktemp("mistakes")

    def copy(name):
        return shutil.copytree(trained.workdir, folder / name)

    copy("run")
    config = copy("edited") / "config.json"
    config.write_text(config.read_text().replace('"d_ff": 64', '"d_ff": 32'))
    (folder / "given").mkdir()
    (folder / "given" / ".lock").touch()
    for path in ("given/tokenizer.model", "own.model"):
        tokenizer_of(["x y z"], folder / path)
    tokenizer_of(["x y z"], copy("foreign") / "tokenizer.model")
    shutil.rmtree(copy("untrained") / "checkpoints")
    (copy("unscored") / "metrics.jsonl").unlink()
    (copy("spoilt") / "tokenizer.model").write_bytes(b"nothing")
    (folder / "spoilt" / "reproduced.json").write_text('{"row": "table3/E"}')
    for name, values in CHANGED.items():
        run = Workdir(copy(name))
        record = run.read_record()
        config = record.config.as_dict()
        config["data"] |= values
        run.write_record(parse_config(config), run.read_tokenizer(record))
    (folder / "other" / "reproduced.json").write_text('{"row": "table9/E"}')
    shutil.copy(toy.config, folder)
    shutil.copytree(toy.directory, folder / "text")
    os.mkfifo(folder / "pipe")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    for name, (text, _) in CONFIGS.items():
        (folder / name).write_text(text)
    for name, (line, _) in FOUND.items():
        (folder / name).write_text(f'{{"hypotheses": []}}\n{line}\n')
    return folder


@pytest.mark.parametrize(
    ("mode", "flags", "said"),
    [(mode, *each) for mode, cases in MISTAKES.items() for each in cases],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    command, folder, monkeypatch, mode, flags, said
):
    monkeypatch.chdir(folder)
    shutil.rmtree("new", ignore_errors=True)  # of a row that was not refused
    compilers = "jaxformer.commands.check_topology.compiler_of"
    monkeypatch.setattr(compilers, lambda _: "one that is installed")
    before = mtimes(folder)
    answer = command(mode, *flags.split(), workdir="run", stdin=b"bo da fe\n" * 3)
    assert said in answer.complaint
    assert mtimes(folder) == before


@pytest.mark.parametrize(
    ("mode", "flags", "package", "extra"),
    [
        ("serve", "--listen=0", "uvicorn", "serve"),
        ("report", "", "altair", "report"),
        ("export", "--format=ctranslate2 --output=new", "ctranslate2", "export"),
        ("export", "--format=huggingface --output=new", "safetensors", "export"),
    ],
)
def test_a_missing_package_is_named_when_it_is_needed(
    command, folder, monkeypatch, mode, flags, package, extra
):
    """The modules that use it are imported anew."""
    names = ("commands", "export", "reports", "serving")
    rooms = tuple(f"jaxformer.{name}" for name in names)
    monkeypatch.chdir(folder)
    with mock.patch.dict(sys.modules, {package: None, f"{package}.numpy": None}):
        for name in [name for name in sys.modules if name.startswith(rooms)]:
            del sys.modules[name]
        complaint = command(mode, *flags.split(), workdir="run").complaint
    for name in [name for name in sys.modules if name.startswith(rooms)]:
        parent, _, own = name.rpartition(".")
        setattr(sys.modules[parent], own, sys.modules[name])  # instead of the new ones
    assert package in complaint
    assert f"pip install 'jaxformer[{extra}]'" in complaint
    assert not (folder / "new").exists()


@pytest.mark.parametrize("mode", ["serve", "import"])
def test_a_command_of_one_process_is_refused_in_several(
    command, trained, mode, monkeypatch
):
    monkeypatch.setattr(processes, "are_several", lambda: True)
    monkeypatch.setattr(processes, "end_last", lambda: None)
    refused = command(mode, workdir=trained.workdir).complaint
    assert refused.startswith(f"jaxformer {mode} runs in one process; start ")
