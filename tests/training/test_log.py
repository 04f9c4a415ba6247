"""The log divides once, survives a crash, and reads well on a terminal and off it."""

import io
import json
import logging
import math
import re
import resource
import time
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxformer.system.errors import InputError
from jaxformer.training.log import MetricsLog, read_metrics, read_scores, score_by
from jaxformer.training.tensorboard_log import TensorBoardLog
from tests.damage import flip_bit
from tests.terminal import terminal

SUMS = {"loss": 30.0, "nll": 20.0, "correct": 5.0, "tokens": 10.0}
RATES = {"learning_rate": 0.002, "gradient_norm": 1.5, "skipped_updates": 3}


@pytest.fixture
def open_log(tmp_path, monkeypatch):
    """Open the log of a run of 100 steps; stderr is no terminal."""
    monkeypatch.setattr("sys.stderr", io.StringIO())

    return lambda start_step=0, run="a run", **others: MetricsLog(
        tmp_path, run=run, start_step=start_step, total_steps=100, **others
    )


def scalars(workdir):
    """All (tag, step, value) of the TensorBoard files."""
    found = set()
    for file in (workdir / "tensorboard").iterdir():
        data = file.read_bytes()
        while data:  # a record: uint64 length, uint32 checksum, event, uint32 checksum
            end = 12 + int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12:end])
            found |= {(v.tag, event.step, v.simple_value) for v in event.summary.value}
            data = data[end + 4 :]
    return found


def test_every_call_is_a_json_line_and_tensorboard_scalars(tmp_path, open_log):
    with open_log() as log:
        log.train(10, SUMS, **RATES)
        log.record(10, "eval", {"bleu": 33.5, "direction": "en-de"})
    train, evaluation = read_metrics(tmp_path)
    now, speed = train.pop("time"), train.pop("tokens_per_second")
    assert train.pop("run") == "a run"
    assert abs(now - time.time()) < 60
    assert speed > 0
    means = {"loss": 3.0, "nll": 2.0, "ppl": pytest.approx(math.e**2), "accuracy": 0.5}
    assert train == {"step": 10, "kind": "train", "tokens": 10, **means, **RATES}
    del evaluation["time"], evaluation["run"]
    scores = {"bleu": 33.5, "direction": "en-de"}
    assert evaluation == {"step": 10, "kind": "eval", **scores}
    assert {("train/loss", 10, 3.0), ("eval/bleu", 10, 33.5)} < scalars(tmp_path)


def log_lines(open_log, count):
    with open_log() as log:
        for step in range(count):
            log.train(step, SUMS, **RATES)


@pytest.mark.parametrize(
    ("room", "full"),  # bytes of a file
    [(100, "metrics.jsonl"), (3000, "tensorboard"), (20_000, "tensorboard")],
)
def test_a_full_disk_ends_the_log_with_one_error(tmp_path, open_log, room, full):
    """TensorBoard's file fills first with room for many lines, and nothing waits."""
    size = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, size[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: .*{full}"):
            log_lines(open_log, 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)


@pytest.mark.parametrize(
    "sums",
    [
        {**SUMS, "loss": math.inf, "nll": 1e6},
        {**SUMS, "loss": math.nan, "nll": math.nan},
        dict.fromkeys(SUMS, 0.0),  # of updates that were all skipped
    ],
)
def test_values_of_a_diverged_run_are_still_json(tmp_path, open_log, sums):
    with open_log() as log:
        log.train(1, sums, **RATES)
        assert (log.tokens_per_second > 0) == (sums["tokens"] > 0)
    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=pytest.fail)
    assert line["loss"] is None
    assert (line["tokens"] is None) == (sums["tokens"] == 0)


