"""Scores against values worked out by hand from the definitions of BLEU and chrF."""

import math
from functools import partial

import pytest
from sacrebleu.metrics import BLEU

from jaxformer.decoding import metrics
from jaxformer.decoding.metrics import corpus_scores, format_bleu
from jaxformer.errors import InputError

en_de = partial(corpus_scores, source_language="en", target_language="de")


def test_identical_text_scores_100():
    text = ["Ein Mann sitzt auf einer Bank.", "Zwei Hunde spielen im Schnee."]
    scores = en_de(text, text)
    assert scores.bleu == pytest.approx(100)
    assert scores.bleu_lc_tok == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert scores.direction == "en-de"
    assert scores.case == "cased"


def test_bleu_is_the_geometric_mean_of_precisions_times_the_brevity_penalty():
    """5 words for 6: precisions 4/5, 3/4, 2/3, 1/2, brevity penalty exp(1 - 6/5)."""
    scores = en_de(["a b c d e"], ["a b c d f g"])
    precisions = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    expected = 100 * precisions**0.25 * math.exp(1 - 6 / 5)
    assert scores.bleu == pytest.approx(expected)


def test_bleu_pools_counts_over_the_corpus():
    """Precisions 9/10, 7/8, 5/6, 3/4 of both sentences together; equal lengths."""
    scores = en_de(["a b c d e", "p q r s t"], ["a b c d e", "p q r s u"])
    precisions = 9 / 10 * 7 / 8 * 5 / 6 * 3 / 4
    assert scores.bleu == pytest.approx(100 * precisions**0.25)


def test_case_counts_only_in_the_cased_scores():
    scores = en_de(["Der Hund ist im haus"], ["Der Hund ist im Haus"])
    precisions = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    assert scores.bleu == pytest.approx(100 * precisions**0.25)
    assert scores.bleu_lc_tok == pytest.approx(100)
    assert scores.chrf < 100


def test_text_is_tokenised_before_it_is_scored():
    """13a splits "Haus." in two, so four of five tokens match, not three of four."""
    scores = en_de(["das ist ein Haus."], ["das ist ein Haus!"])
    precisions = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    assert scores.bleu == pytest.approx(100 * precisions**0.25)


def test_chrf_is_the_mean_over_character_n_gram_orders():
    """Of "ab" against "ac" one of two letters matches and no pair: (1/2 + 0) / 2."""
    assert en_de(["ab"], ["ac"]).chrf == pytest.approx(25)


def test_signatures_say_case_and_tokeniser():
    scores = en_de(["ein Haus"], ["ein Haus"])
    assert {"nrefs:1", "case:mixed", "tok:13a"} <= set(scores.signature.split("|"))
    assert {"case:lc", "tok:13a"} <= set(scores.bleu_lc_tok_signature.split("|"))
    assert {"case:mixed", "nc:6", "nw:0"} <= set(scores.chrf_signature.split("|"))


def test_chinese_is_scored_by_character():
    """Four of five characters match; 13a would see one word and no match."""
    for language in ("zh", "zh-CN", "zh_TW"):
        scores = corpus_scores(
            ["我爱北京人"],
            ["我爱北京城"],
            source_language="en",
            target_language=language,
        )
        precisions = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
        assert scores.bleu == pytest.approx(100 * precisions**0.25)
        assert "tok:zh" in scores.signature
        assert scores.direction == f"en-{language}"


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_each_language_asks_for_its_tokeniser_and_a_missing_one_is_named(
    language, monkeypatch
):
    asked = []

    def not_installed(*, tokenize, lowercase):
        asked.append(tokenize)
        raise RuntimeError("extra dependencies")

    monkeypatch.setattr(metrics, "BLEU", not_installed)
    with pytest.raises(InputError, match=rf"pip install 'sacrebleu\[{language}\]'"):
        corpus_scores(["x"], ["x"], source_language="en", target_language=language)
    assert asked == [f"{language}-mecab"]
    assert asked[0] in BLEU.TOKENIZERS


def test_differing_counts_are_refused_with_both_counts():
    with pytest.raises(InputError, match="3 translations but 2 references"):
        en_de(["a", "b", "c"], ["a", "b"])


def test_an_empty_corpus_is_refused():
    with pytest.raises(InputError, match="no translations"):
        en_de([], [])


def test_formatted_bleu_carries_direction_case_and_signature():
    scores = en_de(["a b c d e"], ["a b c d f g"])
    assert format_bleu(scores) == f"BLEU 54.75 en-de cased ({scores.signature})"
