"""Scores against values computed by hand from the definitions of BLEU and chrF."""

import logging
import math
from functools import partial
from types import SimpleNamespace

import pytest

from jaxformer.data import grammar
from jaxformer.errors import InputError
from jaxformer.evaluation import metrics
from jaxformer.evaluation.evaluator import report_phenomena
from jaxformer.evaluation.metrics import SCORERS, corpus_scores, every_bleu

en_de = partial(corpus_scores, source_language="en", target_language="de")
de_bleus = partial(every_bleu, target_language="de")


def bleu_of(*matches, words=5):
    """BLEU of so many matching n-grams of each order in a text of `words` words."""
    return 100 * math.prod(m / (words - n) for n, m in enumerate(matches)) ** 0.25


ONE_OF_FIVE = bleu_of(4, 3, 2, 1)  # the last word is wrong
SHORT = ONE_OF_FIVE * math.exp(1 - 6 / 5)  # the brevity penalty of 5 words for 6
POOLED = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25


@pytest.mark.parametrize(
    ("hypotheses", "references", "bleu"),
    [
        ("Ein Mann.|Zwei Hunde spielen.", "Ein Mann.|Zwei Hunde spielen.", 100),
        ("a b c d e", "a b c d f g", SHORT),
        # Counts are pooled over the corpus: 9/10, 7/8, 5/6, 3/4.
        ("a b c d e|p q r s t", "a b c d e|p q r s u", POOLED),
        ("Der Hund ist im haus", "Der Hund ist im Haus", ONE_OF_FIVE),
        # 13a splits "Haus." in two, so four of five tokens match, not three of four.
        ("das ist ein Haus.", "das ist ein Haus!", ONE_OF_FIVE),
    ],
)
def test_bleu_is_that_of_the_definition(hypotheses, references, bleu):
    scores = en_de(hypotheses.split("|"), references.split("|"))
    assert scores.bleu == pytest.approx(bleu)
    caseless = 100 if "haus" in hypotheses else bleu
    assert scores.bleu_lc_tok == pytest.approx(caseless)
    assert (scores.direction, scores.case) == ("en-de", "cased")
    assert {"nrefs:1", "case:mixed", "tok:13a"} <= {*scores.signature.split("|")}
    assert {"case:lc", "tok:13a"} <= {*scores.bleu_lc_tok_signature.split("|")}
    assert {"case:mixed", "nc:6", "nw:0"} <= {*scores.chrf_signature.split("|")}


def test_chrf_is_the_mean_over_character_n_gram_orders():
    """Of "ab" against "ac" one of two letters matches and no pair: (1/2 + 0) / 2."""
    assert en_de(["ab"], ["ac"]).chrf == pytest.approx(25)
    assert en_de(["AB"], ["ab"]).chrf == 0


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


@pytest.mark.parametrize("score", [en_de, de_bleus])
def test_a_missing_tokeniser_of_a_language_is_named(score, monkeypatch):
    def not_installed(*, trg_lang, lowercase):
        assert trg_lang == "ja"
        raise RuntimeError("extra dependencies")

    monkeypatch.setattr(metrics, "BLEU", not_installed)
    with pytest.raises(InputError, match=r"pip install 'sacrebleu\[ja\]'"):
        score(["x"], ["x"], target_language="ja")


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


LOWER = [scorer for scorer in SCORERS if scorer.endswith("lower-cased")]
MOSES, SPLIT = "Moses tokens", "Moses tokens, compounds split"
COMPOUND = "das ist hier der Rad-Steg da drüben am See"


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("a b c d e", "a b c d f g", dict.fromkeys(SCORERS, SHORT)),
        ("der Hund ist im Haus", "Der Hund ist im Haus", dict.fromkeys(LOWER, 100)),
        # A compound is the fifth of nine tokens; split, one of its three is wrong.
        (COMPOUND, COMPOUND.replace("Steg", "Weg"),
         {MOSES: bleu_of(8, 6, 4, 2, words=9), SPLIT: bleu_of(10, 8, 6, 4, words=11)}),
        ('er sagt " ja gut so "', "er sagt „ ja gut so “", {SPLIT: 100}),
    ],
)  # fmt: skip
def test_scorers_differ_in_case_hyphens_and_quotes(hypothesis, reference, expected):
    for each in de_bleus([hypothesis], [reference]):
        wanted = expected.get(each.scorer)
        assert each.bleu == pytest.approx(wanted) if wanted else each.bleu < 99, each


@pytest.mark.parametrize(
    ("tokenised", "split"),
    [
        ("Ost-West-Handel", "Ost ##AT##-##AT## West ##AT##-##AT## Handel"),
        # The letter between two hyphens belongs to the first of them.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        # A hyphen beside a space is not inside a compound.
        ("Groß- und er - so heißt es", "Groß- und er - so heißt es"),
        ("--", "--"),
        # The middle hyphen of three is between two characters.
        ("---", "- ##AT##-##AT## -"),
    ],
)
def test_a_hyphen_between_two_characters_becomes_a_token(tokenised, split):
    assert metrics.split_compounds(tokenised) == split


@pytest.mark.parametrize(
    ("sentence", "language", "tokens"),
    [
        ("Er kommt, z.B. am 3. Mai.", "de", "Er kommt , z.B. am 3. Mai ."),
        ("He doesn't know it.", "en", "He doesn &apos;t know it ."),
        ("L'homme court.", "fr", "L&apos; homme court ."),
        ("3,5 % & mehr", "de-AT", "3,5 % &amp; mehr"),
    ],
)
def test_moses_tokens_are_those_of_the_language(sentence, language, tokens):
    assert metrics.moses_tokens([sentence], language) == [tokens]


def test_split_tokens_have_ascii_quotation_marks():
    text = ["„So-so“, »gut«", "\u201aja\u2018 it\u2019s"]
    assert metrics.split_tokens(text, "de") == [
        "&quot; So ##AT##-##AT## so &quot; , &quot; gut &quot;",
        "&apos; ja &apos; it &apos; s",
    ]


@pytest.mark.parametrize("direction", ["en-de", "de-en"])
def test_accuracy_is_counted_by_phenomenon(direction, monkeypatch, caplog):
    names = (("dative", "plural"), ("plural",), ())
    pairs = [grammar.Pair("A", "a", each) for each in names]
    monkeypatch.setattr(grammar, "generate", lambda *_: pairs)
    data = SimpleNamespace(
        corpus="builtin:grammar", direction=direction, builtin_eval_pairs=3, seed=0
    )
    with caplog.at_level(logging.INFO):
        report_phenomena(data, lambda sources: ["a", "x", "a"])
    expected = [
        "test: 2 of 3 translations exactly right (66.7 %)",
        "  dative                   1 of     1 (100.0 %)",
        "  plural                   1 of     2 (50.0 %)",
    ]
    assert caplog.messages[:3] == (expected if direction == "en-de" else [])
