"""--mode=export: a folder that other programs load, whole or not at all."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from jaxformer.commands.export import write_folder
from jaxformer.errors import InputError

needs_ctranslate2 = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None,
    reason="CTranslate2 is not installed: extra `export`",
)


@pytest.fixture
def export(command, trained, tmp_path):
    """Export the trained run to a new folder, or to --output of the flags."""

    def run(*flags):
        output = () if any("--output" in f for f in flags) else (f"--output={new}",)
        return command("--mode=export", f"--workdir={trained.workdir}", *output, *flags)

    new = tmp_path / "exported"
    return run


def program_of(folder: Path) -> Path:
    """Write the README's program into its folder, as it says."""
    text = (folder / "README.md").read_text()
    program = folder / "translate.py"
    program.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    return program


@needs_ctranslate2
@pytest.mark.parametrize("flags", [(), ("--beam_size=1", "--checkpoint=100")])
def test_program_in_the_readme_translates_as_we_do(
    export, command, trained, toy, flags, tmp_path
):
    result = export("--format=ctranslate2", *flags).result
    folder = tmp_path / "exported"
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert result == {
        "format": "ctranslate2", "output": str(folder), "quantization": "float32",
        "parameters": result["parameters"], "bytes": size,
    }  # fmt: skip
    lines = [*toy.test, "", " bo \t da\u0007 ", "unbekannt bo", *toy.dev]
    text = "".join(f"{line}\n" for line in lines).encode()
    workdir = f"--workdir={trained.workdir}"
    ours = command("--mode=translate", workdir, *flags, stdin=text).lines
    done = subprocess.run(
        [sys.executable, program_of(folder).name],
        cwd=folder, input=text, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.decode().splitlines() == ours


@needs_ctranslate2
@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_weights_are_of_the_type_asked_for(export, quantization, tmp_path):
    flags = ("--format=ctranslate2", f"--quantization={quantization}")
    result = export(*flags).result
    assert result["quantization"] == quantization
    matrices = result["parameters"] * {"float32": 4, "int8": 1}[quantization]
    positions = 4096 * 32 * 4  # of d_model 32, in float32
    size = (tmp_path / "exported" / "model.bin").stat().st_size
    assert size == pytest.approx(matrices + positions, rel=0.1)


@needs_ctranslate2
def test_empty_folder_may_be_there(export, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert export("--format=ctranslate2", f"--output={empty}").code == 0
    assert (empty / "model.bin").exists()
    assert list(tmp_path.iterdir()) == [empty]


def test_what_is_missing_is_named(export, command, trained):
    assert "give --format" in export().complaint
    workdir = f"--workdir={trained.workdir}"
    answer = command("--mode=export", workdir, "--format=ctranslate2")
    assert answer.complaint == "--output is missing; give the new folder to write"


def test_package_that_is_missing_leaves_nothing(export, tmp_path):
    with mock.patch.dict(sys.modules, {"ctranslate2": None}):
        complaint = export("--format=ctranslate2").complaint
    assert "run: pip install 'jaxformer[export]'" in complaint
    assert list(tmp_path.iterdir()) == []


def test_folder_in_use_is_refused(export, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    complaint = export("--format=ctranslate2", f"--output={full}").complaint
    assert complaint.startswith(f"--output={full} exists already; ")
    assert [file.name for file in full.iterdir()] == ["mine"]
    assert list(tmp_path.iterdir()) == [full]


def test_place_that_cannot_be_written_is_named(export, tmp_path):
    (tmp_path / "file").write_text("in the way")
    output = tmp_path / "file" / "folder"
    complaint = export("--format=ctranslate2", f"--output={output}").complaint
    assert complaint.startswith(f"--output={output} cannot be written (Not a dir")


@pytest.mark.parametrize("error", [InputError("no"), OSError(28, "full"), MemoryError])
def test_half_a_folder_is_not_left(tmp_path, error):
    def write(folder):
        (folder / "half").write_text("a model")
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        write_folder(tmp_path / "new", write)
    assert list(tmp_path.iterdir()) == []


def test_nobody_sees_half_a_folder(tmp_path):
    output = tmp_path / "a" / "new"

    def write(folder):
        (folder / "file").write_text("12345")
        assert not output.exists()

    assert write_folder(output, write) == 5
    assert [file.name for file in output.iterdir()] == ["file"]
    assert list(output.parent.iterdir()) == [output]


@needs_ctranslate2
@pytest.mark.slow
def test_one_of_several_processes_writes(start, trained, tmp_path):
    output = tmp_path / "exported"
    flags = (f"--workdir={trained.workdir}", f"--output={output}")
    cluster = start(2, "--mode=export", "--format=ctranslate2", *flags, devices=1)
    assert cluster.results()["output"] == str(output)
    names = {"README.md", "config.json", "model.bin", "sentencepiece.model"}
    assert {f.name for f in output.iterdir()} == names | {"shared_vocabulary.json"}
    again = start(2, "--mode=export", "--format=ctranslate2", *flags, devices=1)
    assert again.wait(120) == [2, 2]
    for index in range(2):
        assert "exists already" in again.complaint(index)
