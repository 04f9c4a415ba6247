"""--mode=export: a folder that other programs load."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from benchmarks import load
from tests.commands.runs import text_of

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None, reason="extra `export`"
)

# Blank ones, and others that only normalisation and "\n" as the one line end get right.
ODD = [
    "",
    "\x00\u2581",
    "\x1b \x85",
    "\ufeff",
    " bo \t da\u0007 ",
    "bo\rda",
    "bo\u2028da",
]


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


def program_of(folder):
    """Write the program in the README of an export for CTranslate2."""
    program = folder / "translate.py"
    readme = (folder / "README.md").read_text()
    program.write_text(re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1])
    return program


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
def test_the_program_in_the_readme_translates_as_we_do(
    export, use, toy, flags, tmp_path
):
    result = export("--format=ctranslate2", *flags).result
    folder = tmp_path / "exported"
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert result == {
        "format": "ctranslate2", "output": str(folder), "quantization": "float32",
        "parameters": result["parameters"], "bytes": size,
    }  # fmt: skip
    lines = [*toy.test, *ODD, "unbekannt bo", *toy.dev]
    program = program_of(folder)
    assert run_program(program, lines) == use("translate", *flags, stdin=lines).lines
    assert run_program(program, []) == []


@needs_ctranslate2
@pytest.mark.slow
def test_ctranslate2_is_served_and_measured(export, toy, tmp_path, capsys, monkeypatch):
    """By benchmarks/load.py and serve_ctranslate2.py, beside a large client."""
    for bound in ("P99_BOUND", "LARGE_BOUND"):
        monkeypatch.setattr(load, bound, 1e9)
    monkeypatch.setattr(load, "HEAD_START", 0.5)
    export("--format=ctranslate2")
    flags = f"--model={tmp_path / 'exported'}", f"--sentences={toy.directory}/test.en"
    assert load.main([*flags, "--requests=100", "--clients=4", "--large"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (values["right"], values["not_right_beside_large"]) == (100, 0)


@pytest.mark.slow
def test_the_stablehlo_example_translates_as_we_do(export, use, toy, tmp_path):
    result = export("--format=stablehlo", "--source_length=9").result
    assert result["format"] == "stablehlo"
    lines = [toy.test[0], *ODD, *toy.test[1:4]]
    program = tmp_path / "exported" / "example.py"
    assert run_program(program, lines) == use("translate", stdin=lines).lines
    assert run_program(program, []) == []


@needs_ctranslate2
def test_weights_have_the_type_asked_for(export, tmp_path):
    result = export("--format=ctranslate2", "--quantization=int8").result
    assert result["quantization"] == "int8"
    positions = 4096 * 32 * 4  # of d_model 32, in float32
    size = (tmp_path / "exported" / "model.bin").stat().st_size
    assert size == pytest.approx(result["parameters"] + positions, rel=0.1)


@needs_ctranslate2
@pytest.mark.slow
def test_one_of_several_processes_writes(start, trained, tmp_path):
    output = tmp_path / "exported"
    flags = ("--mode=export", "--format=ctranslate2", f"--workdir={trained.workdir}")
    assert start(2, *flags, f"--output={output}").result()["output"] == str(output)
    assert {file.name for file in output.iterdir()} == {
        "README.md", "config.json", "model.bin", "sentencepiece.model",
        "shared_vocabulary.json",
    }  # fmt: skip
    again = start(2, *flags, f"--output={output}")
    assert again.wait(120) == [2, 2]
    assert all("exists already" in again.complaint(index) for index in range(2))