def test_resuming_drops_lines_after_the_checkpoint(tmp_path, open_log):
    with open_log() as log:
        for step in (10, 20, 21):
            log.train(step, SUMS, **RATES)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')  # the line that the crash tore
    with open_log(start_step=20) as log:
        log.train(30, {**SUMS, "loss": 10.0}, **RATES)
    found = [(line["step"], line["loss"]) for line in read_metrics(tmp_path)]
    assert found == [(10, 3.0), (20, 3.0), (30, 1.0)]
    (copy := tmp_path / "copy").hardlink_to(tmp_path / "metrics.jsonl")
    before = copy.read_text()
    with open_log(start_step=30) as log:
        log.train(40, SUMS, **RATES)
    assert copy.read_text() == before
    with open_log(run="a new run"):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_line_of_another_run_is_refused(tmp_path, open_log):
    with open_log(run="another") as log:
        log.record(10, "eval", {"bleu": 12.5})
    before = (file := tmp_path / "metrics.jsonl").read_bytes()
    for read in (lambda: read_scores(tmp_path, "a run", "bleu"), lambda: open_log(10)):
        with pytest.raises(InputError, match=f"line 1 of {file} was written by a"):
            read()
    assert (file.read_bytes(), len(read_metrics(tmp_path))) == (before, 1)


@pytest.mark.parametrize("name", ["gs:x", "s3:x"])
def test_a_relative_folder_is_on_this_machine(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    TensorBoardLog(Path(name), first_step=1).close()
    assert len([*(tmp_path / name).iterdir()]) == 1


def test_the_scores_are_those_of_evaluations_during_training(tmp_path, open_log):
    assert (read_scores(tmp_path, "a run", "bleu"), read_metrics(tmp_path)) == ({}, [])
    with open_log() as log:
        for step, bleu in ((10, 0.0), (20, 33.5), (30, math.nan)):
            log.train(step, SUMS, **RATES)
            log.record(step, "eval", {"bleu": bleu, "direction": "en-de"})
        log.record(30, "final", {"bleu": 40.0})  # of averaged parameters
    scores = {10: 0.0, 20: 33.5, 30: -math.inf}  # the same as during training
    assert read_scores(tmp_path, "a run", "bleu") == scores
    assert score_by("nll", {"nll": math.nan}) == -math.inf


def test_the_result_is_logged_once_and_that_of_a_shorter_run_is_kept(
    tmp_path, open_log
):
    for bleu in (40.0, 41.0):
        with open_log(100) as log:
            log.record(50, "final", {"bleu": 30.0})
            log.record(100, "final", {"bleu": bleu})
        with open_log(100):  # nothing is recorded
            pass
    scores = [(line["step"], line["bleu"]) for line in read_metrics(tmp_path)]
    assert scores == [(50, 30.0), (100, 41.0)]


@pytest.mark.parametrize(
    "damaged", [b"[]", b'{"step": 20, "kind": "eval", "bleu": 30.0}']
)
def test_a_damaged_line_is_named_and_not_used(tmp_path, open_log, caplog, damaged):
    """One that a crash cut, at the end, is left out without a warning."""
    with open_log() as log:
        log.record(10, "eval", {"bleu": 12.5})
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:-9])
    assert (read_scores(tmp_path, "a run", "bleu"), caplog.text) == ({10: 12.5}, "")
    file.write_bytes(whole + damaged + b"\n" + damaged + b"\n" + whole)
    assert read_scores(tmp_path, "a run", "bleu") == {10: 12.5}
    assert f"{file}: damaged and not used: line 2, 3\n" in caplog.text
    with open_log(start_step=10):
        assert file.read_bytes() == whole * 2
    file.write_bytes(whole[:-1])  # nothing but the newline is cut
    assert read_scores(tmp_path, "a run", "bleu") == {10: 12.5}


