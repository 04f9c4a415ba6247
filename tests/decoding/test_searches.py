"""Searches in threads of their own."""

import threading
from collections import Counter
from unittest import mock

import jax
import pytest

from jaxformer.decoding import engine as engine_module
from jaxformer.decoding.all_processes import translate_all
from jaxformer.decoding.engine import Engine, run_searches
from jaxformer.decoding.shapes import MOST_SLOTS, Shapes
from jaxformer.training.sharding import batch_sharding, on_mesh
from tests.decoding.tiny import SENTENCES, open_translator, random_sentences
from tests.training.setups import mesh_of

TEXTS = random_sentences(40, longest=15)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_several_searches_find_what_one_finds(options):
    one, two = (open_translator(searches=count, **options) for count in (1, 2))
    expected = one.translate(TEXTS)
    found = two.translate(TEXTS)
    for theirs, ours in zip(expected, found, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert ours[0].score == pytest.approx(theirs[0].score, rel=1e-5)
    assert two.translate([]) == []
    assert two(SENTENCES[:1]) == one(SENTENCES[:1])
    # The same bits again, after other work, and in a translator of its own.
    assert two.translate(TEXTS) == found
    assert open_translator(searches=2, **options).translate(TEXTS) == found


def test_the_parts_of_a_text_are_divided_too():
    text = ". ".join(SENTENCES)
    options = {"split_sentences": True, "searches": 2}
    two, engines, submit = open_translator(**options), [], Engine.submit

    def note(engine, task):
        engines.append(engine)
        submit(engine, task)

    with mock.patch.object(Engine, "submit", note):
        found = two(text)
    counts = [*Counter(engines).values()]
    assert counts[1:] == [len(two.text.sentences(text)) // 2]
    assert counts[1] > 1
    assert found == open_translator(split_sentences=True)(text)


@pytest.mark.parametrize(
    ("sentences", "searches"),
    [(SENTENCES[:1] * 5, 1), (SENTENCES[:1] * 6, 2), (SENTENCES[1:2] * 5, 2)],
)
def test_few_hypotheses_that_fit_one_search_have_one(sentences, searches):
    """The beam has three; each search may have 32 tokens, and a long source has 16."""
    two = open_translator(searches=2)
    with mock.patch.object(engine_module, "run_searches", wraps=run_searches) as run:
        two(sentences)
    first, phrased = (call.args[0] for call in run.call_args_list)
    assert (len(first), len(phrased)) == (searches, 1)


def test_all_searches_together_have_the_slots_and_tokens_of_one():
    one, two = (Shapes(64, 1, sharing) for sharing in (1, 2))
    assert (one.most, two.most) == (MOST_SLOTS, MOST_SLOTS // 2)
    assert one.most_slots(16) == 2 * two.most_slots(16) == 4


def test_each_shape_is_compiled_once():
    """Also within the mesh of training, which is a context of its thread."""
    mesh = mesh_of((1, 1, 1))
    two = open_translator(searches=2, beam_size=9, rows=batch_sharding(mesh))
    compiled = []

    def note(event, _, *, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with on_mesh(mesh, rules=()):
            two.translate(SENTENCES[:1] * 2)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled.count("jit(_advance)") == 1


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_stop_ends_all_searches(calls):
    translator = open_translator(searches=2)
    stop = mock.Mock(side_effect=[*[None] * calls, ProcessLookupError])
    with pytest.raises(ProcessLookupError):
        translate_all(translator, TEXTS * 50, stop)
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
    searches, checks = [Search(3), Search(50), Search(1)], set()
    run_searches(searches, lambda: checks.add(threading.get_ident()))
    assert [search.steps for search in searches] == [0, 0, 0]
    assert checks == {threading.get_ident()}
    assert not any(checks & search.threads for search in searches)
    run_searches(searches[:1], mock.Mock())
    assert checks <= searches[0].threads
    run_searches([], mock.Mock())


@pytest.mark.parametrize("steps", [(2, 10**9), (10**9, 2)])
def test_an_error_of_any_search_ends_the_others(steps):
    error = RuntimeError("no memory")
    searches = [Search(each, error) for each in steps]
    with pytest.raises(RuntimeError, match="no memory"):
        run_searches(searches, mock.Mock())


def test_a_stop_does_not_wait_for_a_program_that_compiles():
    is_compiled, searches = threading.Event(), [Search(1), Search(1)]
    searches[1].advance = is_compiled.wait
    stop = mock.Mock(side_effect=[None, KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        run_searches(searches, stop)
    is_compiled.set()
