"""Scores against the definitions of BLEU and chrF; intervals and comparisons."""

import math
import random
from functools import partial

import pytest

from jaxformer.evaluation import metrics, significance
from jaxformer.evaluation.metrics import SCORERS, corpus_scores, every_bleu
from jaxformer.evaluation.significance import (
    compare_systems,
    estimate_confidence,
    sentence_scores,
)
from jaxformer.system.errors import InputError

en_de = partial(corpus_scores, source_language="en", target_language="de")
de_bleus = partial(every_bleu, target_language="de")
confidence = partial(estimate_confidence, target_language="de")
compare = partial(compare_systems, target_language="de")
WORDS = [f"{a}{b}" for a in ("ba", "do", "ki", "lu") for b in ("ren", "sal", "tim")]


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


@pytest.mark.parametrize("language", ["zh", "zh_TW", "zho_Hans", "cmn", "yue"])
def test_chinese_is_scored_by_character(language):
    """Four of five characters match; 13a would find one word and no match."""
    pair = (["我爱北京人"], ["我爱北京城"])
    scores = corpus_scores(*pair, source_language="en", target_language=language)
    assert scores.bleu == pytest.approx(ONE_OF_FIVE)
    assert scores.direction == f"en-{language}"
    every = every_bleu(*pair, target_language=language)
    assert [each.scorer for each in every] == ["sacreBLEU", "sacreBLEU lower-cased"]
    assert all("tok:zh" in each.signature for each in (scores, *every))


@pytest.mark.parametrize(
    ("language", "text", "tokenizer"),
    [
        ("jpn", "私は毎朝公園を散歩します。", "ja-mecab"),
        ("kor_Hang", "나는 매일 아침 공원을 산책한다.", "ko-mecab"),
        ("ja-Hira", "わたしはまいあさこうえんをさんぽします。", "char"),
        ("und-AQ", "a b c d", "13a"),
        ("deu_Latn", "Ich gehe jeden Morgen in den Park.", "13a"),
        ("zh-Latn", "Wǒ měi tiān zǎoshang qù gōngyuán.", "13a"),
        ("tha", "ฉันเดินเล่นในสวนทุกเช้า", "char"),
        *[(code, "abcd" * 4, "char") for code in ("th", "km", "my", "lo", "bo")],
    ],
)
def test_the_tokeniser_is_that_of_the_script(language, text, tokenizer):
    scores = corpus_scores(
        [text], [text], source_language="en", target_language=language
    )
    assert scores.bleu == pytest.approx(100)
    assert f"|tok:{tokenizer}" in scores.signature


def test_an_unknown_language_is_said_once(caplog):
    for _ in range(2):
        found = en_de(["a b c d"], ["a b c d"], target_language="german")
    assert found.signature == en_de(["a"], ["a"]).signature
    assert caplog.text.count("'german' is no language code") == 1


@pytest.mark.parametrize("score", [en_de, de_bleus])
def test_a_missing_tokeniser_of_a_language_is_named(score, monkeypatch):
    def not_installed(*, tokenize, **_):
        assert tokenize == "ja-mecab"
        raise RuntimeError("extra dependencies")

    monkeypatch.setattr(metrics, "BLEU", not_installed)
    with pytest.raises(InputError, match=r"pip install 'sacrebleu\[ja\]'"):
        score(["x"], ["x"], target_language="jpn")


def test_every_scorer_gives_100_to_the_reference_itself():
    text = ["„Das ist ein Rad-Weg“, sagt er.", "Er kommt nicht."]
    scores = de_bleus(text, text)
    assert [each.scorer for each in scores] == list(SCORERS)
    assert [each.bleu for each in scores] == pytest.approx([100] * len(SCORERS))
    assert len({each.signature for each in scores}) == len(scores)


LOWER = [scorer for scorer in SCORERS if scorer.endswith("lower-cased")]
MOSES, SPLIT = "Moses tokens", "Moses tokens, compounds split"
QUOTED = "er „ sagt “ » ja « \u201a gut \u2018 ” so \u2019"
ASCII = str.maketrans("„“”»«\u201a\u2018\u2019", '"""""' + "'''")
COMPOUND = "das ist hier der Rad-Steg da drüben am See"


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("a b c d e", "a b c d f g", dict.fromkeys(SCORERS, SHORT)),
        ("der Hund ist im Haus", "Der Hund ist im Haus", dict.fromkeys(LOWER, 100)),
        # A compound is the fifth of nine tokens; split, one of its three is wrong.
        (COMPOUND, COMPOUND.replace("Steg", "Weg"),
         {MOSES: bleu_of(8, 6, 4, 2, words=9), SPLIT: bleu_of(10, 8, 6, 4, words=11)}),
        (QUOTED.translate(ASCII), QUOTED, {SPLIT: 100}),
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