def test_no_flipped_bit_is_silent(tmp_path, open_log, caplog):
    with open_log() as log:
        log.train(10, SUMS, **RATES)
        log.record(10, "eval", {"bleu": 12.5, "direction": "en-de"})
    written, file = read_metrics(tmp_path), tmp_path / "metrics.jsonl"
    for bit in range(0, 8 * file.stat().st_size, 29):
        flip_bit(file, bit)
        caplog.clear()
        found = read_metrics(tmp_path)
        assert all(line in written for line in found)
        assert found == written or "damaged and not used: line" in caplog.text
        flip_bit(file, bit)


def test_one_of_several_processes_writes_and_the_others_leave_its_log_alone(
    tmp_path, open_log, monkeypatch
):
    def files():
        found = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    with open_log() as log:
        log.train(10, SUMS, **RATES)
    before = files()
    with terminal(monkeypatch, rows=24) as (_, shown):
        monkeypatch.setattr("jaxformer.system.processes.is_first", lambda: False)
        with open_log() as log:
            log.train(10, SUMS, **RATES)
            log.record(10, "eval", {"bleu": 33.5})
            assert log.tokens_per_second > 0
        assert "10/100 [" not in shown()  # no bar
    assert files() == before


def test_without_a_terminal_every_report_is_a_plain_line(
    tmp_path, open_log, caplog, monkeypatch
):
    """The time left is that of the steps made.

    The speed leaves out evaluations, the start of TensorBoard's file, and tokens of an
    earlier process.
    """
    caplog.set_level(logging.INFO)
    times = iter([0.0, 10.0, 70.0, 100.0, 100.0, 100.0, 101.0, 141.0, 141.0])
    monkeypatch.setattr("jaxformer.training.log.working_time", times.__next__)
    with open_log(start_step=20, tokens_before=4.0) as log:
        with log.pause():
            pass
        log.train(60, SUMS, **RATES)  # 40 steps in 100 seconds, 40 to go
        assert caplog.messages == [
            "step 60/100: loss 3.0000, ppl 7.39, lr 2.000e-03, 0 tokens/s, ETA 0:01:40"
        ]
        log.train(80, SUMS, **RATES)
    speeds = [line["tokens_per_second"] for line in read_metrics(tmp_path)]
    assert speeds == [6 / 40, 10 / 40]


def test_the_time_left_is_that_after_the_first_update(open_log, monkeypatch, caplog):
    """Before it, the pipeline begins and programs are compiled."""
    caplog.set_level(logging.INFO)
    times = iter([0.0, 50.0, 54.0, 54.0, 54.0, 54.0])
    monkeypatch.setattr("jaxformer.training.log.working_time", times.__next__)
    with open_log() as log:
        log.made(1)
        log.train(3, SUMS, **RATES)
    assert caplog.messages[0].endswith("ETA 0:03:14")  # 97 updates of 2 s


@pytest.mark.parametrize("rows", [24, 0])
def test_messages_go_above_the_bar_of_a_terminal(open_log, monkeypatch, caplog, rows):
    """A terminal of unknown size gets plain lines."""
    caplog.set_level(logging.INFO)
    with terminal(monkeypatch, rows=rows) as (console, shown):
        with open_log() as log:
            log.train(50, SUMS, **RATES)
            log.made(49)
            assert log._bar.n == 50  # a bar never goes back
            logging.getLogger("somewhere").warning("a message")
        screen = shown()
        assert console in logging.root.handlers
    # The bar's line is wiped first, so the message has a line of its own.
    bar = r"\| 50/100 \[.*, loss 3\.000, .* tokens/s.*\r +\ra message\r\n"
    assert re.search(bar if rows else "^step 50/100: loss 3.0000.*\na message", screen)


def test_an_error_inside_leaves_the_log_closed_and_is_not_swallowed(open_log):
    def fail_after_a_line(log):
        log.train(1, SUMS, **RATES)
        raise OSError("of the block")

    with pytest.raises(OSError, match="of the block"), open_log() as log:
        fail_after_a_line(log)
    with pytest.raises(ValueError, match="closed"):
        log.train(2, SUMS, **RATES)
