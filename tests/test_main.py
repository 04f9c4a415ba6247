"""What a command ends with: its result, its exit code, and one line for mistakes."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import jaxformer
from jaxformer import main as main_module
from jaxformer.errors import InputError
from jaxformer.main import main

ROOT = Path(__file__).parents[1]
WORKDIR = "--workdir=runs/x"


@pytest.fixture(autouse=True)
def own_logging(monkeypatch):
    """Let a command set up logging, and undo it."""
    room, root = logging.getLogger("jaxformer"), logging.root
    levels = room.level, root.level
    monkeypatch.setattr(root, "handlers", [])
    yield
    room.setLevel(levels[0])
    root.setLevel(levels[1])


@pytest.fixture
def run_is(monkeypatch):
    """Replace the command by a function without arguments."""

    def replace(function):
        module = SimpleNamespace(run=lambda **flags: function())
        monkeypatch.setattr(main_module, "command", lambda mode: module)

    return replace


def test_a_result_is_one_line_of_json(capsys, run_is):
    run_is(lambda: {"bleu": 33.5, "direction": "en-de"})
    assert main(["jaxformer", WORKDIR]) == 0
    out, err = capsys.readouterr()
    assert out == '{"bleu": 33.5, "direction": "en-de"}\n'
    assert err == ""


def test_numbers_that_json_does_not_know_are_null(capsys, run_is):
    run_is(lambda: {"nll": float("nan"), "ppl": float("inf"), "step": 3})
    assert main(["jaxformer", WORKDIR]) == 0
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {
        "nll": None, "ppl": None, "step": 3,
    }  # fmt: skip


def test_a_mode_without_a_result_prints_nothing(capsys, run_is):
    run_is(lambda: None)
    assert main(["jaxformer", WORKDIR]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("the file x is empty"), 2, "jaxformer: the file x is empty\n"),
        (KeyboardInterrupt(), 130, "jaxformer: interrupted\n"),
    ],
)
def test_an_end_that_is_no_mistake_of_the_program(capsys, run_is, error, code, said):
    def fail():
        raise error

    run_is(fail)
    assert main(["jaxformer", WORKDIR]) == code
    assert capsys.readouterr() == ("", said)


def test_a_mistake_of_the_program_is_not_hidden(run_is):
    run_is(lambda: {}["missing"])
    with pytest.raises(KeyError):
        main(["jaxformer", WORKDIR])


def test_a_reader_that_has_enough_ends_the_program_quietly(run_is, monkeypatch):
    run_is(lambda: {"bleu": 1.0})
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["jaxformer", WORKDIR]) == 1


def test_rooms_report_on_stderr_and_libraries_only_warn(capsys, run_is):
    def report():
        logging.getLogger("jaxformer.data").info("reading")
        logging.getLogger("library").info("chatter")
        logging.getLogger("library").warning("old")
        return {"done": True}

    run_is(report)
    assert main(["jaxformer", WORKDIR]) == 0
    assert capsys.readouterr() == ('{"done": true}\n', "reading\nold\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num_processes=2", "--process_id=2"], "they are numbered from 0 to 1"),
        (
            ["--num_processes=2", "--coordinator_address=localhost"],
            "--coordinator_address=localhost has no port; write HOST:PORT",
        ),
        ([], "there is no run in runs/x"),
        (["--mode=translate"], "there is no run in runs/x"),
        (["--seed=1"], "--seed is not used by --mode=train; it is for translate"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    capsys, tmp_path, monkeypatch, argv, said
):
    monkeypatch.chdir(tmp_path)
    assert main(["jaxformer", WORKDIR, *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[-1]) == ("", 1, "\n")
    assert err.startswith("jaxformer: ")
    assert said in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["jaxformer", "jaxformer.main"])
def test_the_package_runs_as_a_program(module):
    program = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (program.returncode, program.stderr) == (0, "")
    assert program.stdout == f"jaxformer {jaxformer.__version__}\n"


IMPORTS = """
import resource, sys
import {module}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, "jax" in sys.modules, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "seconds", "with_jax"),
    [("jaxformer", 0.3, False), ("jaxformer.main", 1.0, False),
     ("jaxformer.commands.translate", 4.0, True)],
)  # fmt: skip
def test_imports_are_light(module, seconds, with_jax):
    """Bounds on processor time with room for a busy machine; torch is never loaded."""
    script = IMPORTS.format(module=module)
    program = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    used, has_jax, has_torch = program.stdout.split()
    assert float(used) < seconds
    assert (has_jax, has_torch) == (str(with_jax), "False")


def test_a_process_ends_when_its_command_has_ended():
    program = subprocess.Popen(
        [sys.executable, "-m", "jaxformer", "--mode=reproduce"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with program.stdout as output:
        assert output.readline().startswith(b"{")
        printed = time.monotonic()
        assert program.wait(20) == 0
    assert time.monotonic() - printed < 1
