"""Long work says how far it is: on a terminal by a bar, elsewhere by lines."""

import logging
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxformer
from jaxformer.system import progress
from tests.terminal import terminal


@pytest.fixture(autouse=True)
def quick(monkeypatch, caplog):
    """Report from the first moment on, and every 50 ms."""
    caplog.set_level("INFO", "jaxformer")
    monkeypatch.setattr(progress, "DELAY", 0.01)
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    monkeypatch.setattr(progress, "POLL", 0.01)
    monkeypatch.setattr(progress.LAST_LINE, "time", 0.0)


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (3, ["reading: 1 of 3 pairs", "reading: 2 of 3 pairs, ETA 0:00:00"]),
        (None, ["reading: 1 pairs", "reading: 2 pairs"]),
    ],
)
def test_without_a_terminal_a_line_is_logged_when_nothing_else_is(caplog, total, said):
    for number in progress.track(range(3), "reading", total, unit="pairs"):
        time.sleep(0.1 * (number > 0))
    assert [*dict.fromkeys(caplog.messages)] == said  # the first items give no ETA


def test_other_lines_stand_for_the_progress(caplog, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.5)
    with progress.progress("waiting"):
        for _ in progress.track(range(30), "reading", unit="pairs"):
            time.sleep(0.02)
            progress.LAST_LINE.filter(None)
    assert caplog.messages == []


def test_a_terminal_shows_a_bar(monkeypatch):
    with terminal(monkeypatch, rows=24) as (_, shown):
        for _ in progress.track(range(3), "reading", 3, unit="pairs"):
            time.sleep(0.11)
        assert re.search(r"\rreading:  33%\|.*\| 1/3 \[.* pairs/s\]", shown())


def test_a_message_draws_no_bar_of_quick_work(monkeypatch):
    """It would stay, before the next message."""
    monkeypatch.setattr(progress, "DELAY", 9.0)
    with terminal(monkeypatch, rows=24) as (_, shown):
        for _ in progress.track(range(3), "reading", unit="pairs"):
            logging.getLogger("somewhere").warning("a message")
        assert "reading" not in (screen := shown())
        assert screen.count("a message\r\n") == 3


def test_a_silent_call_is_reported_again_and_again(caplog):
    with progress.progress("training the vocabulary"):
        time.sleep(0.3)
    assert len(caplog.messages) > 2
    assert {*caplog.messages} == {"training the vocabulary: 0 s so far"}


def test_a_compile_is_announced_by_what_it_is_for(caplog, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)

    def update(x):
        return jnp.sin(x) @ x

    def _own_function(x):
        return jnp.cos(x) @ x

    matrix = jnp.ones((3, 3))
    monkeypatch.setattr(progress, "COMPILES", progress._Compiles())
    progress.COMPILES.next("the training step")  # of an earlier command
    begin, worked = time.monotonic(), progress.working_time()
    with progress.compiles_reported():
        progress.COMPILES.wanted["the training step"] = 3
        jax.jit(update)(matrix)
        jax.jit(_own_function)(matrix)
        jax.jit(update)(matrix)  # is compiled already
    jax.jit(lambda x: x - 1)(matrix)
    first, second = (line for line in caplog.messages if line.endswith("..."))
    assert first == "compiling the training step: 1 of 3 ..."
    assert second == "compiling own function ..."
    worked, passed = progress.working_time() - worked, time.monotonic() - begin
    assert 0 < worked < passed - progress.COMPILES.seconds() + 1e-3
    assert progress.COMPILES.seconds() > 0.01  # tracing and lowering, too


def test_the_names_of_programs_are_those_of_functions():
    package = Path(jaxformer.__file__).parent
    source = "".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    for name in progress.PROGRAMS:
        assert re.search(rf"def _?{name}\(", source), name
