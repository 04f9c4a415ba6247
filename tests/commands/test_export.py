"""jaxformer export: a folder that other programs load."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.commands.runs import metrics, text_of
from tests.exports.conftest import odd_lines

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="extra `export`"
)

# Lines that only normalisation and "\n" as the one line end get right. None is so long
# that we would split it.
ODD = ["", *(line for line in odd_lines(["bo", "da", " "], 540) if len(line) < 40)]


@pytest.fixture
def export(use, tmp_path):
    """Export the trained run to a new folder, or to --output of the flags."""
    return lambda *flags: use("export", f"--output={tmp_path / 'exported'}", *flags)


def run_program(file, lines):
    """Run a stand-alone program on lines of text in its folder."""
    done = subprocess.run(
        [sys.executable, "-I", file.name], cwd=file.parent,
        input=text_of(lines).encode(), capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.decode().split("\n")[:-1]


def program_of_card(folder, lines):
    """Write the program of a model card, with these lines to translate, to a file."""
    card = (folder / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    assert program.count('"A sentence to translate."') == 1
    program = program.replace('"A sentence to translate."', repr(lines)[1:-1])
    (folder / "use.py").write_text(program, encoding="utf-8")
    return folder / "use.py"


@needs_ctranslate2
@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--length_penalty=power",),
        ("--beam_size=1", "--checkpoint=100", "--no_repeat_ngram=2"),
    ],
)
def test_the_program_of_an_export_translates_as_we_do(
    export, use, toy, flags, tmp_path
):
    result = export("--format=ctranslate2", *flags).result
    folder = tmp_path / "exported"
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    assert result == {
        "format": "ctranslate2", "output": str(folder), "quantization": "float32",
        "parameters": result["parameters"], "bytes": size,
    }  # fmt: skip
    odd = ODD if "--beam_size=1" in flags else ODD[:40]
    lines = [*toy.test, *odd, "unbekannt bo", *toy.dev]
    program = folder / "translate.py"
    assert run_program(program, lines) == use("translate", *flags, stdin=lines).lines
    assert run_program(program, []) == []


@needs_ctranslate2
@pytest.mark.slow
def test_one_of_several_processes_writes(start, trained, tmp_path):
    output = tmp_path / "exported"
    flags = ("--mode=export", "--format=ctranslate2", f"--workdir={trained.workdir}")
    assert start(2, *flags, f"--output={output}").result()["output"] == str(output)
    assert {file.name for file in output.iterdir()} == {
        "README.md", "config.json", "model.bin", "run", "sentencepiece.model",
        "shared_vocabulary.json", "translate.py",
    }  # fmt: skip


@needs_ctranslate2
def test_only_the_card_needs_the_corpus(command, own_run, tmp_path):
    """And weights have the type that is asked for."""
    (own_run / "corpus" / "report.json").write_text("{}")
    card = "--format=huggingface", f"--output={tmp_path / 'card'}"
    assert "is damaged" in command("export", *card, workdir=own_run).complaint
    assert not (tmp_path / "card").exists()
    flags = "--format=ctranslate2", f"--output={tmp_path / 'int8'}"
    result = command("export", *flags, "--quantization=int8", workdir=own_run).result
    assert result["quantization"] == "int8"
    positions = 4096 * 32 * 4  # of d_model 32, in float32
    size = (tmp_path / "int8" / "model.bin").stat().st_size
    assert size == pytest.approx(result["parameters"] + positions, rel=0.1)


# The model card of Hugging Face ---------------------------------------------------


@pytest.fixture
def cards():
    """huggingface_hub without a network."""
    return pytest.importorskip("huggingface_hub", reason="extra `export`")


def test_the_card_has_the_languages_and_scores_of_the_run(
    export, trained, toy, cards, tmp_path
):
    export("--format=huggingface", "--license=apache-2.0")
    text = (tmp_path / "exported" / "README.md").read_text()
    card = cards.ModelCard(text)
    data = card.data
    assert (data.language, data.license) == (["en", "de"], "apache-2.0")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    final = metrics(trained.workdir, "final")[-1]
    expected = {
        "bleu": (round(final["bleu"], 2), final["signature"]),
        "chrf": (round(final["chrf"], 2), final["chrf_signature"]),
    }
    found = {
        each.metric_type: (each.metric_value, each.metric_args["signature"])
        for each in data.eval_results
    }
    assert found == expected
    name = f"{toy.directory.name}/dev"
    for each in data.eval_results:
        assert (each.dataset_name, each.dataset_split) == (name, "validation")
    assert str(toy.directory) not in text
    assert f"| {toy.directory.name}/train | en-de | " in text
    assert "| layers | 1 encoder, 1 decoder |" in text
    signature = final["signature"].replace("|", "\\|")
    assert f"| {final['bleu']:.2f} | {signature} |" in text
    assert text.rstrip().endswith("apache-2.0")
    assert "$" not in text


@pytest.mark.parametrize(
    ("flag", "step"),
    [
        ("--checkpoint=50", 50),
        ("--checkpoint=latest", 100),
        ("--checkpoint=average:3", None),
        ("--config.training.average=1", 100),
        ("--beam_size=1", None),
        ("--length_penalty=power", None),
    ],
)
def test_the_card_has_scores_only_of_the_exported_parameters(
    export, trained, cards, tmp_path, flag, step
):
    export("--format=huggingface", flag)
    text = (tmp_path / "exported" / "README.md").read_text()
    data = cards.ModelCard(text).data
    lines = {line["step"]: line["bleu"] for line in metrics(trained.workdir, "eval")}
    if step is None:
        assert data.eval_results is None
        assert "No score of these parameters is recorded." in text
    else:
        assert data.eval_results[0].metric_value == round(lines[step], 2)
    assert data.license is None
    assert "Not stated. Ask the author" in text


def test_the_card_has_the_score_of_the_test_text_that_reproduce_wrote(
    command, own_run, toy, cards, tmp_path
):
    output = f"--output={tmp_path / 'exported'}"
    bleu = {"scorer": "sacreBLEU", "bleu": 12.345, "signature": "a|b"}
    record = {"changed": [], "every_bleu": [bleu]}
    record["parameters"] = metrics(own_run, "final")[-1]["parameters"]
    record["text"] = f"{toy.directory.name}/test"
    (own_run / "reproduced.json").write_text(json.dumps(record))
    command("export", "--format=huggingface", output, workdir=own_run)
    card = cards.ModelCard.load(tmp_path / "exported" / "README.md")
    test = card.data.eval_results[-1]
    assert (test.dataset_split, test.metric_value) == ("test", 12.35)
    assert test.dataset_name == f"{toy.directory.name}/test"
    for number, other in enumerate(
        ({"parameters": "of another step"}, {"changed": ["decoding.alpha=1, ..."]})
    ):
        (own_run / "reproduced.json").write_text(json.dumps(record | other))
        command("export", "--format=huggingface", f"{output}{number}", workdir=own_run)
        card = cards.ModelCard.load(tmp_path / f"exported{number}" / "README.md")
        assert {each.dataset_split for each in card.data.eval_results} == {"validation"}


@pytest.mark.slow
def test_the_program_in_the_card_translates_as_we_do(export, use, toy, cards, tmp_path):
    pytest.importorskip("torch", reason="not installed: extra `torch`")
    pytest.importorskip("transformers", reason="not installed: extra `torch`")
    # Transformers limits translations by the longest source, we limit each by its own.
    # No translation reaches this limit.
    longer = "--config.decoding.extra_length=60"
    export("--format=huggingface", longer)
    folder = tmp_path / "exported"
    lines = [*toy.test, *ODD[:40]]
    program = program_of_card(folder, lines)
    assert 'batch["input_ids"].shape[1] + 60' in program.read_text()
    with program.open("a") as file:
        file.write('assert len(encode("bo " * 2000)) == POSITIONS - 1\n')
    ours = use("translate", "--length_penalty=power", longer, stdin=lines).lines
    assert run_program(program, []) == ours