# Intervals and significance


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 100)
    monkeypatch.setattr(significance, "TRIALS", 200)


def make_text(count: int) -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(count)]


def spoil(sentences: list[str], share: float, seed: int = 1) -> list[str]:
    """Replace a share of the words."""
    draw = random.Random(seed)

    def spoiled(word):
        return draw.choice(WORDS) if draw.random() < share else word

    return [" ".join(map(spoiled, sentence.split())) for sentence in sentences]


TEXT = make_text(100)
OURS = spoil(TEXT, 0.3)


@pytest.mark.parametrize(("most", "samples"), [(10_000, 100), (50, 50), (5, 10)])
def test_scores_are_those_of_an_evaluation_with_the_samples_in_the_signature(
    monkeypatch, most, samples
):
    """A text of more than `most` sentences has fewer samples, at least a tenth."""
    monkeypatch.setattr(significance, "MAX_SENTENCES", most)
    found = confidence(OURS, TEXT)
    assert found == confidence(OURS, TEXT)
    plain = corpus_scores(OURS, TEXT, source_language="en", target_language="de")
    signatures = {"bleu": plain.signature, "chrf": plain.chrf_signature}
    for name, signature in signatures.items():
        assert found[name].score == pytest.approx(getattr(plain, name))
        parts = {f"bs:{samples}", "seed:12345", *signature.split("|")}
        assert parts <= set(found[name].signature.split("|"))


def test_the_interval_holds_the_score_and_shrinks_with_the_text():
    """A text four times as long has half the interval."""
    widths = []
    for text in (TEXT, make_text(400)):
        found = confidence(spoil(text, 0.3), text)["chrf"]
        assert abs(found.score - found.mean) < found.half_width
        widths.append(found.half_width)
    assert 1.4 < widths[0] / widths[1] < 2.8


@pytest.mark.parametrize("weak", ["", "x y", "x " * 300])
def test_a_score_of_zero_has_no_interval(weak):
    found = confidence([weak] * 12, TEXT[:12])["bleu"]
    assert (found.score, found.mean, found.half_width) == (0, 0, None)


def test_equal_translations_do_not_differ():
    spaced = [sentence.replace(" ", "  ") for sentence in OURS]  # scored alike
    for found in compare([OURS, list(OURS), spaced], TEXT):
        for comparison in found.values():
            assert comparison.difference == 0
            assert comparison.randomisation_p == 1


@pytest.mark.parametrize("differ", [1, 2, 3])
def test_a_difference_in_few_sentences_may_be_chance(differ):
    """All are better: only swapping none or all of them makes as large a difference."""
    worse = [*OURS[:-1], "x y"]
    better = [*TEXT[:differ], *OURS[differ:-1], "y z"]  # the last ones score alike
    assert sum(a != b for a, b in zip(better, worse, strict=True)) == differ + 1
    (found,) = compare([worse, better], TEXT)
    for comparison in found.values():
        assert comparison.difference > 0
        assert comparison.randomisation_p == pytest.approx(2 * 0.5**differ, abs=0.01)


def test_equally_good_systems_differ_by_chance():
    """The p-value of sacreBLEU's paired bootstrap is 0.02 for BLEU."""
    (found,) = compare([spoil(TEXT, 0.3, seed) for seed in (112, 113)], TEXT)
    for comparison in found.values():
        values = comparison._asdict()
        assert min(values[name] for name in values if name.endswith("_p")) > 0.05


def test_each_system_is_compared_with_the_first_one_only():
    systems = [spoil(TEXT, share, seed=3) for share in (0.4, 0.7, 0.1)]
    together = compare(systems, TEXT)
    for found, other, sign in zip(together, systems[1:], (-1, 1), strict=True):
        assert [found] == compare([systems[0], other], TEXT)
        for comparison in found.values():
            assert sign * comparison.difference > 10
            assert comparison.randomisation_p < 0.01
            assert "ar:200" in comparison.randomisation_signature


def test_a_sentence_is_scored_by_its_characters():
    scores = sentence_scores(["ein hund", "", "xyz", "ein hand"], ["ein hund"] * 4)
    assert scores[:3] == [pytest.approx(100), 0, 0]
    assert 0 < scores[3] < 100


def test_the_length_ratio_is_that_of_tokens():
    found = confidence(["a b c", "d"], ["a b", "c d e f g h"])
    assert (found["bleu"].length_ratio, found["chrf"].length_ratio) == (0.5, None)
