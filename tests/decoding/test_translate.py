"""Sentences in, sentences out, by tiny models with random parameters."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import EOS, PAD
from jaxformer.decoding import translate as translate_module
from jaxformer.decoding.engine import Task
from jaxformer.decoding.options import SearchOptions, TranslateOptions
from jaxformer.decoding.scorer import Scorer, search_translations
from jaxformer.decoding.search import Requests, SearchResult, search
from jaxformer.decoding.translate import (
    Hypothesis,
    Translator,
)
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

EXTRA = 5  # pieces that a translation may have more than its source
SENTENCES = random_sentences(9, longest=15)  # all of one bucket; four share a batch
LONG = random_sentences(2, longest=22, seed=1)[1]  # of another, which two may share


def open_translator(
    *, models=(MODEL,), seeds=(0,), beam_size=3, rows=None, **options
) -> Translator:
    return Translator(
        models,
        [params_of(model, seed) for model, seed in zip(models, seeds, strict=True)],
        Numbers(),
        options=TranslateOptions(
            beam_size=beam_size,
            alpha=0.6,
            extra_length=EXTRA,
            batch_tokens=64,
            **options,
        ),
        rows=rows,
    )


SETTINGS = {
    "greedy": {"beam_size": 1},
    "beam": {"n_best": 3},
    "beam with rules": {
        "n_best": 3,
        "length_penalty": "power",
        "no_repeat_ngram": 2,
        "min_length": 6,
    },
    "samples": {
        "n_best": 3,
        "temperature": 1.2,
        "top_k": 9,
        "top_p": 0.9,
        "seed": 5,
    },
}


@functools.cache
def translator_of(name: str) -> Translator:
    """A translator of some settings, made once: what it compiles takes a while."""
    return open_translator(**SETTINGS[name])


@pytest.fixture
def beam() -> Translator:
    return translator_of("beam")


def ids_of(text: str) -> list[int]:
    return Numbers().encode([text])[0]


def assert_alike(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """The same texts; the numbers may differ by rounding, in other shapes."""
    assert [h.text for h in found] == [h.text for h in expected]
    for field in ("score", "log_probability", "tokens"):
        np.testing.assert_allclose(
            [getattr(h, field) for h in found],
            [getattr(h, field) for h in expected],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip


# Compacted and plain --------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def search_plainly(options, params, source, requests):
    """All rows from their beginning to the end of the last, as one program."""
    scorer = Scorer([MODEL])
    weights = scorer.weights([params])
    memory = scorer.encode(weights, source)
    cache = scorer.empty_cache(batch=len(source), width=options.beam_size, length=30)
    step_fn = functools.partial(scorer.step, weights, memory)
    return search(step_fn, cache, requests, options, max_steps=30)


def padded(rows, length: int) -> np.ndarray:
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


@pytest.mark.parametrize("name", SETTINGS)
def test_sentences_that_come_and_go_are_translated_as_if_all_stayed(name):
    """With whatever neighbours, in whatever bucket, behind whatever padding."""
    translator = translator_of(name)
    least, seed = translator.options.min_length, translator.options.seed
    sentences = [*SENTENCES[:5], LONG, *SENTENCES[5:]]
    prefixes = ["", "7 7", "", "8"] + [""] * 6
    sources, begins = map(Numbers().encode, (sentences, prefixes))
    requests = Requests(
        max_lengths=np.array([len(source) + EXTRA for source in sources], np.int32),
        min_lengths=np.full(10, least, np.int32),
        prefixes=padded([begin[:-1] for begin in begins], 3),
        seeds=np.array([seed * 1_000_003 + n for n in range(10)], np.uint32),
    )
    plain = search_plainly(
        translator.options, params_of(MODEL), padded(sources, 24), requests
    )
    found = translator.translate(sentences, prefixes=prefixes)
    assert len({each[0].text for each in found}) > 5
    for row, hypotheses in enumerate(found):
        expected = sorted(hypotheses_of(plain, row), reverse=True)
        expected = expected[: translator.options.n_best]
        texts = [Numbers().decode(tokens) for _, tokens in expected]
        assert [h.text for h in hypotheses] == texts
        np.testing.assert_allclose(
            [h.score for h in hypotheses], [score for score, _ in expected], rtol=1e-4
        )
        assert all(h.text.startswith(prefixes[row]) for h in hypotheses)
        assert all(h.tokens >= least for h in hypotheses)


@functools.partial(jax.jit, static_argnums=0)
def search_all(models, params, source):
    return search_translations(
        models, params, source, options=translator_of("beam").options,
        extra_length=EXTRA,
    )  # fmt: skip


def test_search_translations_is_that_search_without_rules(beam):
    sources = Numbers().encode(SENTENCES[:4])
    found = search_all((MODEL,), [params_of(MODEL)], padded([*sources, []], 16))
    for row, hypotheses in enumerate(beam.translate(SENTENCES[:4])):
        expected = hypotheses_of(found, row)
        texts = [Numbers().decode(tokens) for _, tokens in expected]
        assert [h.text for h in hypotheses] == texts
        np.testing.assert_allclose(
            [h.score for h in hypotheses], [score for score, _ in expected], rtol=1e-4
        )
    assert hypotheses_of(found, 4) == []  # an empty row


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_sentence_has_its_own_limit(beam_size):
    params = params_of(MODEL)
    embedding = params["embedding"].copy()
    embedding[EOS] = 0.0  # never likely
    lengths = [2, 9, 0, 16]
    source = np.full((4, 16), PAD, np.int32)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = FIRST_WORD
    run = functools.partial(
        search_translations, [MODEL], extra_length=EXTRA,
        options=SearchOptions(beam_size=beam_size, alpha=9.0),
    )  # fmt: skip
    found = jax.jit(run)([{**params, "embedding": embedding}], source)
    assert found.lengths[:, 0].tolist() == [7, 14, 0, 21]
    assert (np.asarray(found.tokens[2]) == PAD).all()


def test_scores_are_teacher_forced_log_probabilities_over_the_penalty(beam):
    found = beam.translate(SENTENCES)
    for sentence, hypotheses in zip(SENTENCES, found, strict=True):
        assert len(hypotheses) == 3
        assert len({h.text for h in hypotheses}) == 3
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for h in hypotheses:
            ids = ids_of(h.text)
            rows = teacher_forced(MODEL, params_of(MODEL), sentence, h.text)
            log_p = rows[np.arange(len(ids)), ids].sum()
            assert h.tokens == len(ids)
            assert h.log_probability == pytest.approx(log_p, rel=1e-4)
            assert h.score == pytest.approx(log_p / ((5 + len(ids)) / 6) ** 0.6, 1e-4)
    best = [hypotheses[0] for hypotheses in found]
    forced = beam.score(SENTENCES, [h.text for h in best])
    np.testing.assert_allclose(
        [each.log_probability for each in forced],
        [h.log_probability for h in best],
        rtol=1e-4,
    )


# Sentences that come and go -------------------------------------------------------


def finish(translator) -> None:
    """Let all that was submitted come back."""
    while translator.advance():
        pass


def test_the_order_of_the_input_changes_nothing_but_the_order(beam):
    expected = beam.translate(SENTENCES)
    assert len({each[0].text for each in expected}) > len(SENTENCES) / 2
    order = np.random.default_rng(2).permutation(len(SENTENCES))
    found = beam.translate([SENTENCES[i] for i in order])
    for place, i in enumerate(order):
        assert_alike(found[place], expected[i])


def test_lines_may_join_the_search_in_flight(beam):
    expected = beam.translate([*SENTENCES, LONG])
    found = {}
    for number, sentence in enumerate([*SENTENCES, LONG]):
        beam.submit(sentence, functools.partial(found.__setitem__, number))
        beam.advance(2)
    finish(beam)
    assert sorted(found) == list(range(10))
    for number, hypotheses in found.items():
        assert_alike(hypotheses, expected[number])


def test_work_that_was_ended_leaves_nothing_behind(beam):
    expected = beam.translate(SENTENCES)
    for moment in range(5):
        left = iter([None] * moment)
        with pytest.raises(Enough):
            beam.translate_part(SENTENCES, check_stop=end_after(left))
        assert not beam.advance()
    for ours, theirs in zip(beam.translate(SENTENCES), expected, strict=True):
        assert_alike(ours, theirs)


class Enough(Exception):
    """Raised to end the work."""


def end_after(left) -> Callable[[], None]:
    def check_stop() -> None:
        if next(left, Enough) is Enough:
            raise Enough

    return check_stop


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
    """Three devices divide no batch of 1, 2, 4, ... rows: empty ones fill it up."""
    mesh = jax.make_mesh((3,), ("data",), (AxisType.Auto,), devices=jax.devices()[:3])
    spread = open_translator(rows=NamedSharding(mesh, P("data")), **SETTINGS["beam"])
    spread.params = [jax.device_put(params_of(MODEL), NamedSharding(mesh, P()))]
    found = spread.translate(SENTENCES)
    for ours, theirs in zip(found, beam.translate(SENTENCES), strict=True):
        assert_alike(ours, theirs)


def test_a_prefix_that_was_found_finds_the_rest(beam):
    (_, second, _) = beam.translate(SENTENCES[1:2])[0]
    words = second.text.split()
    begin = " ".join(words[: len(words) // 2 + 1])
    (found,) = beam.translate(SENTENCES[1:2], prefixes=[begin])
    assert all(h.text.startswith(begin) for h in found)
    assert found[0].score >= second.score - 1e-4


def test_samples_are_those_of_a_seed_and_a_line():
    translator = translator_of("samples")
    whole = translator.translate(SENTENCES)
    for ours, theirs in zip(translator.translate(SENTENCES), whole, strict=True):
        assert_alike(ours, theirs)
    ((_, found),) = translator.translate_part(SENTENCES[4:5], first=4)
    assert_alike(found, whole[4])
    ((_, moved),) = translator.translate_part(SENTENCES[4:5], first=3)
    assert [h.text for h in moved] != [h.text for h in whole[4]]
    answer = []
    translator.submit(SENTENCES[4], answer.extend, line=4)
    finish(translator)
    assert_alike(answer, whole[4])


def test_learned_positions_set_limits_of_their_own():
    """A source of 20 pieces fits; its bucket of 24, and EXTRA more, would not."""
    model = model_of(positions="learned", max_positions=20)
    translator = open_translator(models=(model,), beam_size=1, min_length=99)
    fits = " ".join(["5"] * 19)
    (found,) = translator.translate([fits])[0]
    assert found.tokens == 20
    rows = teacher_forced(model, params_of(model), fits, found.text, room=20)
    log_p = rows[np.arange(20), ids_of(found.text)].sum()
    assert found.log_probability == pytest.approx(log_p, rel=1e-4)
    begin = " ".join(["7"] * 40)
    assert translator.translate([fits], prefixes=[begin])[0][0].tokens == 20


def test_a_window_keeps_less_and_finds_what_teacher_forcing_finds():
    model = model_of(attention_window=5)
    translator = open_translator(models=(model,), n_best=2)
    sentences = [*SENTENCES[:4], LONG, *SENTENCES[4:]]
    for sentence, found in zip(sentences, translator.translate(sentences), strict=True):
        for h in found:
            ids = ids_of(h.text)
            rows = teacher_forced(model, params_of(model), sentence, h.text)
            log_p = rows[np.arange(len(ids)), ids].sum()
            assert h.log_probability == pytest.approx(log_p, rel=1e-4)


# Ensembles ------------------------------------------------------------------------


def test_members_may_have_windows_of_their_own():
    """And so rings of different lengths: of two places, and of all."""
    models = (model_of(attention_window=3), MODEL)
    translator = open_translator(models=models, seeds=(0, 1), n_best=3)
    sentences = [*SENTENCES[:4], LONG]
    rows = padded(Numbers().encode(sentences), 24)
    params = [params_of(model, seed) for seed, model in enumerate(models)]
    plain = search_all(models, params, rows)
    for row, found in enumerate(translator.translate(sentences)):
        expected = hypotheses_of(plain, row)
        assert [h.text for h in found] == [Numbers().decode(ids) for _, ids in expected]
        np.testing.assert_allclose(
            [h.score for h in found], [score for score, _ in expected], rtol=1e-4
        )


def test_members_that_are_the_same_are_as_one():
    rows, params = padded(Numbers().encode(SENTENCES[:4]), 16), params_of(MODEL)
    single = search_all((MODEL,), [params], padded([*rows, []], 16))
    twice = search_all((MODEL, MODEL), [params, params], rows)
    for row in range(4):
        ours, theirs = (hypotheses_of(found, row) for found in (twice, single))
        assert [tokens for _, tokens in ours] == [tokens for _, tokens in theirs]
        np.testing.assert_allclose(
            [score for score, _ in ours], [score for score, _ in theirs], rtol=1e-4
        )


def test_members_that_differ_are_the_mean_of_their_probabilities():
    """The second has another size, and fewer positions than the first would use."""
    other = model_of(num_heads=1, d_ff=16, positions="learned", max_positions=18)
    members = ((MODEL, params_of(MODEL, 0)), (other, params_of(other, 1)))
    translator = open_translator(
        models=(MODEL, other), seeds=(0, 1), **SETTINGS["beam"]
    )
    found = translator.translate(SENTENCES)
    single = translator_of("beam").translate(SENTENCES)
    assert [h[0].text for h in found] != [h[0].text for h in single]
    for sentence, hypotheses in zip(SENTENCES, found, strict=True):
        for h in hypotheses:
            ids = ids_of(h.text)
            assert len(ids) <= 18
            mean = np.mean(
                [
                    np.exp(teacher_forced(*member, sentence, h.text, room=18))
                    for member in members
                ],
                axis=0,
            )
            log_p = np.log(mean[np.arange(len(ids)), ids]).sum()
            assert h.log_probability == pytest.approx(log_p, rel=1e-4)

    # Attention and scores of given pairs are those of the first.
    single = translator_of("beam")
    assert translator.score(["5 6"], ["7"]) == single.score(["5 6"], ["7"])
    ours, theirs = (each.attention("5 6", "7") for each in (translator, single))
    np.testing.assert_array_equal(ours.cross, theirs.cross)


# Text -----------------------------------------------------------------------------


class Echo:
    """Stands in for an engine: each task's translation is its prefix and its source.

    The last that was submitted is answered first, with two hypotheses of which the
    better comes second.
    """

    def __init__(self, *_, **__):
        self.weights = None
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


def test_a_sentence_comes_back_as_one_and_a_list_as_a_list(make_echo):
    echo = make_echo()
    assert echo("5 6") == "5 6"
    assert echo(["5 6"]) == ["5 6"]
    assert echo(["5 6", "7", "8 9 10"]) == ["5 6", "7", "8 9 10"]
    assert echo([]) == []
    assert echo.translate([]) == []


def test_hypotheses_are_sorted_and_cut(make_echo):
    for n_best in (1, 2, 3):
        echo = make_echo(n_best=n_best)
        (found,) = echo.translate(["5 6"], prefixes=["7"])
        best = (
            Hypothesis("7 5 6", -2.5, -5.0, 4),
            Hypothesis("5 6", -10 / 3, -20 / 3, 3),
        )
        assert found == list(best[:n_best])


def test_blank_sentences_stay_blank_and_take_no_place(make_echo):
    echo = make_echo(n_best=2)
    assert echo(["", "5", "  ", "6 7", "\t"]) == ["", "5", "", "6 7", ""]
    assert echo("") == ""
    nothing = Hypothesis("", 0.0, 0.0, 0)
    assert echo.translate([" "], prefixes=["5"]) == [[nothing]]
    found = []
    echo.submit(" ", found.extend)
    assert found == [nothing]
    assert [len(task.source) for task in echo._engine.seen] == [3, 2]


def test_a_task_is_what_the_sentence_asks_for(make_echo):
    echo = make_echo(min_length=8, seed=2)
    echo.translate(["5 6 7 8", "9"], prefixes=["", "10 11"])
    echo.translate_part(["12"], first=100, prefixes=[" ".join(["13"] * 20)])
    long, short, last = (task._replace(done=None) for task in echo._engine.seen)
    assert long == Task([5, 6, 7, 8, EOS], 5 + EXTRA, None, 8, [], 2_000_006)
    assert short == Task([9, EOS], 2 + EXTRA, None, 7, [10, 11], 2_000_007)
    # A prefix may be longer than a translation would be.
    assert last == Task([12, EOS], 21, None, 8, [13] * 20, 2_000_106)


def test_learned_positions_of_any_member_limit_all(make_echo):
    members = (
        MODEL,
        model_of(positions="learned", max_positions=9),
        model_of(positions="learned", max_positions=6),
    )
    echo = make_echo(models=members, seeds=(0, 1, 2), min_length=99)
    echo.translate(["5 6 7 8 9", "5"], prefixes=["10 11 12 13 14 15", ""])
    long, short = echo._engine.seen
    assert (long.max_length, long.min_length) == (6, 6)
    assert long.prefix == [10, 11, 12, 13, 14]
    assert short.max_length == 6
    assert echo("5 6 7 8 9 10") == "5 6 7 8 9 10"
    assert [len(task.source) for task in echo._engine.seen[2:]] == [6, 2]


@pytest.mark.parametrize("of", [1, 2, 3, 40])
def test_parts_make_the_whole(make_echo, of, monkeypatch):
    monkeypatch.setattr(translate_module, "ROUND", 2)
    echo = make_echo()
    sentences = [*SENTENCES[:4], " ", *SENTENCES[4:], ""]
    prefixes = [""] * 11
    prefixes[7] = "9"
    whole = echo.translate(sentences, prefixes=prefixes)
    assert whole[7][0].text == f"9 {sentences[7]}"
    found, heeded = {}, []
    for number in range(of):
        calls = []
        share = echo.translate_part(
            sentences, (number, of), functools.partial(calls.append, 1),
            prefixes=prefixes,
        )  # fmt: skip
        assert not set(found) & set(dict(share))
        found |= dict(share)
        heeded.append(len(calls))
    assert [found[index] for index in range(11)] == whole
    assert len(set(heeded)) == 1  # as often in all, so that all can agree
    assert heeded[0] >= -(-11 // (2 * of))


def test_who_is_heeded_may_end_the_work_at_any_moment(make_echo):
    echo = make_echo()
    calls = []
    echo.translate_part(SENTENCES, check_stop=functools.partial(calls.append, 1))
    assert len(calls) > len(SENTENCES)
    for moment in range(len(calls)):
        left = iter([None] * moment)
        with pytest.raises(Enough):
            echo.translate_part(SENTENCES, check_stop=end_after(left))
        assert echo._engine.tasks == []
    assert echo(SENTENCES) == SENTENCES


def test_a_long_line_is_translated_in_parts(make_echo):
    echo = make_echo(n_best=2, max_source_length=8)
    line = "5 6, 7 8 9 10 11. 12 13 14."
    (best, second) = echo.translate([line], prefixes=["20"])[0]
    first, last = echo._engine.seen
    assert first.source == [5, 6, 7, 8, 9, 10, 11, EOS]
    assert last.source == [12, 13, 14, EOS]
    assert (first.prefix, last.prefix) == ([20], [])
    # The best of the first and of the last, then their seconds, as scores add up.
    assert best.text == "20 5 6 7 8 9 10 11 12 13 14"
    assert best.score == pytest.approx(-10 / 9 - 10 / 4)
    assert best.log_probability == pytest.approx(-20 / 9 - 20 / 4)
    assert best.tokens == 9 + 4
    assert second.text == "5 6 7 8 9 10 11 12 13 14"
    assert second.score == pytest.approx(-10 / 8 - 10 / 4)
    found = []
    echo.submit(line, found.extend)
    assert found == []
    finish(echo)
    assert [h.text for h in found] == ["5 6 7 8 9 10 11 12 13 14"] * 2


def test_a_long_line_may_be_truncated(make_echo, caplog):
    echo = make_echo(max_source_length=4, long_lines="truncate")
    assert echo(["5 6 7", "5 6 7 8 9 10"]) == ["5 6 7", "5 6 7"]
    assert caplog.messages == [
        "line 2 has 7 pieces, more than 4: only the first 3 are translated"
    ]


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


# Options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_lines": "fold"}, "long_lines is 'fold'; use one of split, truncate"),
        ({"max_source_length": 1}, "max_source_length is 1; it must be at least 2"),
        ({"n_best": 4}, "n_best is 4, more than beam_size = 3"),
        ({"beam_size": 0}, "beam_size is 0; it must be at least 1"),
    ],
)
def test_options_that_no_search_has_are_refused(make_echo, options, message):
    with pytest.raises(InputError, match=message):
        make_echo(**options)
