"""Sentences and lines around a stand-in for the engine."""

import io
import sys
from unittest import mock

import numpy as np
import pytest

from jaxformer.batch import EOS
from jaxformer.decoding import translate as translate_module
from jaxformer.decoding.engine import Task
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.translate import Hypothesis
from jaxformer.errors import InputError
from tests.decoding.tiny import EXTRA, MODEL, SENTENCES, open_translator, padded
from tests.models.tiny import model_of


class Echo:
    """A stand-in for an engine: a translation is the prefix and the source of a task.

    It answers the last submitted task first, with two hypotheses, the better one last.
    """

    def __init__(self, *_, **__):
        self.tasks, self.seen = [], []

    def submit(self, task):
        self.tasks.append(task)
        self.seen.append(task._replace(done=None))

    def advance(self, most=None):
        if not self.tasks:
            return False
        task = self.tasks.pop()
        ids = [*task.prefix, *task.source]
        n = np.array([len(ids) - len(task.prefix), len(ids)])
        tokens = padded([task.source, ids], len(ids) + 3)
        task.done(SearchResult(tokens, n, -10.0 / n, -20.0 / n))
        return True

    def clear(self):
        self.tasks.clear()


@pytest.fixture
def make_echo(monkeypatch):
    monkeypatch.setattr(translate_module, "Engine", Echo)
    return open_translator


def test_a_string_gives_a_string_and_a_list_a_list(make_echo):
    echo = make_echo()
    assert echo("5 6") == "5 6"
    assert echo(["5 6", "7", "8 9 10"]) == ["5 6", "7", "8 9 10"]
    assert echo([]) == echo.translate([]) == []


@pytest.mark.parametrize("n_best", [1, 2, 3])
def test_hypotheses_are_sorted_and_cut(make_echo, n_best):
    (found,) = make_echo(n_best=n_best).translate(["5 6"], prefixes=["7"])
    best = Hypothesis("7 5 6", -2.5, -5.0, 4)
    assert found == [best, Hypothesis("5 6", -10 / 3, -20 / 3, 3)][:n_best]


def test_blank_sentences_stay_blank_and_take_no_slot(make_echo):
    echo = make_echo(n_best=2)
    assert echo(["", "5", "  ", "6 7", "\t"]) == ["", "5", "", "6 7", ""]
    nothing = Hypothesis("", 0.0, 0.0, 0)
    assert echo.translate([" "], prefixes=["5"]) == [[nothing]]
    assert [len(task.source) for task in echo._engine.seen] == [3, 2]


def test_a_task_has_the_limits_prefix_and_seed_of_its_sentence(make_echo):
    echo = make_echo(min_length=8, seed=2)
    echo.translate(["5 6 7 8", "9"], prefixes=["", "10 11"])
    echo.translate_part(["12"], first=100, prefixes=[" ".join(["13"] * 20)])
    assert echo._engine.seen == [
        Task([5, 6, 7, 8, EOS], 5 + EXTRA, 8, [], 2_000_006),
        Task([9, EOS], 2 + EXTRA, 7, [10, 11], 2_000_007),
        # The prefix is longer than the limit would be.
        Task([12, EOS], 21, 8, [13] * 20, 2_000_106),
    ]


def test_learned_positions_of_any_member_limit_all(make_echo):
    nine, six = (model_of(positions="learned", max_positions=n) for n in (9, 6))
    echo = make_echo(models=(MODEL, nine, six), seeds=(0, 1, 2), min_length=99)
    echo.translate(["5 6 7 8 9", "5"], prefixes=["10 11 12 13 14 15", ""])
    assert echo._engine.seen == [
        Task([5, 6, 7, 8, 9, EOS], 6, 6, [10, 11, 12, 13, 14], 0),
        Task([5, EOS], 6, 6, [], 1),
    ]
    assert echo("5 6 7 8 9 10") == "5 6 7 8 9 10"
    assert [len(task.source) for task in echo._engine.seen[2:]] == [6, 2]


@pytest.mark.parametrize("of", [1, 2, 3, 40])
def test_parts_together_translate_all_sentences(make_echo, of, monkeypatch):
    monkeypatch.setattr(translate_module, "ROUND", 2)
    echo = make_echo()
    sentences = [*SENTENCES[:4], " ", *SENTENCES[4:], ""]
    prefixes = [""] * 7 + ["9"] + [""] * 3
    expected = echo.translate(sentences, prefixes=prefixes)
    assert expected[7][0].text == f"9 {sentences[7]}"
    found, calls = [], set()
    for number in range(of):
        check = mock.Mock()
        found += echo.translate_part(sentences, (number, of), check, prefixes=prefixes)
        calls.add(check.call_count)
    assert sorted(found) == list(enumerate(expected))
    (count,) = calls  # each call synchronises the processes
    assert count >= -(-11 // (2 * of))


def test_check_stop_may_end_the_work_at_any_moment(make_echo):
    echo, check = make_echo(), mock.Mock()
    echo.translate_part(SENTENCES, check_stop=check)
    assert check.call_count > len(SENTENCES)
    for count in range(check.call_count):
        stop = mock.Mock(side_effect=[*[None] * count, ProcessLookupError])
        with pytest.raises(ProcessLookupError):
            echo.translate_part(SENTENCES, check_stop=stop)
        assert echo._engine.tasks == []
    assert echo(SENTENCES) == SENTENCES


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_progress_bar(make_echo, monkeypatch, is_terminal):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(translate_module, "BAR_DELAY", 0)
    monkeypatch.setattr(translate_module.tqdm, "monitor_interval", 0)  # no thread
    echo = make_echo()
    assert echo.translate_all(SENTENCES) == echo.translate(SENTENCES)
    assert ("0/9 [" in stderr.getvalue()) == is_terminal
    assert not stderr.getvalue().strip(" \r") or is_terminal


def test_a_long_line_is_translated_in_parts(make_echo):
    echo = make_echo(n_best=2, max_source_length=8)
    line = "5 6, 7 8 9 10 11. 12 13 14."
    ((best, second),) = echo.translate([line], prefixes=["20"])
    assert [(task.source, task.prefix) for task in echo._engine.seen] == [
        ([5, 6, 7, 8, 9, 10, 11, EOS], [20]), ([12, 13, 14, EOS], []),
    ]  # fmt: skip
    # The best of both parts, then the second best; scores are sums.
    text = "5 6 7 8 9 10 11 12 13 14"
    sums = -10 / 9 - 10 / 4, -20 / 9 - 20 / 4, 9 + 4
    assert best == (f"20 {text}", *map(pytest.approx, sums))
    assert second == (text, *map(pytest.approx, (-10 / 8 - 10 / 4, -7.5, 8 + 4)))


def test_a_long_line_may_be_truncated_or_refused_by_its_number(make_echo):
    long = "5 6 7 8 9 10"
    cut = make_echo(max_source_length=4, long_lines="truncate")
    assert cut(["5 6 7", long]) == ["5 6 7", "5 6 7"]
    echo = make_echo(max_source_length=4, long_lines="refuse")
    with pytest.raises(InputError, match=r"line 3 has 7 .* 4; .* split or truncate"):
        echo(["5", "6", long])
    with pytest.raises(InputError, match="line 12 has 7 pieces"):
        echo.translate_part(["5", long], first=10)
    assert echo._engine.seen == []
    assert echo("5 6 7") == "5 6 7"
