"""Mistakes of the user: one line on stderr, exit code 2, and nothing is written."""

import shutil
import sys
from unittest import mock

import pytest

from jaxformer.runs.config_files import parse_config
from jaxformer.runs.workdir import Workdir
from jaxformer.system import processes
from tests.commands.runs import mtimes
from tests.runs.test_workdir import tokenizer_of

FOREIGN = "--workdir=foreign", "damaged or not the tokeniser of this run"
TORN = "corpus is damaged: train/source.tokens does not have its checksum"
EDITED = "--workdir=edited", "edited/config.json cannot be read, is damaged or was ed"
NOT_THERE = "new is not a writable folder; choose another file"
# For each command: flags beside --workdir=run, and words of the message.
MISTAKES = {
    "train": [
        ("--config.model.d_ff=32", "model.d_ff=64, and this config says 32"),
        ("--config.training.steps=90", "a run of 100 steps, and the config asks"),
        ("--config.mesh.data=3", "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not"),
        ("--workdir=new", "there is no run in new"),
        ("--workdir=short --config=toy", "short: File exists; use another path"),
        (
            "--workdir=new --config=toy --config.batches.row_length=800",
            "tokens_per_mic",
        ),
        (
            "--workdir=new --config=toy --config.model.positions=learned "
            "--config.model.max_positions=20",
            "model.max_positions=20 does not hold a row of 32 tokens",
        ),
        (
            "--workdir=new --config=toy --config.data.shared_vocabulary=False",
            "an id is another piece in each language; set model.tied_embeddings=target",
        ),
        (
            "--workdir=given --config=demo --config.data.shared_vocabulary=False "
            "--config.model.tied_embeddings=none",
            "the tokeniser has one vocabulary of the languages, and data.shared_vocabu",
        ),
        (
            "--workdir=new --config=toy --config.model.encoder_projected_keys=9",
            "the sentence pairs of a packed row apart; set batches.layout=buckets",
        ),
        EDITED,
        ("--workdir=torn", TORN),
        ("--config.data.directory=elsewhere", "elsewhere cannot be compared"),
        (
            "--workdir=new --config=demo --config.data.dev=0",
            "the dev split is empty; change data.dev",
        ),
        (
            "--workdir=given --config=demo --config.data.vocab_size=10",
            "given/tokenizer.model cannot be used: it has 11 ids, more than data.vocab",
        ),
    ],
    "check": [
        ("--workdir=", "nothing to check: give --config=..."),
        ("--output=new/page.html", NOT_THERE),
    ],
    "translate": [
        ("--workdir=run/config.json", "run/config.json/config.json cannot be read"),
        ("--workdir=untrained", "there is no checkpoint in untrained"),
        ("--ensemble=run,foreign", FOREIGN[1]),
        FOREIGN,
        ("--prefix=nowhere", "nowhere"),
        ("--prefix=short", "short has 2 lines and standard input has 3"),
        ("--prefix=many", "many has 51 lines and standard input has 3"),
        ("--phrases=short", "short has 2 lines and standard input has 3"),
        ("--phrases=odd", "line 2: the phrase '\u4f60' has a character that the voc"),
        ("--phrases=odd --temperature=1", "samples have no phrases; leave out the te"),
        ("--max_source_length=2 --long_lines=refuse", "line 1 has 4 pieces"),
    ],
    "evaluate": [
        ("--source=short", "--source and --reference go together"),
        ("--source=one --reference=short", "one has 1 lines and short has 2;"),
        ("--source=empty --reference=one", "empty is empty"),
        ("--source=binary --reference=short", "binary, line 2: byte 1"),
        ("--split=tset", "'tset'"),
        ("--output=new/text", NOT_THERE),
        ("--output=new.gz", "--output=new.gz would be plain text; choose another"),
        ("--split=dev --workdir=torn", TORN),
    ],
    "score": [
        ("--checkpoint=7", "checkpoints/7; there are steps 50, 75, 100"),
        *(
            (f"--checkpoint={word}", f"{word} is none of: a step, latest, best, averag")
            for word in ("last", "average:", "average:0", "average:x", "-1", "²")
        ),
        ("--checkpoint=" + "9" * 5000, "9 is none of: a step, latest, best, averag"),
        ("--workdir=unscored --checkpoint=best", "score yet; use the checkpoint"),
        ("--config.training.best_by=blue", "'blue'; use one of bleu"),
    ],
    "align": [
        ("--output=short", "--output=short exists"),
        ("--output=new/page.npz", NOT_THERE),
    ],
    "visualize": [
        ("--attention=cross:2", "no layer 2: choose from 1 to 1"),
        ("--attention=cross:1:1,b", "--attention=cross:1:1,b is none of STACK"),
        ("--source=blank", "0 sentences cannot be shown"),
        ("--source=many", "51 sentences cannot be shown: give 1 to 50"),
        ("--source=long", "more than 32"),
        ("--source=short --output=new.svg", "shows one sentence"),
        ("--output=page.gif", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
    ],
    "report": [
        ("--compare=other,other", "given twice"),
        ("--compare=new", "there is no run in new"),
        ("--compare=other", "other and run translate different texts"),
        ("--output=run", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
        ("--output=run/config.html", "run/config.json is where the report's data wou"),
    ],
    "reproduce": [
        ("--row=tabel3/A_h1", "did you mean table3/A_h1?"),
        ("--row=table3/E --workdir=", "--workdir is missing; give the folder to train"),
        ("--workdir=new", "there is no folder new"),
        ("--workdir=spoilt", "spoilt/reproduced.json cannot be read"),
        ("--workdir=other", "other/reproduced.json cannot be read (InputError"),
        ("--output=page.txt", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
        ("--output=page.html --row=table3/E", "leave out --row or --output"),
    ],
    "export": [
        ("", "give --format=ctranslate2"),
        ("--format=huggingface", "--output is missing; give the new folder"),
        ("--format=huggingface --output=new --quantization=int8", "int8 is not for"),
        ("--format=huggingface --output=run", "run exists already; choose a new"),
    ],
    "import": [
        ("--workdir=new --config=toy", "--input is missing"),
        ("--workdir=new --input=run", "--config is missing"),
    ],
    "serve": [
        ("--listen=192.0.2.1:8000", "cannot listen on host 192.0.2.1, port 8000"),
        ("--listen=localhost", "--listen=localhost is no HOST:PORT"),
        *(
            (f"--host_names={name}", f"--host_names has '{name}'; write names as")
            for name in ("[", "[::1", "de.example/", "De.example", "de.example:80")
        ),
    ],
}


@pytest.fixture(scope="module")
def folder(trained, toy, tmp_path_factory):
    """The finished run, others that lack something, and files."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(trained.workdir, folder / "run")
    names = ["untrained", "unscored", "spoilt", "foreign", "other", "torn", "edited"]
    untrained, unscored, spoilt, foreign, other, torn, edited = (
        shutil.copytree(trained.workdir, folder / name) for name in names
    )
    (torn / "corpus" / "train" / "source.tokens").write_bytes(b"")
    record = (edited / "config.json").read_text()
    (edited / "config.json").write_text(record.replace('"d_ff": 64', '"d_ff": 32'))
    (folder / "given").mkdir()
    (folder / "given" / ".lock").touch()
    tokenizer_of(["x y z"], folder / "given" / "tokenizer.model")
    tokenizer_of(["x y z"], foreign / "tokenizer.model")
    shutil.rmtree(untrained / "checkpoints")
    (unscored / "metrics.jsonl").unlink()
    (spoilt / "tokenizer.model").write_bytes(b"nothing")
    (spoilt / "reproduced.json").write_text('{"row": "table3/E"}')
    (other / "reproduced.json").write_text('{"row": "table9/E"}')
    record = Workdir(other).read_record()
    values = record.config.as_dict()
    values["data"]["test"] = "dev"
    tokenizer = Workdir(other).read_tokenizer(record)
    Workdir(other).write_record(parse_config(values), tokenizer)
    shutil.copy(toy.config, folder)
    for name, content in {
        "short": b"SU\nRI\n", "one": b"bo\n", "empty": b"", "blank": b" \n",
        "many": b"bo\n" * 51, "odd": "\n\u4f60\n\n".encode(),
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
def test_a_command_of_one_process_is_refused_in_several(command, mode, monkeypatch):
    monkeypatch.setattr(processes, "are_several", lambda: True)
    monkeypatch.setattr(processes, "end_last", lambda: None)
    refused = command(mode, workdir="new").complaint
    assert refused.startswith(f"--mode={mode} runs in one process; start ")
