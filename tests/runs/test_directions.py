"""Directions by the codes of two languages, and the language of a text."""

from types import SimpleNamespace

import pytest

from jaxformer.config.languages import language_code, language_name
from jaxformer.decoding.text_pipeline import Direction
from jaxformer.runs.directions import directions_of
from jaxformer.text.languages import most_probable


def data(*corpora: tuple[str, str, str, str]) -> SimpleNamespace:
    """A config of corpora: source, target, tag and target tag."""
    keys = "source_language", "target_language", "tag", "target_tag"
    parts = [SimpleNamespace(**dict(zip(keys, own, strict=True))) for own in corpora]
    return SimpleNamespace(
        parts={str(n): SimpleNamespace(data=part) for n, part in enumerate(parts)},
        tags=[part.tag for part in parts if part.tag],
        target_tags=[part.target_tag for part in parts if part.target_tag],
        user_defined_symbols=(">>x<<",),
        source_language=parts[0].source_language,
    )


def test_a_trained_run_has_the_directions_of_its_corpora():
    own = [
        ("en", "de", ">>bt<<", ""), ("en", "de", ">>de<<", ""), ("en", "de", "", ""),
        ("de", "en", ">>en<<", ""), ("en", "zh_CN", ">>zh<<", ""),
        ("en", "zh_TW", ">>tw<<", ""),
    ]  # fmt: skip
    tags = [">>bt<<", ">>de<<", ">>en<<", ">>zh<<", ">>tw<<", ">>x<<"]
    found = directions_of(data(*own), tags)
    assert {source: {*found[source]} for source in found} == {
        "en": {"de", "zh", "zh-Hant"}, "de": {"en"}
    }  # fmt: skip
    assert found["en"]["de"] == Direction("en", "", "")  # other text was made
    assert found["en"]["zh-Hant"].tag == ">>tw<<"


def test_an_imported_model_has_those_of_its_vocabulary():
    tags = [f">>{code}<<" for code in ("acm_Arab", "arb_Arab", "deu_Latn", "eng_Latn")]
    nllb = data(("en", "de", ">>eng_Latn<<", ">>deu_Latn<<"))
    found = directions_of(nllb, tags)
    assert {source: {*found[source]} for source in found} == {
        "acm": {"ar", "de", "en"}, "ar": {"acm", "de", "en"},
        "de": {"acm", "ar", "en"}, "en": {"acm", "ar", "de"},
    }  # fmt: skip
    assert found["de"]["en"] == Direction("deu_Latn", ">>deu_Latn<<", ">>eng_Latn<<")
    marian = directions_of(data(("en", "fr", "", "")), [">>fra<<", ">>ron<<"])
    assert marian == {
        "en": {
            "fr": Direction("en", ">>fra<<", ""),
            "ro": Direction("en", ">>ron<<", ""),
        }
    }


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        ("pt-BR pt cmn zh", "pt-BR pt cmn zh"),
        ("pes_Arab prs_Arab", "fa prs-Arab"),
        ("knc_Arab knc_Latn zho_Hant zho_Hans", "kr-Arab kr zh-Hant zh"),
        ("zho_Hant", "zh"),
    ],
)
def test_each_language_has_a_code_of_its_own(names, codes):
    own = [("en", name, f">>{name}<<", "") for name in names.split()]
    found = directions_of(data(*own), [tag for _, _, tag, _ in own])["en"]
    assert [found[code].tag for code in codes.split()] == [tag for _, _, tag, _ in own]


def test_languages_have_english_names():
    names = {code: language_name(code) for code in ("de", "el", "zh-Hant", "qqq")}
    assert names == {
        "de": "German", "el": "Modern Greek", "zh-Hant": "Chinese (Hant)", "qqq": "qqq"
    }  # fmt: skip
    assert (language_code("german"), language_code("dog")) == ("de", "")


def test_the_language_of_a_text_is_one_of_those_given():
    text = "Der Hund läuft heute durch den großen Park."
    ((first, percent), *others) = most_probable(["en", "qqq", "de", "fr"], text)
    assert first == "de"
    assert percent > 90
    assert others[-1] == ("qqq", 0.0)
    assert most_probable(["en"], text) == [("en", 100.0)]  # nothing to compare
