"""What a command ends with: its result, its exit code, and one line for mistakes."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jaxformer
from jaxformer import main as main_module
from jaxformer.commands import command_line
from jaxformer.main import main
from jaxformer.system import progress
from jaxformer.system.errors import InputError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(monkeypatch, own_logging):
    """Run a function in place of the command; returns the exit code."""

    def run_function(function, mode="reproduce"):
        module = SimpleNamespace(run=lambda **flags: function())
        monkeypatch.setattr(main_module, "command", lambda mode: module)
        monkeypatch.setattr(command_line, "refuse_early", lambda _: None)
        with own_logging():
            return main(["jaxformer", mode, "runs/x"])

    return run_function


def log_and_return(result):
    logging.getLogger("jaxformer.corpus").info("reading")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("old")
    return result


def log_nasty():
    """Only the text of the message itself ends a line."""
    values = "corpus\n\x1b[31m", 2, Path("x/\r\u202ea")
    logging.getLogger("jaxformer.corpus").warning("%s, %d\n  %s", *values)


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("function", "code", "out", "err"),
    [
        (lambda: {"bleu": 33.5, "a": "en-de"}, 0, '{"bleu": 33.5, "a": "en-de"}\n', ""),
        (lambda: {"ppl": float("nan"), "b": -float("inf")}, 0,
         '{"ppl": null, "b": null}\n', ""),
        (lambda: log_and_return(None), 0, "", "reading\nold\n"),
        (lambda: log_nasty(), 0, "", "corpus\\n\\x1b[31m, 2\n  x/\\r\\u202ea\n"),
        (lambda: fail(InputError("x is empty")), 2, "", "jaxformer: x is empty\n"),
        (lambda: fail(PermissionError(errno.EACCES, "Permission denied", "run/x")), 2,
         "", "jaxformer: run/x: Permission denied; free disk space or correct the "
         "permissions, then retry\n"),
        (lambda: fail(OSError(errno.ENAMETOOLONG, "File name too long", "run/\n")), 2,
         "", "jaxformer: run/\\n: File name too long; use another path\n"),
        (lambda: fail(OSError(errno.EIO, "Input/output error")), 2, "",
         "jaxformer: Input/output error; repair what the system reports, then retry\n"),
        (lambda: jnp.zeros(2**45), 2, "", "jaxformer: there is not enough memory "
         "(RESOURCE_EXHAUSTED: Out of memory allocating 140737488355328 bytes.); lower "
         "decoding.beam_size, decoding.batch_tokens, training.tokens_per_microbatch or "
         "the model's sizes\n"),
        (lambda: fail(KeyboardInterrupt()), 130, "", "jaxformer: interrupted\n"),
    ],
    ids=["json", "no numbers", "messages", "escapes", "mistake", "rights", "name",
         "disk", "memory", "ctrl-c"],
)  # fmt: skip
def test_a_result_is_one_line_and_so_is_an_expected_failure(
    capsys, run, function, code, out, err
):
    assert run(function) == code
    said = capsys.readouterr()
    assert re.sub(r', "seconds": \d+\.\d}', "}", said.out) == out
    assert said.err == err


def test_on_a_terminal_lines_of_the_log_break_between_words(run, monkeypatch, capsys):
    size = os.terminal_size((20, 9))
    monkeypatch.setattr(main_module.os, "get_terminal_size", lambda _: size)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    text = "  three pairs of 2,800 as  words\n" + 30 * "x"
    run(lambda: logging.getLogger("jaxformer").info(text))
    lines = "  three pairs of\n    2,800 as  words\n" + 30 * "x" + "\n"
    assert capsys.readouterr().err == lines


def test_a_result_names_any_url(capsys, run, monkeypatch):
    url = 's3://b/a"\u200b\\n'
    copies = {Path('/"cache/x'): SimpleNamespace(store=SimpleNamespace(url=url))}
    monkeypatch.setattr("jaxformer.remote.copy._copies", copies)
    assert run(lambda: {"file": '/"cache/x/y'}) == 0
    assert json.loads(capsys.readouterr().out)["file"] == f"{url}/y"


def test_compiles_are_reported_but_for_a_server_which_counts_them(
    run, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "DELAY", 0)
    for mode, is_reported in ("reproduce", True), ("serve", False):
        assert run(lambda: jax.jit(lambda x: x - 3)(1) and None, mode) == 0
        assert ("compiling" in capsys.readouterr().err) == is_reported


def test_a_bug_keeps_its_traceback(run):
    with pytest.raises(KeyError):
        run(lambda: {}["missing"])


def test_a_closed_pipe_ends_the_program_quietly(run, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run(lambda: {"bleu": 1.0}) == 1


@pytest.mark.parametrize("flags", ["--help", "--version", "serve --help"])
def test_help_that_cannot_be_written_is_no_traceback(flags, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["jaxformer", *flags.split()]) == 1
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["jaxformer", *flags.split()]) == 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    message = "No space left on device; free disk space or correct the permissions, "
    assert capsys.readouterr().err == f"jaxformer: {message}then retry\n"


# In processes of their own ------------------------------------------------------------

MEASURE = """
import resource, sys
{}
used = resource.getrusage(resource.RUSAGE_SELF)
useless = {{"torch", "tensorflow", "pandas", "optax", "sacrebleu"}} & {{*sys.modules}}
useless |= set() if "jax" in sys.modules else {{"numpy"}} & {{*sys.modules}}
print(used.ru_utime + used.ru_stime, "jax" in sys.modules, useless or "none")
"""
HELP = "from jaxformer.main import main; main(['jaxformer', '{}', '--help'])"


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip


def processor_seconds(statement):
    """The least of two processes, whether jax is loaded, and useless packages."""
    found = [
        python("-c", MEASURE.format(statement)).stdout.split()[-3:] for _ in range(2)
    ]
    return min(float(used) for used, *_ in found), found[0][1:]


@pytest.fixture(scope="module")
def seconds_of_jax():
    return processor_seconds("import jax")[0]


@pytest.mark.parametrize(
    ("statement", "most", "with_jax"),
    [
        ("import jaxformer", 0.3, False),
        ("import jaxformer.commands.translate", 2.6, True),
        (HELP.format("translate"), 0.6, False),
        (HELP.format("--config=demo"), 0.8, False),
    ],
)
def test_imports_and_help_are_light(statement, most, with_jax, seconds_of_jax):
    """Bounds on processor time, in that of importing jax."""
    used, loaded = processor_seconds(statement)
    assert used < most * seconds_of_jax
    assert loaded == [str(with_jax), "none"]


REFUSED = """
import os, sys, time
from jaxformer.main import main

