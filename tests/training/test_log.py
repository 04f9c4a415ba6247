"""The log divides once, survives a crash, and reads well on a terminal and off it."""

import contextlib
import io
import json
import logging
import math
import os
import re
import termios
import time
import types

import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxformer.training.log import MetricsLog, averages, read_metrics, read_scores

SUMS = {"loss": 30.0, "nll": 20.0, "correct": 5.0, "tokens": 10.0}
RATES = {"learning_rate": 0.002, "gradient_norm": 1.5, "skipped_updates": 0}


@pytest.fixture(autouse=True)
def plain_stderr(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())


@pytest.fixture
def open_log(tmp_path):
    """Open the log of a run of 100 steps."""

    def open_log(start_step=0, **options):
        return MetricsLog(tmp_path, start_step=start_step, total_steps=100, **options)

    return open_log


@contextlib.contextmanager
def terminal(monkeypatch, *, rows):
    """Make stderr a terminal of 100 columns; yields its log handler and a reader."""
    screen, keyboard = os.openpty()
    termios.tcsetwinsize(keyboard, (rows, 100))
    os.set_blocking(screen, False)
    with os.fdopen(keyboard, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        console = logging.StreamHandler(stderr)
        monkeypatch.setattr(logging.root, "handlers", [console])

        def shown():
            stderr.write("\n")  # so that there is always something to read
            stderr.flush()
            return os.read(screen, 1 << 16).decode()

        yield console, shown
    os.close(screen)


@pytest.fixture
def clock(monkeypatch):
    """A list of the times that the log will read, in seconds."""
    times = []
    fake = types.SimpleNamespace(monotonic=lambda: times.pop(0), time=lambda: 0.0)
    monkeypatch.setattr("jaxformer.training.log.time", fake)
    return times


def texts(workdir):
    return (workdir / "metrics.jsonl").read_text().splitlines()


def scalars(workdir):
    """All (tag, step, value) of the TensorBoard files."""
    found = []
    for file in (workdir / "tensorboard").iterdir():
        data = file.read_bytes()
        while data:  # a record: uint64 length, uint32 checksum, event, uint32 checksum
            end = 12 + int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12:end])
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
            data = data[end + 4 :]
    return found


def test_every_call_is_a_json_line_and_tensorboard_scalars(tmp_path, open_log):
    with open_log() as log:
        log.train(10, SUMS, **{**RATES, "skipped_updates": 3})
        log.record(10, "eval", {"bleu": 33.5, "direction": "en-de"})
    train, evaluation = map(json.loads, texts(tmp_path))
    assert (train["step"], train["kind"]) == (10, "train")
    means = {"loss": 3.0, "nll": 2.0, "ppl": pytest.approx(math.e**2), "accuracy": 0.5}
    assert {name: train[name] for name in means} == means
    assert (train["gradient_norm"], train["skipped_updates"]) == (1.5, 3)
    assert abs(train["time"] - time.time()) < 60
    assert (evaluation["kind"], evaluation["bleu"]) == ("eval", 33.5)
    assert evaluation["direction"] == "en-de"
    assert {("train/loss", 10, 3.0), ("eval/bleu", 10, 33.5)} < {*scalars(tmp_path)}


@pytest.mark.parametrize(
    "values", [{"loss": math.inf, "nll": 1e6}, {"loss": math.nan, "nll": math.nan}]
)
def test_values_of_a_diverged_run_are_still_json(tmp_path, open_log, values):
    with open_log() as log:
        log.train(1, {**SUMS, **values}, **RATES)
    (text,) = texts(tmp_path)
    assert json.loads(text, parse_constant=pytest.fail)["loss"] is None


def test_updates_that_were_all_skipped_have_no_loss_and_no_speed(tmp_path, open_log):
    with open_log() as log:
        log.train(1, dict.fromkeys(SUMS, 0.0), **RATES)
        assert log.tokens_per_second == 0
        log.train(2, SUMS, **RATES)
        assert log.tokens_per_second > 0
    skipped, trained = read_metrics(tmp_path)
    for name in ("loss", "nll", "ppl", "accuracy", "tokens"):
        assert skipped[name] is None
        assert trained[name] == pytest.approx(averages(SUMS)[name])
    assert skipped["tokens_per_second"] == 0


