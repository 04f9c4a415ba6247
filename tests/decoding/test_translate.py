"""Translations by tiny models with random parameters."""

import functools
import io
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import EOS, PAD
from jaxformer.decoding import translate as translate_module
from jaxformer.decoding.engine import Task
from jaxformer.decoding.options import SearchOptions, TranslateOptions
from jaxformer.decoding.scorer import search_translations
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.translate import Hypothesis, Translator
from jaxformer.errors import InputError
from tests.decoding.tables import hypotheses_of
from tests.decoding.tiny import (
    FIRST_WORD,
    MODEL,
    Numbers,
    params_of,
    random_sentences,
    teacher_forced,
)
from tests.models.tiny import model_of

EXTRA = 5  # extra_length
SENTENCES = random_sentences(9, longest=15)  # of one bucket; four share a batch
LONG = random_sentences(2, longest=22, seed=1)[1]  # of another bucket
LEARNED = model_of(positions="learned", max_positions=20)


def open_translator(
    *, models=(MODEL,), seeds=(0,), beam_size=3, rows=None, **options
) -> Translator:
    options = TranslateOptions(
        beam_size=beam_size, alpha=0.6, extra_length=EXTRA, batch_tokens=64, **options
    )
    params = [params_of(*each) for each in zip(models, seeds, strict=True)]
    return Translator(models, params, Numbers(), options=options, rows=rows)


@pytest.fixture(scope="module")
def beam() -> Translator:
    """One translator for many tests, to compile its programs once."""
    return open_translator(n_best=3)