os.chdir(sys.argv[1])
for line in sys.stdin.read().splitlines():
    start = time.process_time()
    code = main(["jaxformer", *line.split()])
    print(code, time.process_time() - start, "jax" in sys.modules)
"""
MISTAKES = """\
trian
translate gone
translate gone --workdir=other
translate --config.decoding.beam=2 gone
train --config=demo new --config.training.stps=3
train --config=demo new --config.data.source_language=
train --config=parallel_text new --config.data.corpus=files \
--config.data.source_language=en --config.data.target_language=de \
--config.data.train=a.en,a.de --config.data.dev=a.en,a.de
train --config=demo new --init_from=gone --config.data.train=-1
evaluate --source=gone --reference=gone gone
evaluate --output=gone/page gone
serve gone --listen=here
report gone --compare=gone
translate --ensemble=gone gone
translate export
"""


def test_what_needs_no_jax_is_refused_without_it(tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text('{"model_type": "marian"}')
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, str(tmp_path)], cwd=ROOT, input=MISTAKES,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(done.stderr.splitlines())
    for mistake, (code, seconds, with_jax) in zip(
        MISTAKES.splitlines(), found, strict=True
    ):
        assert (code, with_jax) == ("2", "False"), mistake
        assert float(seconds) < 0.5, mistake
    assert "export is an export for another program, and no run" in done.stderr


@pytest.mark.parametrize("module", ["jaxformer", "jaxformer.main"])
def test_the_package_runs_as_a_program(module):
    program = python("-m", module, "--version")
    expected = f"jaxformer {jaxformer.__version__}\n"
    assert (program.stdout, program.stderr) == (expected, "")


def test_a_process_ends_when_its_command_has_ended():
    program = subprocess.Popen(
        [sys.executable, "-m", "jaxformer", "reproduce"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with program.stdout as output:
        assert "rows" in json.loads(output.readline())
        printed = time.monotonic()
        assert program.wait(20) == 0
    assert time.monotonic() - printed < 1


def test_closed_standard_streams_do_not_matter():
    command = f"{sys.executable} -m jaxformer.main reproduce <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT).returncode == 0
