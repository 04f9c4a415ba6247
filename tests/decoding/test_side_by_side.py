"""Searches in threads of their own."""

import threading
from unittest import mock

import pytest

from jaxformer import processes
from jaxformer.decoding.side_by_side import best_count, finish
from tests.decoding.tiny import SENTENCES, open_translator, random_sentences
from tests.training.setups import mesh_of


def test_several_searches_find_what_one_finds():
    texts = random_sentences(40, longest=15)
    one, two = (open_translator(searches=searches) for searches in (1, 2))
    expected = one.translate(texts)
    for _ in range(2):
        found = two.translate(texts)
        for theirs, ours in zip(expected, found, strict=True):
            assert [each.text for each in ours] == [each.text for each in theirs]
            assert ours[0].score == pytest.approx(theirs[0].score, rel=1e-5)
    assert two.translate(SENTENCES[:1]) == one.translate(SENTENCES[:1])
    assert two.translate([]) == []


def test_a_stop_ends_all_searches():
    translator = open_translator(searches=2)
    with pytest.raises(ProcessLookupError):
        translator.translate_part(
            SENTENCES, check_stop=mock.Mock(side_effect=[None, ProcessLookupError])
        )
    assert [engine.load for engine in translator._engines] == [(0, 0)] * 2
    assert translator(SENTENCES) == open_translator()(SENTENCES)


class Search:
    """A stand-in for an engine with so many steps; it may raise in the last one."""

    def __init__(self, steps, error=None):
        self.steps, self.error, self.threads = steps, error, set()

    def advance(self):
        self.threads.add(threading.get_ident())
        self.steps -= 1
        if self.steps == 0 and self.error:
            raise self.error
        return self.steps > 0


def test_each_search_has_a_thread_and_this_one_checks_for_stops():
    searches, check = [Search(3), Search(50), Search(1)], mock.Mock()
    finish(searches, check)
    assert [search.steps for search in searches] == [0, 0, 0]
    assert searches[0].threads == {threading.get_ident()}
    others = searches[1].threads, searches[2].threads
    assert threading.get_ident() not in set.union(*others)
    assert check.call_count >= 3


@pytest.mark.parametrize("steps", [(2, 10**9), (10**9, 2)])
def test_an_error_of_any_search_ends_the_others(steps):
    error = RuntimeError("no memory")
    searches = [Search(each, error) for each in steps]
    with pytest.raises(RuntimeError, match="no memory"):
        finish(searches, mock.Mock())


@pytest.mark.parametrize(
    ("devices", "cores", "count"), [(1, 1, 1), (1, 2, 2), (1, 64, 2), (2, 64, 1)]
)
def test_one_cpu_runs_two_searches(monkeypatch, devices, cores, count):
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    assert best_count(mesh_of((devices, 1, 1))) == count
