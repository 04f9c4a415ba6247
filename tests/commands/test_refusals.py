"""Mistakes of the user: one line on stderr, exit code 2, and nothing is written."""

import json
import shutil
import sys
from unittest import mock

import pytest

from jaxformer import cli, processes
from jaxformer.errors import InputError
from jaxformer.main import command as module_of
from jaxformer.workdir import Workdir
from tests.test_workdir import tokenizer_of

FOREIGN = "--workdir=foreign", "is not the tokeniser that this run was trained with"
# For each command: flags beside --workdir=run, and words of the message.
MISTAKES = {
    "train": [
        ("--config.model.d_ff=32", "model.d_ff=64, and this config says 32"),
        (
            "--config.training.steps=90",
            "a run of 100 steps, and the config asks for 90",
        ),
        (
            "--config.mesh.data=3",
            "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not fit",
        ),
        ("--workdir=new", "there is no run in new"),
        ("--workdir=short --config=toy", "the workdir short cannot be made"),
        (
            "--workdir=new --config=toy --config.batches.row_length=800",
            "tokens_per_mic",
        ),
        ("--workdir=spoilt", "spoilt/tokenizer.model is not a SentencePiece model"),
        FOREIGN,
    ],
    "check": [("--workdir=", "nothing to check: give --config=...")],
    "translate": [
        ("--workdir=run/config.json", "run/config.json/config.json cannot be read"),
        ("--workdir=untrained", "there is no checkpoint in untrained"),
        ("--workdir=spoilt", "spoilt/tokenizer.model is not a SentencePiece model"),
        ("--ensemble=run,foreign", FOREIGN[1]),
        FOREIGN,
        ("--n_best=9 --beam_size=2", "n_best is 9, more than beam_size = 2"),
        ("--prefix=nowhere", "nowhere"),
        ("--max_source_length=2 --long_lines=refuse", "line 1 has 4 pieces"),
    ],
    "evaluate": [
        FOREIGN,
        ("--source=short", "--source and --reference go together"),
        ("--source=one --reference=short", "one has 1 lines and short has 2;"),
        ("--source=empty --reference=one", "empty is empty"),
        ("--source=binary --reference=short", "binary, line 2: byte 1"),
        ("--source=nowhere --reference=short", "nowhere"),
        ("--split=tset", "'tset'"),
    ],
    "score": [
        FOREIGN,
        ("--checkpoint=7", "checkpoints/7; there are steps 50, 75, 100"),
        *(
            (f"--checkpoint={word}", f"{word} is none of: a step, latest, best, averag")
            for word in ("last", "average:", "average:0", "average:x", "-1", "²")
        ),
        (
            "--workdir=unscored --checkpoint=best",
            "score yet; use the checkpoint latest",
        ),
    ],
    "align": [("--output=short", "--output=short exists")],
    "visualize": [
        ("--layer=2", "no layer 2: choose from 1 to 1"),
        ("--heads=1,b", "--heads=1,b is no list"),
        ("--source=blank", "0 sentences cannot be shown"),
        ("--source=many", "51 sentences cannot be shown: give 1 to 50"),
        ("--source=long", "more than 32"),
        ("--source=short --output=new.svg", "shows one sentence"),
        ("--output=page.gif", "does not end in .html"),
    ],
    "report": [
        ("--compare=other,other", "given twice"),
        ("--compare=new", "there is no run in new"),
        ("--compare=other", "other and run translate different texts"),
        ("--output=run", "does not end in .html"),
        ("--output=short/page.html", "cannot be written"),
    ],
    "reproduce": [
        ("--row=table3/A_h2", "did you mean table3/A_h"),
        ("--row=table3/E --workdir=", "--workdir is missing; give the folder to train"),
        ("--workdir=new", "there is no folder new"),
        ("--workdir=spoilt", "spoilt/reproduced.json cannot be read"),
        ("--output=page.txt", "does not end in .html"),
    ],
    "export": [
        ("", "give --format=ctranslate2"),
        ("--format=stablehlo", "--output is missing; give the new folder"),
        ("--format=huggingface --output=new --quantization=int8", "int8 is not for"),
        ("--format=huggingface --output=run", "run exists already; choose a new"),
    ],
    "import": [
        ("--workdir=new --config=toy", "--input is missing"),
        ("--workdir=new --input=run", "--config is missing"),
    ],
    "serve": [
        ("--port=99999", "cannot listen on host 127.0.0.1, port 99999"),
        ("--port=0 --workdir=new", "there is no run in new"),
        ("--max_request_pieces=9 --max_queue=17", "9 exceeds half of --max_queue=17"),
    ],
}


@pytest.fixture(scope="module")
def folder(trained, toy, tmp_path_factory):
    """The finished run, others that lack something, and files."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(trained.workdir, folder / "run")
    untrained, unscored, spoilt, foreign, other = (
        shutil.copytree(trained.workdir, folder / name)
        for name in ("untrained", "unscored", "spoilt", "foreign", "other")
    )
    tokenizer_of(["x y z"], foreign / "tokenizer.model")
    shutil.rmtree(untrained / "checkpoints")
    (unscored / "metrics.jsonl").unlink()
    (spoilt / "tokenizer.model").write_bytes(b"nothing")
    (spoilt / "reproduced.json").write_text('{"row": "table3/E"}')
    file = Workdir(other).config_file
    record = json.loads(file.read_text())
    record["config"]["data"]["test"] = "dev"
    file.write_text(json.dumps(record))
    shutil.copy(toy.config, folder)
    for name, content in {
        "short": b"SU\nRI\n", "one": b"bo\n", "empty": b"", "blank": b" \n",
        "many": b"bo\n" * 51,
        "binary": b"a\n\xff", "long": b"bo " * 40,
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("mode", "flags", "said"),
    [(mode, *each) for mode, cases in MISTAKES.items() for each in cases],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    command, folder, monkeypatch, mode, flags, said
):
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    answer = command(mode, *flags.split(), workdir="run", stdin=b"bo da fe\n")
    assert said in answer.complaint
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("mode", "flags", "package", "extra"),
    [
        ("serve", "--port=0", "uvicorn", "serve"),
        ("report", "", "altair", "report"),
        ("export", "--format=ctranslate2 --output=new", "ctranslate2", "export"),
        ("export", "--format=huggingface --output=new", "safetensors", "export"),
    ],
)
def test_a_missing_package_is_named_when_it_is_needed(
    command, folder, monkeypatch, mode, flags, package, extra
):
    """The modules that use it are imported anew."""
    rooms = tuple(
        f"jaxformer.{r}" for r in ("commands", "export", "reports", "serving")
    )
    monkeypatch.chdir(folder)
    with mock.patch.dict(sys.modules, {package: None, f"{package}.numpy": None}):
        for name in [name for name in sys.modules if name.startswith(rooms)]:
            del sys.modules[name]
        complaint = command(mode, *flags.split(), workdir="run").complaint
    assert package in complaint
    assert f"pip install 'jaxformer[{extra}]'" in complaint
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    "argv", [["--mode=serve"], ["--mode=import", "--config=demo", "--input=x"]]
)
def test_a_command_of_one_process_is_refused_in_several(argv, monkeypatch):
    monkeypatch.setattr(processes, "are_several", lambda: True)
    arguments = cli.parse([*argv, "--workdir=new"])
    with pytest.raises(InputError, match="one process"):
        module_of(arguments.mode).run(**arguments.flags)