def assert_alike(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """The same texts, and the same numbers up to the rounding of other shapes."""
    assert [h.text for h in found] == [h.text for h in expected]
    numbers, others = ([h[1:] for h in each] for each in (found, expected))
    np.testing.assert_allclose(numbers, others, rtol=1e-4, atol=1e-5)


# The engine and a plain search ----------------------------------------------------


def padded(rows, length: int) -> np.ndarray:
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


WINDOWED = model_of(attention_window=3)
RULES = {"n_best": 3, "length_penalty": "power", "no_repeat_ngram": 2}


@pytest.mark.parametrize(
    ("models", "seeds", "members", "options"),
    [
        ((MODEL,), (0,), 1, {"beam_size": 1}),
        ((MODEL,), (0,), 1, RULES),
        ((WINDOWED, MODEL), (0, 1), 2, {"n_best": 3}),  # caches of different lengths
        ((MODEL, MODEL), (0, 0), 1, {"n_best": 3}),  # equal members are as one
    ],
)
def test_translations_are_those_of_a_search_of_all_rows_together(
    models, seeds, members, options
):
    sentences = [*SENTENCES[:5], LONG, *SENTENCES[5:]]
    translator = open_translator(models=models, seeds=seeds, **options)
    found = translator.translate(sentences)
    assert len({h.text for hypotheses in found for h in hypotheses}) > 5
    run = functools.partial(
        search_translations, models[:members], options=translator.options,
        extra_length=EXTRA,
    )  # fmt: skip
    source = padded([*Numbers().encode(sentences), []], 24)
    plain = jax.jit(run)(translator.params[:members], source)
    for row, hypotheses in enumerate(found):
        scores, ids = zip(*hypotheses_of(plain, row), strict=True)
        assert [h.text for h in hypotheses] == list(map(Numbers().decode, ids))
        np.testing.assert_allclose([h.score for h in hypotheses], scores, rtol=1e-4)
    assert hypotheses_of(plain, 10) == []  # an empty row


@pytest.mark.parametrize("beam_size", [1, 3])
def test_search_translations_limits_each_sentence_by_its_own_length(beam_size):
    params = params_of(MODEL)
    embedding = params["embedding"].copy()
    embedding[EOS] = 0.0  # never likely
    source = padded([[FIRST_WORD] * length for length in (2, 9, 0, 16)], 16)
    run = functools.partial(
        search_translations, [MODEL], extra_length=EXTRA,
        options=SearchOptions(beam_size=beam_size, alpha=9.0),
    )  # fmt: skip
    found = jax.jit(run)([{**params, "embedding": embedding}], source)
    assert found.lengths[:, 0].tolist() == [7, 14, 0, 21]


FULL = " ".join(["5"] * 19)  # 20 tokens with EOS


@pytest.mark.parametrize(
    ("models", "options", "sentences", "lengths"),
    [
        ([model_of(attention_window=5)], {}, [*SENTENCES, LONG], range(1, 40)),
        # A bucket of 24 tokens, and EXTRA more, exceed the 20 learned positions.
        ([LEARNED], {"min_length": 99}, [FULL], [20]),
        # The second member has other sizes, and fewer positions than the first uses.
        (
            [MODEL, model_of(num_heads=1, d_ff=16, positions="learned",
                             max_positions=18)],
            {}, SENTENCES, range(1, 19),
        ),
    ],
    ids=["window", "learned positions", "ensemble"],
)  # fmt: skip
def test_log_probabilities_are_teacher_forced_means_over_members(
    models, options, sentences, lengths
):
    seeds = range(len(models))
    translator = open_translator(models=models, seeds=seeds, n_best=3, **options)
    room = min(model.longest or 32 for model in models)
    found = translator.translate(sentences)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        assert len({h.text for h in hypotheses}) == 3
        for h in hypotheses:
            (ids,) = Numbers().encode([h.text])
            each = [
                teacher_forced(model, params_of(model, seed), sentence, h.text, room)
                for model, seed in zip(models, seeds, strict=True)
            ]
            mean = np.exp(each).mean(axis=0)
            log_p = np.log(mean[np.arange(len(ids)), ids]).sum()
            assert h.tokens == len(ids)
            assert len(ids) in lengths
            assert h.log_probability == pytest.approx(log_p, rel=1e-4)
            assert h.score == pytest.approx(log_p / ((5 + len(ids)) / 6) ** 0.6, 1e-4)


def test_an_ensemble_scores_given_pairs_with_its_first_member(beam):
    ensemble = open_translator(models=(MODEL, LEARNED), seeds=(0, 1))
    assert ensemble.score(["5 6"], ["7"]) == beam.score(["5 6"], ["7"])
    ours, theirs = (each.attention("5 6", "7") for each in (ensemble, beam))
    np.testing.assert_array_equal(ours.cross, theirs.cross)


# Translators in use ---------------------------------------------------------------


def test_lines_may_join_a_running_search(beam):
    expected = beam.translate([*SENTENCES, LONG])
    found = {}
    for number, sentence in enumerate([*SENTENCES, LONG]):
        beam.submit(sentence, functools.partial(found.__setitem__, number))
        beam.advance(2)
    while beam.advance():
        pass
    for number, hypotheses in enumerate(expected):
        assert_alike(found[number], hypotheses)


def test_new_parameters_are_used(beam):
    before, old = beam.translate(SENTENCES[:2]), beam.params
    forced, maps = beam.score(["5"], ["6"]), beam.attention("5", "6")
    try:
        beam.params = [params_of(MODEL, seed=1)]
        after = beam.translate(SENTENCES[:2])
        assert after[1][0].text != before[1][0].text
        (own,) = beam.score([SENTENCES[1]], [after[1][0].text])
        assert own.log_probability == pytest.approx(after[1][0].log_probability, 1e-4)
        assert beam.score(["5"], ["6"]) != forced
        assert (beam.attention("5", "6").cross != maps.cross).any()
    finally:
        beam.params = old
    assert_alike(beam.translate(SENTENCES[:2])[1], before[1])


def test_rows_on_several_devices_change_nothing(beam):
    """Three devices divide no batch of 1, 2, 4, ... rows: empty rows fill it."""
    mesh = jax.make_mesh((3,), ("data",), (AxisType.Auto,), devices=jax.devices()[:3])
    spread = open_translator(rows=NamedSharding(mesh, P("data")), n_best=3)
    spread.params = [jax.device_put(params_of(MODEL), NamedSharding(mesh, P()))]
    found = spread.translate(SENTENCES)
    for ours, theirs in zip(found, beam.translate(SENTENCES), strict=True):
        assert_alike(ours, theirs)


def test_samples_are_functions_of_seed_and_line_number():
    translator = open_translator(n_best=3, temperature=1.2, top_k=9, seed=5)
    expected = translator.translate(SENTENCES)[4]
    ((_, found),) = translator.translate_part(SENTENCES[4:5], first=4)
    assert_alike(found, expected)
    ((_, moved),) = translator.translate_part(SENTENCES[4:5], first=3)
    assert [h.text for h in moved] != [h.text for h in expected]
    answer = []
    translator.submit(SENTENCES[4], answer.extend, line=4)
    while translator.advance():
        pass
    assert_alike(answer, expected)


# Text -----------------------------------------------------------------------------


class Echo:
    """A stand-in for an engine: a translation is the prefix and the source of a task.

    It answers the last submitted task first, with two hypotheses, the better one last.
    """

    def __init__(self, *_, **__):
        self.tasks, self.seen = [], []

    def submit(self, task):
        self.tasks.append(task)
        self.seen.append(task)

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
    found = []
    echo.submit(" ", found.extend)
    assert found == [nothing]
    assert [len(task.source) for task in echo._engine.seen] == [3, 2]


def test_a_task_has_the_limits_prefix_and_seed_of_its_sentence(make_echo):
    echo = make_echo(min_length=8, seed=2)
    echo.translate(["5 6 7 8", "9"], prefixes=["", "10 11"])
    echo.translate_part(["12"], first=100, prefixes=[" ".join(["13"] * 20)])
    assert [task._replace(done=None) for task in echo._engine.seen] == [
        Task([5, 6, 7, 8, EOS], 5 + EXTRA, 8, [], 2_000_006),
        Task([9, EOS], 2 + EXTRA, 7, [10, 11], 2_000_007),
        # The prefix is longer than the limit would be.
        Task([12, EOS], 21, 8, [13] * 20, 2_000_106),
    ]


def test_learned_positions_of_any_member_limit_all(make_echo):
    nine, six = (model_of(positions="learned", max_positions=n) for n in (9, 6))
    echo = make_echo(models=(MODEL, nine, six), seeds=(0, 1, 2), min_length=99)
    echo.translate(["5 6 7 8 9", "5"], prefixes=["10 11 12 13 14 15", ""])
    long, short = echo._engine.seen
    assert (long.max_length, long.min_length) == (6, 6)
    assert long.prefix == [10, 11, 12, 13, 14]
    assert short.max_length == 6
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
    found, checks = [], []
    for number in range(of):
        check_stop = functools.partial(checks.append, number)
        found += echo.translate_part(
            sentences, (number, of), check_stop, prefixes=prefixes
        )
    assert sorted(found) == list(enumerate(expected))
    calls = [checks.count(number) for number in range(of)]
    assert len(set(calls)) == 1  # each call synchronises the processes
    assert calls[0] >= -(-11 // (2 * of))


def test_check_stop_may_end_the_work_at_any_moment(make_echo):
    class StopError(Exception):
        pass

    def stop_after(count):
        calls = iter(range(count))

        def check_stop():
            if next(calls, None) is None:
                raise StopError

        return check_stop

    echo, calls = make_echo(), []
    echo.translate_part(SENTENCES, check_stop=lambda: calls.append(1))
    assert len(calls) > len(SENTENCES)
    for count in range(len(calls)):
        with pytest.raises(StopError):
            echo.translate_part(SENTENCES, check_stop=stop_after(count))
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


# Long lines -----------------------------------------------------------------------


def test_a_long_line_is_translated_in_parts(make_echo):
    echo = make_echo(n_best=2, max_source_length=8)
    line = "5 6, 7 8 9 10 11. 12 13 14."
    (best, second) = echo.translate([line], prefixes=["20"])[0]
    first, last = echo._engine.seen
    assert first.source == [5, 6, 7, 8, 9, 10, 11, EOS]
    assert last.source == [12, 13, 14, EOS]
    assert (first.prefix, last.prefix) == ([20], [])
    # The best of both parts, then the second best; scores are sums.
    assert best.text == "20 5 6 7 8 9 10 11 12 13 14"
    assert best.score == pytest.approx(-10 / 9 - 10 / 4)
    assert best.log_probability == pytest.approx(-20 / 9 - 20 / 4)
    assert best.tokens == 9 + 4
    assert second.text == "5 6 7 8 9 10 11 12 13 14"
    assert second.score == pytest.approx(-10 / 8 - 10 / 4)


def test_a_long_line_may_be_truncated(make_echo):
    echo = make_echo(max_source_length=4, long_lines="truncate")
    assert echo(["5 6 7", "5 6 7 8 9 10"]) == ["5 6 7", "5 6 7"]


def test_a_long_line_may_be_refused_by_its_number(make_echo):
    echo, long = make_echo(max_source_length=4, long_lines="refuse"), "5 6 7 8 9 10"
    with pytest.raises(InputError, match="line 3 has 7 pieces, more than 4; shorten"):
        echo(["5", "6", long])
    with pytest.raises(InputError, match="line 12 has 7 pieces"):
        echo.translate_part(["5", long], first=10)
    with pytest.raises(InputError, match="line 8 has 7 pieces"):
        echo.submit(long, print, line=7)
    assert echo._engine.seen == []
    assert echo("5 6 7") == "5 6 7"
