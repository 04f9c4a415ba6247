"""Scores against values worked out by hand from the definitions of BLEU and chrF."""

import math
from functools import partial

import pytest
from sacrebleu.metrics import BLEU

from jaxformer.errors import InputError
from jaxformer.evaluation import metrics
from jaxformer.evaluation.metrics import SCORERS, corpus_scores, every_bleu

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


def bleu_by_scorer(hypotheses, references, language="de"):
    scores = every_bleu(hypotheses, references, target_language=language)
    return {each.scorer: each.bleu for each in scores}


def test_every_scorer_gives_100_to_the_reference_itself():
    text = ["„Das ist ein Rad-Weg“, sagt er.", "Er kommt nicht."]
    scores = every_bleu(text, text, target_language="de")
    assert [each.scorer for each in scores] == list(SCORERS)
    assert [each.bleu for each in scores] == pytest.approx([100] * len(SCORERS))
    assert len({each.signature for each in scores}) == len(scores)


def test_scorers_agree_where_there_is_nothing_to_split_and_no_case():
    """5 words for 6: precisions 4/5, 3/4, 2/3, 1/2, brevity penalty exp(1 - 6/5)."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 / 2) ** 0.25 * math.exp(1 - 6 / 5)
    scores = bleu_by_scorer(["a b c d e"], ["a b c d f g"])
    assert list(scores.values()) == pytest.approx([expected] * len(SCORERS))


def test_case_counts_except_in_the_lower_cased_scores():
    scores = bleu_by_scorer(["der Hund ist im Haus"], ["Der Hund ist im Haus"])
    for scorer, bleu in scores.items():
        assert (bleu == pytest.approx(100)) == scorer.endswith("lower-cased"), scorer


def test_a_hyphen_is_a_token_and_right_only_where_compounds_are_split():
    """Moses leaves "Rad-Weg" whole; split it is three tokens, of which two match.

    Of nine words the fifth is wrong, or of eleven tokens the seventh: each n-gram with
    it is.
    """
    hypothesis = "das ist hier der Rad-Steg da drüben am See"
    scores = bleu_by_scorer([hypothesis], [hypothesis.replace("Steg", "Weg")])
    whole = 8 / 9 * 6 / 8 * 4 / 7 * 2 / 6
    assert scores["Moses tokens"] == pytest.approx(100 * whole**0.25)
    split = 10 / 11 * 8 / 10 * 6 / 9 * 4 / 8
    assert scores["Moses tokens, compounds split"] == pytest.approx(100 * split**0.25)


def test_quotation_marks_are_one_only_where_the_papers_script_made_them_so():
    hypothesis, reference = 'er sagt " ja gut so "', "er sagt „ ja gut so “"
    scores = bleu_by_scorer([hypothesis], [reference])
    assert scores["Moses tokens, compounds split"] == pytest.approx(100)
    assert scores["Moses tokens"] < 60


def test_tokens_of_chinese_are_sacrebleus_alone():
    text = ["一个男人坐在长椅上。"]
    scores = every_bleu(text, text, target_language="zh")
    assert [each.scorer for each in scores] == ["sacreBLEU", "sacreBLEU lower-cased"]
    assert all("tok:zh" in each.signature for each in scores)


def test_every_scorer_refuses_what_cannot_be_scored():
    with pytest.raises(InputError, match="1 translations but 2 references"):
        every_bleu(["a"], ["a", "b"], target_language="de")
    with pytest.raises(InputError, match="no translations"):
        every_bleu([], [], target_language="de")