def test_resuming_drops_lines_after_the_checkpoint(tmp_path, open_log):
    with open_log() as log:
        for step in (10, 20, 21):
            log.train(step, SUMS, **RATES)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')  # the line that the crash tore
    with open_log(start_step=20) as log:
        log.train(30, {**SUMS, "loss": 10.0}, **RATES)
    found = [(line["step"], line["loss"]) for line in map(json.loads, texts(tmp_path))]
    assert found == [(10, 3.0), (20, 3.0), (30, 1.0)]
    with open_log():  # a new run in an old workdir
        pass
    assert texts(tmp_path) == []


def test_the_scores_are_those_of_evaluations_during_training(tmp_path, open_log):
    assert (read_scores(tmp_path), read_metrics(tmp_path)) == ({}, [])
    with open_log() as log:
        for step, bleu in ((10, 0.0), (20, 33.5), (30, math.nan)):
            log.train(step, SUMS, **RATES)
            log.record(step, "eval", {"bleu": bleu, "direction": "en-de"})
        log.record(30, "final", {"bleu": 40.0})  # of averaged parameters
    assert read_scores(tmp_path) == {10: 0.0, 20: 33.5}


@pytest.mark.parametrize(
    "torn", [b'{"step": 20, "kind": "eval", "bleu": 3', b"", b"\xff\x00", b"20", b"[]"]
)
def test_a_line_torn_by_a_crash_has_no_score_and_hides_none(tmp_path, open_log, torn):
    with open_log() as log:
        log.record(10, "eval", {"bleu": 12.5})
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(torn + b"\n" + whole + torn)
    assert read_scores(tmp_path) == {10: 12.5}
    assert read_metrics(tmp_path) == [json.loads(whole)]
    with open_log(start_step=10):
        pass
    assert file.read_bytes() == whole


def test_one_of_several_processes_writes_and_the_others_leave_its_log_alone(
    tmp_path, open_log, monkeypatch
):
    with open_log() as log:
        log.train(10, SUMS, **RATES)

    def files():
        found = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    before = files()
    with terminal(monkeypatch, rows=24) as (_, shown):
        with open_log(writes=False) as log:
            log.train(10, SUMS, **RATES)
            log.record(10, "eval", {"bleu": 33.5})
            assert log.tokens_per_second > 0
        assert "10/100 [" not in shown()  # no bar
    assert files() == before


def test_without_a_terminal_every_report_is_a_plain_line(open_log, caplog, clock):
    """The time left is that of the steps made, scaled to those left."""
    caplog.set_level(logging.INFO)
    clock += [0.0, 100.0]
    with open_log(start_step=20) as log:
        log.train(60, SUMS, **RATES)  # 40 steps in 100 seconds, 40 to go
    assert caplog.messages == [
        "step 60/100: loss 3.0000, ppl 7.39, lr 2.000e-03, 0 tokens/s, ETA 0:01:40"
    ]


def test_pauses_do_not_count_as_training_time(tmp_path, open_log, clock):
    clock += [0.0, 10.0, 90.0, 100.0]
    with open_log() as log:
        with log.pause():
            pass
        log.train(1, SUMS, **RATES)  # 10 tokens in 20 seconds
    assert read_metrics(tmp_path)[0]["tokens_per_second"] == 0.5


def test_messages_go_above_the_bar_of_a_terminal(open_log, monkeypatch):
    with terminal(monkeypatch, rows=24) as (console, shown):
        with open_log() as log:
            log.train(50, SUMS, **RATES)
            logging.getLogger("somewhere").warning("a message")
        screen = shown()
        assert console in logging.root.handlers
    assert "| 50/100 [" in screen
    assert re.search(r", loss 3\.000, .* tokens/s", screen)
    # The bar's line is wiped first, so the message has a line of its own.
    assert re.search(r"\r +\ra message\r\n", screen)


def test_a_terminal_of_unknown_size_gets_plain_lines(open_log, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with terminal(monkeypatch, rows=0) as (_, shown):
        with open_log() as log:
            log.train(50, SUMS, **RATES)
        assert "step 50/100: loss 3.0000" in shown()


def test_an_error_inside_leaves_the_log_closed_and_is_not_swallowed(open_log):
    with pytest.raises(ZeroDivisionError), open_log() as log:
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="closed"):
        log.train(2, SUMS, **RATES)
