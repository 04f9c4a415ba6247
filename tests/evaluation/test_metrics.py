"""Scores against values computed by hand from the definitions of BLEU and chrF."""

import math
from functools import partial

import pytest
from sacrebleu.metrics import BLEU

from jaxformer.errors import InputError
from jaxformer.evaluation import metrics
from jaxformer.evaluation.metrics import SCORERS, corpus_scores, every_bleu

en_de = partial(corpus_scores, source_language="en", target_language="de")
de_bleus = partial(every_bleu, target_language="de")
ONE_OF_FIVE = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25  # the last word is wrong


@pytest.mark.parametrize(
    ("hypotheses", "references", "bleu"),
    [
        (
            ["Ein Mann.", "Zwei Hunde spielen."],
            ["Ein Mann.", "Zwei Hunde spielen."],
            100,
        ),
        # The brevity penalty of 5 words for 6 is exp(1 - 6/5).
        (["a b c d e"], ["a b c d f g"], ONE_OF_FIVE * math.exp(1 - 6 / 5)),
        # Counts are pooled over the corpus: 9/10, 7/8, 5/6, 3/4.
        (
            ["a b c d e", "p q r s t"],
            ["a b c d e", "p q r s u"],
            100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25,
        ),
        (["Der Hund ist im haus"], ["Der Hund ist im Haus"], ONE_OF_FIVE),
        # 13a splits "Haus." in two, so four of five tokens match, not three of four.
        (["das ist ein Haus."], ["das ist ein Haus!"], ONE_OF_FIVE),
    ],
)
def test_bleu_is_that_of_the_definition(hypotheses, references, bleu):
    scores = en_de(hypotheses, references)
    assert scores.bleu == pytest.approx(bleu)
    caseless = 100 if "haus" in hypotheses[0] else bleu
    assert scores.bleu_lc_tok == pytest.approx(caseless)
    assert (scores.direction, scores.case) == ("en-de", "cased")


def test_chrf_is_the_mean_over_character_n_gram_orders():
    """Of "ab" against "ac" one of two letters matches and no pair: (1/2 + 0) / 2."""
    assert en_de(["ab"], ["ac"]).chrf == pytest.approx(25)
    assert en_de(["AB"], ["ab"]).chrf == 0


def test_signatures_name_case_and_tokeniser():
    scores = en_de(["ein Haus"], ["ein Haus"])
    assert {"nrefs:1", "case:mixed", "tok:13a"} <= set(scores.signature.split("|"))
    assert {"case:lc", "tok:13a"} <= set(scores.bleu_lc_tok_signature.split("|"))
    assert {"case:mixed", "nc:6", "nw:0"} <= set(scores.chrf_signature.split("|"))


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW"])
def test_chinese_is_scored_by_character(language):
    """Four of five characters match; 13a would find one word and no match."""
    pair = (["我爱北京人"], ["我爱北京城"])
    scores = corpus_scores(*pair, source_language="en", target_language=language)
    assert scores.bleu == pytest.approx(ONE_OF_FIVE)
    assert scores.direction == f"en-{language}"
    every = every_bleu(*pair, target_language=language)
    assert [each.scorer for each in every] == ["sacreBLEU", "sacreBLEU lower-cased"]
    assert all("tok:zh" in each.signature for each in (scores, *every))


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_a_missing_tokeniser_of_a_language_is_named(language, monkeypatch):
    requested = []

    def not_installed(*, tokenize, lowercase):
        requested.append(tokenize)
        raise RuntimeError("extra dependencies")

    monkeypatch.setattr(metrics, "BLEU", not_installed)
    with pytest.raises(InputError, match=rf"pip install 'sacrebleu\[{language}\]'"):
        corpus_scores(["x"], ["x"], source_language="en", target_language=language)
    assert requested == [f"{language}-mecab"]
    assert requested[0] in BLEU.TOKENIZERS


@pytest.mark.parametrize("score", [en_de, de_bleus])
@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((["a"], ["a", "b"]), "1 translations but 2 references"),
        (([], []), "no translations"),
    ],
)
def test_texts_without_a_reference_for_each_sentence_are_refused(score, pair, message):
    with pytest.raises(InputError, match=message):
        score(*pair)


def test_every_scorer_gives_100_to_the_reference_itself():
    text = ["„Das ist ein Rad-Weg“, sagt er.", "Er kommt nicht."]
    scores = de_bleus(text, text)
    assert [each.scorer for each in scores] == list(SCORERS)
    assert [each.bleu for each in scores] == pytest.approx([100] * len(SCORERS))
    assert len({each.signature for each in scores}) == len(scores)


def test_scorers_differ_in_case_hyphens_and_quotation_marks():
    """A compound is one token for Moses; split, it has three, of which two match."""

    def bleus(hypothesis, reference):
        return {each.scorer: each.bleu for each in de_bleus([hypothesis], [reference])}

    plain = bleus("a b c d e", "a b c d f g")
    expected = ONE_OF_FIVE * math.exp(1 - 6 / 5)
    assert list(plain.values()) == pytest.approx([expected] * len(SCORERS))

    for scorer, bleu in bleus("der Hund ist im Haus", "Der Hund ist im Haus").items():
        assert (bleu == pytest.approx(100)) == scorer.endswith("lower-cased"), scorer

    text = "das ist hier der Rad-Steg da drüben am See"
    compound = bleus(text, text.replace("Steg", "Weg"))
    one = 8 / 9 * 6 / 8 * 4 / 7 * 2 / 6  # the fifth of nine words is wrong
    assert compound["Moses tokens"] == pytest.approx(100 * one**0.25)
    split = 10 / 11 * 8 / 10 * 6 / 9 * 4 / 8  # the seventh of eleven tokens is wrong
    name = "Moses tokens, compounds split"
    assert compound[name] == pytest.approx(100 * split**0.25)

    quotes = bleus('er sagt " ja gut so "', "er sagt „ ja gut so “")
    assert quotes[name] == pytest.approx(100)
    assert quotes["Moses tokens"] < 60
