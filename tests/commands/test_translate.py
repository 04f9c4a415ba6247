"""--mode=translate: N lines in, N lines out, whatever the lines and the batches are."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def translate(command, trained):
    """Translate lines of text by the trained run; returns the lines of stdout."""

    def run(lines, *flags):
        text = "".join(f"{line}\n" for line in lines)
        answer = command(
            "--mode=translate", f"--workdir={trained.workdir}", *flags,
            stdin=text.encode(),
        )  # fmt: skip
        assert len(answer.lines) == len(lines)
        return answer.lines

    return run


@pytest.fixture(scope="module")
def expected(command, trained, toy):
    """What the run makes of the toy's test sentences, by their text."""
    text = "".join(f"{line}\n" for line in toy.test)
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}", stdin=text.encode()
    )
    return dict(zip(toy.test, answer.lines, strict=True))


def test_most_sentences_are_right(toy, expected):
    right = sum(toy.translate(line) == expected[line] for line in toy.test)
    assert right >= 0.75 * len(toy.test)


def test_order_and_blank_lines_are_kept(translate, toy, expected):
    lines = [*toy.test, "", "   ", "\t"]
    random.Random(1).shuffle(lines)
    assert translate(lines) == [expected.get(line, "") for line in lines]


@pytest.mark.parametrize("tokens", [1, 10_000])
def test_the_size_of_batches_changes_nothing(translate, toy, expected, tokens):
    found = translate(toy.test, f"--batch_tokens={tokens}")
    assert found == list(expected.values())


def test_neighbours_change_nothing(translate, toy, expected):
    long = " ".join(toy.test)  # takes another shape
    assert translate([toy.test[0]]) == [expected[toy.test[0]]]
    assert translate([toy.test[0], long])[0] == expected[toy.test[0]]


def test_beam_size_and_alpha_are_taken_from_the_command_line(translate, toy):
    greedy = translate(toy.test, "--beam_size=1")
    # However long, a translation gains nothing by ending early.
    longest = translate(toy.test, "--beam_size=2", "--alpha=50")
    assert sum(map(len, longest)) > sum(map(len, greedy))


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\r"])
def test_only_a_newline_ends_a_line(translate, toy, expected, separator):
    line = max(toy.test, key=len)
    assert translate([line.replace(" ", separator)]) == [expected[line]]


def test_windows_line_ends_and_a_byte_order_mark_are_no_text(
    command, trained, toy, expected
):
    line = toy.test[0]
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}",
        stdin=b"\xef\xbb\xbf" + f"{line}\r\n\r\n".encode(),
    )  # fmt: skip
    assert answer.lines == [expected[line], ""]


def test_the_last_line_may_lack_its_newline(command, trained, toy, expected):
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}", stdin=toy.test[0].encode()
    )
    assert answer.lines == [expected[toy.test[0]]]


def test_nothing_in_nothing_out(command, trained):
    answer = command("--mode=translate", f"--workdir={trained.workdir}")
    assert (answer.code, answer.out) == (0, b"")


def test_a_line_of_unknown_characters_is_still_a_line(translate):
    assert len(translate(["Привет 你好", "🙂"])) == 2


def test_text_that_is_not_utf_8_is_refused_by_line(command, trained):
    """What came before it is translated all the same."""
    answer = command(
        "--mode=translate", f"--workdir={trained.workdir}", stdin=b"bo\nda\n\xe4\nfe\n"
    )
    assert answer.code == 2
    assert answer.out.count(b"\n") == 2
    assert answer.err.endswith(
        "standard input, line 3: byte 1 of the line is not UTF-8; "
        "convert the text to UTF-8\n"
    )


@pytest.mark.slow
def test_a_line_is_answered_before_the_next_one_comes(trained, tmp_path):
    """As between two people: the second line depends on the answer to the first."""
    with subprocess.Popen(
        [sys.executable, "-m", "jaxformer.main", "--mode=translate",
         f"--workdir={trained.workdir}"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        for _ in range(2):
            process.stdin.write("bo da\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_nothing_is_written_into_the_workdir(translate, trained, toy):
    def state():
        return {path: path.stat().st_mtime_ns for path in trained.workdir.rglob("*")}

    before = state()
    translate(toy.test[:1])
    assert state() == before


def test_a_workdir_needs_nothing_outside_itself(
    command, own_run, toy, expected, toy_is_gone, monkeypatch
):
    moved = own_run.rename(own_run.with_name("moved"))
    monkeypatch.chdir(moved)
    answer = command(
        "--mode=translate", "--workdir=.", stdin=f"{toy.test[0]}\n".encode()
    )
    assert answer.lines == [expected[toy.test[0]]]


def test_a_folder_without_a_run_or_without_checkpoints_is_refused(
    command, own_run, tmp_path
):
    shutil.rmtree(own_run / "checkpoints")
    for workdir, said in (
        (own_run, "no checkpoint"),
        (tmp_path / "none", "no run in"),
        (own_run / "config.json", "cannot be read"),
    ):
        answer = command("--mode=translate", f"--workdir={workdir}", stdin=b"bo\n")
        assert said in answer.complaint
        assert answer.err.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"config": {}}'])
def test_a_damaged_record_is_refused(command, own_run, content):
    (own_run / "config.json").write_text(content)
    answer = command("--mode=translate", f"--workdir={own_run}", stdin=b"bo\n")
    assert str(own_run / "config.json") in answer.complaint


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(b"none"), "not a SentencePiece model"),
    ],
)
def test_a_damaged_tokenizer_is_refused(command, own_run, damage, said):
    damage(own_run / "tokenizer.model")
    answer = command("--mode=translate", f"--workdir={own_run}", stdin=b"bo\n")
    assert said in answer.complaint


# In processes of their own -----------------------------------------------------------


def program(folder, *flags, stdin):
    """Run the command line on one device, in `folder` and the plainest locale."""
    simulated = "--xla_force_host_platform_device_count"
    others = (v for v in os.environ["XLA_FLAGS"].split() if simulated not in v)
    done = subprocess.run(
        [sys.executable, "-m", "jaxformer.main", *flags],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C",
            "XLA_FLAGS": " ".join(others),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        },
        input="".join(f"{line}\n" for line in stdin).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done.stdout.decode().splitlines()


@pytest.mark.slow
def test_a_process_of_one_device_translates_the_same(trained, toy, expected, tmp_path):
    workdir = f"--workdir={trained.workdir}"
    lines = program(tmp_path, "--mode=translate", workdir, stdin=toy.test)
    assert lines == list(expected.values())


@pytest.mark.slow
def test_train_then_translate_as_processes(toy, tmp_path):
    short = ("--config.training.steps=4", "--config.batches.executor=tf.data")
    (last,) = program(tmp_path, *toy.flags, "--workdir=run", *short, stdin=[])
    assert json.loads(last)["step"] == 4
    lines = program(tmp_path, "--mode=translate", "--workdir=run", stdin=toy.test[:3])
    assert len(lines) == 3
