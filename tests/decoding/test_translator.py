"""Translations by tiny models with random parameters."""

import gc
from collections.abc import Sequence

import jax
import numpy as np
import pytest

from jaxformer.decoding.all_processes import translate_all
from jaxformer.decoding.translator import Translator
from jaxformer.system import processes
from jaxformer.system.errors import InputError
from jaxformer.system.progress import COMPILES, compiles_reported
from jaxformer.training.sharding import abstract_state, batch_sharding
from tests.decoding.tiny import (
    EXTRA,
    MODEL,
    SENTENCES,
    Numbers,
    open_translator,
    params_of,
    random_sentences,
    teacher_forced,
)
from tests.models.tiny import model_of
from tests.training.setups import mesh_of

LONG = random_sentences(2, longest=22, seed=1)[1]  # of another bucket
LEARNED = model_of(positions="learned", max_positions=20)
WINDOWED = model_of(attention_window=5)
# Other sizes, and fewer positions than translations by other models have.
SMALL = model_of(num_heads=1, d_ff=16, positions="learned", max_positions=18)


@pytest.fixture(scope="module")
def beam() -> Translator:
    """One translator for many tests, to compile its programs once."""
    return open_translator(n_best=3)


def assert_alike(found: Sequence[list], expected: Sequence[list]) -> None:
    """The same texts, and the same numbers up to the rounding of other shapes."""
    for ours, theirs in zip(found, expected, strict=True):
        assert [(h.text, h.pieces) for h in ours] == [
            (h.text, h.pieces) for h in theirs
        ]
        numbers, others = ([h[1:4] for h in each] for each in (ours, theirs))
        np.testing.assert_allclose(numbers, others, rtol=1e-4, atol=1e-5)


def test_all_its_programs_are_reported_as_the_search():
    params_of(MODEL)  # its own programs
    with compiles_reported():
        open_translator()(SENTENCES[:2])
        assert {*COMPILES.made} == {"the search"}


@pytest.mark.slow
def test_sharded_rows_and_parameters_change_no_translation(beam):
    """Parameters are split over `tensor` as in training."""
    mesh = mesh_of((2, 1, 2))
    split = abstract_state(mesh, lambda: MODEL.init(jax.random.key(0)))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, split)
    translator = open_translator(n_best=3, rows=batch_sharding(mesh))
    translator.params = [jax.device_put(params_of(MODEL), shardings)]
    (weights,) = translator.programs.weights
    assert not weights.embedding.is_fully_replicated
    sentences = SENTENCES[:4]
    assert_alike(translator.translate(sentences), beam.translate(sentences))


# The engine and a plain search ----------------------------------------------------


@pytest.mark.parametrize(
    ("models", "options", "sentences", "room"),
    [
        ([WINDOWED], {}, [*SENTENCES, LONG], 32),
        # A bucket of 24 tokens, and EXTRA more, exceed the 20 learned positions.
        ([LEARNED], {"min_length": 99}, [" ".join(["5"] * 19)], 20),
        ([WINDOWED, SMALL], {}, SENTENCES, 18),  # caches of different lengths
    ],
    ids=["window", "learned positions", "ensemble"],
)
def test_log_probabilities_are_teacher_forced_means_over_members(
    models, options, sentences, room
):
    seeds = range(len(models))
    translator = open_translator(models=models, seeds=seeds, n_best=3, **options)
    found = translator.translate(sentences)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        assert {tuple(h.source_pieces) for h in hypotheses} == {
            (*sentence.split(), "</s>")
        }
        assert len({h.text for h in hypotheses}) == 3
        for h in hypotheses:
            (ids,) = Numbers().encode([h.text])
            each = [
                teacher_forced(model, params_of(model, seed), sentence, h.text, room)
                for model, seed in zip(models, seeds, strict=True)
            ]
            log_p = np.log(np.exp(each).mean(axis=0))[np.arange(len(ids)), ids].sum()
            assert h.tokens == len(ids) <= room
            assert h.log_probability == pytest.approx(log_p, rel=1e-4)
            assert h.score == pytest.approx(log_p / ((5 + len(ids)) / 6) ** 0.6, 1e-4)


