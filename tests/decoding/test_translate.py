"""Sentences in, sentences out, by tiny models with random parameters."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.batch import EOS, PAD
from jaxformer.decoding import translate as translate_module
from jaxformer.decoding.options import SearchOptions
from jaxformer.decoding.scorer import Scorer
from jaxformer.decoding.search import Requests, search
from jaxformer.decoding.translate import (
    DecodingConfig,
    Hypothesis,
    Translator,
    Wishes,
    search_translations,
)
from jaxformer.errors import InputError
from tests.decoding.tables import hypotheses_of
from tests.decoding.tiny import (
    FIRST_WORD,
    MODEL,
    Numbers,
    make_model,
    params_of,
    random_sentences,
    teacher_forced,
)

EXTRA = 5  # pieces that a translation may have more than its source
SENTENCES = random_sentences(9, longest=15)  # all of one bucket; four share a batch
LONG = random_sentences(2, longest=22, seed=1)[1]  # of another, which two may share


@functools.cache
def make_translator(
    *,
    models=(MODEL,),
    seeds=(0,),
    beam_size=3,
    batch_tokens=64,
    rows=None,
    min_length=0,
    seed=0,
    max_source_length=None,
    long_lines="split",
    **options,
) -> Translator:
    """A translator, the same one for the same settings."""
    return Translator(
        models,
        [params_of(model, seed) for model, seed in zip(models, seeds, strict=True)],
        Numbers(),
        config=DecodingConfig(
            beam_size=beam_size, alpha=0.6, extra_length=EXTRA,
            batch_tokens=batch_tokens,
        ),
        rows=rows,
        wishes=Wishes(
            search=options, min_length=min_length, seed=seed,
            max_source_length=max_source_length, long_lines=long_lines,
        ),
    )  # fmt: skip


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


@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 1},
        {"n_best": 3},
        {"n_best": 3, "length_penalty": "power", "no_repeat_ngram": 2, "min_length": 6},
        {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "n_best": 3, "seed": 5},
    ],
    ids=["greedy", "beam", "beam with rules", "samples"],
)
def test_sentences_that_come_and_go_are_translated_as_if_all_stayed(settings):
    """With whatever neighbours, in whatever bucket, behind whatever padding."""
    translator = make_translator(**settings)
    least, seed = settings.get("min_length", 0), settings.get("seed", 0)
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


def test_search_translations_is_that_search_without_rules():
    sources = Numbers().encode([*SENTENCES[:3], SENTENCES[4]])
    rows = padded([*sources, []], 16)  # and an empty one
    run = jax.jit(
        functools.partial(
            search_translations, [MODEL], options=make_translator().options,
            extra_length=EXTRA,
        )
    )  # fmt: skip
    found = run([params_of(MODEL)], rows)
    expected = make_translator().translate([*SENTENCES[:3], SENTENCES[4]])
    for row, (best,) in enumerate(expected):
        score, tokens = hypotheses_of(found, row)[0]
        assert Numbers().decode(tokens) == best.text
        assert score == pytest.approx(best.score, rel=1e-4)
    assert hypotheses_of(found, 4) == []


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


def test_scores_are_teacher_forced_log_probabilities_over_the_penalty():
    translator = make_translator(n_best=3)
    found = translator.translate(SENTENCES)
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
    forced = translator.score(SENTENCES, [h.text for h in best])
    np.testing.assert_allclose(
        [each.log_probability for each in forced],
        [h.log_probability for h in best],
        rtol=1e-4,
    )


# Many sentences -------------------------------------------------------------------


def test_the_order_is_that_of_the_input():
    translator = make_translator()
    expected = translator(SENTENCES)
    assert len(set(expected)) > len(SENTENCES) / 2
    order = np.random.default_rng(2).permutation(len(SENTENCES))
    assert translator([SENTENCES[i] for i in order]) == [expected[i] for i in order]


def test_a_sentence_comes_back_as_one_and_a_list_as_a_list():
    translator = make_translator()
    one = translator(SENTENCES[1])
    assert isinstance(one, str)
    assert translator([SENTENCES[1]]) == [one]
    assert translator([]) == []
    assert translator.translate([]) == []


def test_blank_sentences_stay_blank():
    translator = make_translator(n_best=3)
    one, two = SENTENCES[:2]
    assert translator(["", one, "  ", two, "\t"]) == [
        "", translator(one), "", translator(two), ""
    ]  # fmt: skip
    assert translator("") == ""
    assert translator.translate([" "], prefixes=["5"]) == [
        [Hypothesis("", 0.0, 0.0, 0)]
    ]


@pytest.mark.parametrize("of", [1, 2, 3, 40])
def test_parts_make_the_whole(of, monkeypatch):
    monkeypatch.setattr(translate_module, "ROUND", 2)
    translator = make_translator()
    sentences = [*SENTENCES[:4], " ", *SENTENCES[4:], ""]
    prefixes = [""] * 11
    prefixes[7] = "9"
    whole = translator.translate(sentences, prefixes=prefixes)
    found, heeded = {}, []
    for number in range(of):
        calls = []
        share = translator.translate_part(
            sentences, (number, of), lambda calls=calls: calls.append(1),
            prefixes=prefixes,
        )  # fmt: skip
        assert not set(found) & set(dict(share))
        found |= dict(share)
        heeded.append(len(calls))
    assert sorted(found) == list(range(11))
    for index in range(11):
        assert_alike(found[index], whole[index])
    assert len(set(heeded)) == 1  # as often in all, so that all can agree
    assert heeded[0] >= -(-11 // (2 * of))


def test_who_is_heeded_may_end_the_work_at_any_moment():
    """And what was under way then is gone: it costs the next call nothing."""
    translator = make_translator()
    expected = translator(SENTENCES)

    class Enough(Exception):
        pass

    calls = []
    translator.translate_part(SENTENCES, heed=lambda: calls.append(1))
    assert len(calls) > 3
    for moment in range(len(calls)):
        left = iter([None] * moment)

        def heed(left=left):
            if next(left, Enough) is Enough:
                raise Enough

        with pytest.raises(Enough):
            translator.translate_part(SENTENCES, heed=heed)
        assert not translator.advance()
    assert translator(SENTENCES) == expected


def test_lines_may_join_the_search_in_flight():
    translator = make_translator(n_best=3)
    expected = translator.translate([*SENTENCES, LONG])
    found = {}
    for number, sentence in enumerate([*SENTENCES, LONG, ""]):
        translator.submit(sentence, functools.partial(found.__setitem__, number))
        translator.advance(2)
    while translator.advance():
        pass
    assert found.pop(10) == [Hypothesis("", 0.0, 0.0, 0)]
    assert sorted(found) == list(range(10))
    for number, hypotheses in found.items():
        assert_alike(hypotheses, expected[number])
    translator.submit(SENTENCES[0], functools.partial(found.__setitem__, 0), prefix="9")
    while translator.advance():
        pass
    assert found[0][0].text.startswith("9")


def test_new_parameters_are_used():
    translator = make_translator(n_best=3)
    before, old = translator.translate(SENTENCES[:2]), translator.params
    forced, maps = translator.score(["5"], ["6"]), translator.attention("5", "6")
    try:
        translator.params = [params_of(MODEL, seed=1)]
        after = translator.translate(SENTENCES[:2])
        assert after[1][0].text != before[1][0].text
        log_p = translator.score([SENTENCES[1]], [after[1][0].text])[0].log_probability
        assert log_p == pytest.approx(after[1][0].log_probability, rel=1e-4)
        assert translator.score(["5"], ["6"]) != forced
        assert (translator.attention("5", "6").cross != maps.cross).any()
    finally:
        translator.params = old
    assert translator.translate(SENTENCES[:2]) == before


def test_rows_on_several_devices_change_nothing():
    """Three devices divide no batch of 1, 2, 4, ... rows: empty ones fill it up."""
    mesh = jax.make_mesh((3,), ("data",), (AxisType.Auto,), devices=jax.devices()[:3])
    spread = make_translator(rows=NamedSharding(mesh, P("data")), n_best=3)
    spread.params = [jax.device_put(params_of(MODEL), NamedSharding(mesh, P()))]
    found = spread.translate(SENTENCES)
    expected = make_translator(n_best=3).translate(SENTENCES)
    for ours, theirs in zip(found, expected, strict=True):
        assert_alike(ours, theirs)


# Wishes ---------------------------------------------------------------------------


def test_a_translation_begins_as_its_prefix_says():
    translator = make_translator(n_best=3)
    ((_, *rest),) = [translator.translate(SENTENCES[1:2])[0]]
    words = rest[0].text.split()  # of the second best, whose beginning is now forced
    begin = " ".join(words[: len(words) // 2 + 1])
    (found,) = translator.translate(SENTENCES[1:2], prefixes=[begin])
    assert all(h.text.startswith(begin) for h in found)
    assert found[0].score >= rest[0].score - 1e-4
    long = " ".join(["7"] * 30)  # far more than the source allows
    (best, *_) = translator.translate(["5"], prefixes=[long])[0]
    assert best.text == long
    assert best.tokens == 31
    plain = translator.translate(SENTENCES[:2])
    for found, expected in zip(
        translator.translate(SENTENCES[:2], prefixes=["", " "]), plain, strict=True
    ):
        assert_alike(found, expected)


def test_samples_are_those_of_a_seed_and_a_line():
    settings = {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "n_best": 3}
    translator = make_translator(**settings, seed=5)
    whole = translator.translate(SENTENCES)
    assert translator.translate(SENTENCES) == whole
    (found,) = translator.translate_part(SENTENCES[4:5], first=4)
    assert_alike(found[1], whole[4])
    (moved,) = translator.translate_part(SENTENCES[4:5], first=3)
    assert [h.text for h in moved[1]] != [h.text for h in whole[4]]
    answer = []
    translator.submit(SENTENCES[4], answer.extend, line=4)
    while translator.advance():
        pass
    assert_alike(answer, whole[4])
    other = make_translator(**settings, seed=6).translate(SENTENCES)
    assert [h[0].text for h in other] != [h[0].text for h in whole]


def test_a_long_line_is_translated_in_parts():
    translator = make_translator(n_best=3, max_source_length=8)
    first, second = "5 6, 7 8 9 10 11.", "12 13 14."
    parts = translator.translate([first, second])
    (whole,) = translator.translate([f"{first} {second}"])
    for ours, one, two in zip(whole, *parts, strict=True):
        assert ours.text == f"{one.text} {two.text}".strip()
        assert ours.score == pytest.approx(one.score + two.score, rel=1e-4)
        assert ours.log_probability == pytest.approx(
            one.log_probability + two.log_probability, rel=1e-4
        )
        assert ours.tokens == one.tokens + two.tokens
    (begun,) = translator.translate([f"{first} {second}"], prefixes=["20"])
    assert begun[0].text.startswith("20")
    assert begun[0].text.endswith(parts[1][0].text)


def test_a_long_line_may_be_truncated_or_refused(caplog):
    long = "5 6 7 8 9 10"
    cut = make_translator(max_source_length=4, long_lines="truncate")
    assert cut([long, "5"]) == cut(["5 6 7", "5"])
    assert "line 1 has 7 pieces, more than 4: only the first 3" in caplog.text
    strict = make_translator(max_source_length=4, long_lines="refuse")
    with pytest.raises(InputError, match="line 3 has 7 pieces, more than 4; shorten"):
        strict(["5", "6", long])
    with pytest.raises(InputError, match="line 12 has 7 pieces"):
        strict.translate_part(["5", long], first=10)
    with pytest.raises(InputError, match="line 8 has 7 pieces"):
        strict.submit(long, print, line=7)
    assert strict("5 6 7") == cut("5 6 7")


def test_learned_positions_set_limits_of_their_own():
    """A source of 20 pieces fits; its bucket of 24, and EXTRA more, would not."""
    model = make_model(positions="learned", max_positions=20)
    translator = make_translator(models=(model,), beam_size=2, min_length=99)
    fits = " ".join(["5"] * 19)
    (found,) = translator.translate([fits])[0]
    assert found.tokens == 20
    rows = teacher_forced(model, params_of(model), fits, found.text, room=20)
    log_p = rows[np.arange(20), ids_of(found.text)].sum()
    assert found.log_probability == pytest.approx(log_p, rel=1e-4)
    assert translator.translate([f"{fits} 5"])[0][0].tokens > 20  # in two parts
    begin = " ".join(["7"] * 40)
    assert translator.translate(["5"], prefixes=[begin])[0][0].tokens == 20


# Ensembles ------------------------------------------------------------------------


def test_members_that_are_the_same_are_as_one():
    single = make_translator(n_best=3).translate(SENTENCES)
    twice = make_translator(models=(MODEL, MODEL), seeds=(0, 0), n_best=3)
    for ours, theirs in zip(twice.translate(SENTENCES), single, strict=True):
        assert_alike(ours, theirs)


def test_members_that_differ_are_the_mean_of_their_probabilities():
    """The second has another size, and fewer positions than the first would use."""
    other = make_model(num_heads=1, d_ff=16, positions="learned", max_positions=18)
    members = ((MODEL, params_of(MODEL, 0)), (other, params_of(other, 1)))
    translator = make_translator(models=(MODEL, other), seeds=(0, 1), n_best=3)
    found = translator.translate(SENTENCES)
    single = make_translator(n_best=3).translate(SENTENCES)
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


# Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("beam_size", 0), ("batch_tokens", 0), ("extra_length", -1)]
)
def test_sizes_that_allow_no_translation_are_refused(name, value):
    config = DecodingConfig(beam_size=1, alpha=0.6, extra_length=0, batch_tokens=1)
    with pytest.raises(ValueError, match=f"{name} {value}"):
        dataclasses.replace(config, **{name: value})


def test_wishes_that_cannot_be_met_are_refused():
    with pytest.raises(InputError, match="--long_lines=fold is none of: split, trunc"):
        make_translator(long_lines="fold")
    with pytest.raises(InputError, match="--max_source_length=1 leaves no room"):
        make_translator(max_source_length=1)
    with pytest.raises(InputError, match="n_best is 4, more than beam_size = 3"):
        make_translator(n_best=4)


def test_attention_and_scores_are_those_of_the_first_member():
    other = make_model(num_heads=1, d_ff=16, positions="learned", max_positions=18)
    both = make_translator(models=(MODEL, other), seeds=(0, 1), n_best=3)
    single = make_translator(n_best=3)
    assert both.score(["5 6"], ["7"]) == single.score(["5 6"], ["7"])
    ours, theirs = (each.attention("5 6", "7") for each in (both, single))
    np.testing.assert_array_equal(ours.cross, theirs.cross)
    assert ours.target == ["7", "</s>"]