def test_an_ensemble_scores_given_pairs_with_its_first_member(beam):
    ensemble = open_translator(models=(MODEL, LEARNED), seeds=(0, 1))
    assert ensemble.score(["5 6"], ["7"]) == beam.score(["5 6"], ["7"])
    ours, theirs = (each.attention("5 6", "7") for each in (ensemble, beam))
    np.testing.assert_array_equal(ours.cross, theirs.cross)


@pytest.mark.parametrize(
    "options",
    [{"n_best": 3}, pytest.param({"beam_size": 1}, marks=pytest.mark.nightly)],
)
def test_phrases_are_in_translations_whatever_their_neighbours_have(options):
    """Log-probabilities are teacher forced; of an ensemble the mean is searched."""
    models = {"models": (MODEL, SMALL), "seeds": (0, 1)}
    translator = open_translator(**models, **options)
    phrases = [["5 6", "6 7"], [], ["9"], ["5 6 7", "8 8"]]
    found = translator.translate(SENTENCES[:4], phrases=phrases)
    for sentence, own, hypotheses in zip(SENTENCES[:4], phrases, found, strict=True):
        for hypothesis in hypotheses:
            for phrase in own:
                assert f" {phrase} " in f" {hypothesis.text} "
        alone = translator.translate(sentence, phrases=own)
        assert_alike([hypotheses], [alone])
    assert_alike([found[1]], [translator.translate(SENTENCES[1])])


# Translators in use ---------------------------------------------------------------


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
    assert_alike(beam.translate(SENTENCES[:2]), before)


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_parameters_that_are_not_numbers_end_the_search(beam_size, number):
    """With a beam no score of NaN would ever be good enough to stop."""
    translator = open_translator(beam_size=beam_size)
    translator.params = [jax.tree.map(lambda x: x * number, translator.params[0])]
    with pytest.raises(InputError, match="scores are not numbers"):
        translator.translate(["4 5 6"])


def test_a_prefix_of_unknown_characters_is_refused():
    translator = open_translator()
    with pytest.raises(InputError, match="line 2: the prefix has a character that the"):
        translate_all(translator, ["4", "5"], prefixes=["6", "1"])


def test_a_least_length_is_reached_beyond_the_extra_length():
    translator = open_translator(beam_size=1, min_length=EXTRA + 12)
    ((found,),) = translate_all(translator, ["4 5"])
    assert found.tokens >= EXTRA + 12


@pytest.mark.slow
def test_a_released_translator_holds_nothing_on_the_devices():
    """Until it gets parameters again."""
    translator = open_translator(searches=2)
    expected, params = translator(SENTENCES), jax.device_get(translator.params)

    def held():
        gc.collect()
        return sum(each.nbytes for each in jax.live_arrays())

    before, own = held(), sum(each.nbytes for each in jax.tree.leaves(params))
    translator.release()
    assert held() < before - own
    translator.params = params
    assert translator(SENTENCES) == expected


def test_samples_are_functions_of_seed_and_line_number():
    translator = open_translator(n_best=3, temperature=1.2, top_k=9, seed=5)
    expected = translator.translate(SENTENCES)[4]
    (found,) = translate_all(translator, SENTENCES[4:5], first=4)
    (moved,) = translate_all(translator, SENTENCES[4:5], first=3)
    assert [h.text for h in moved] != [h.text for h in expected]
    assert_alike([found], [expected])


def test_a_mistake_in_the_part_of_another_process_is_raised_in_all(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    found = [False, "line 2 has 9 pieces"]
    monkeypatch.setattr(processes, "gather", lambda own: [own, found])
    with pytest.raises(InputError, match="line 2 has 9 pieces"):
        translate_all(open_translator(), ["4 5", "6"])
