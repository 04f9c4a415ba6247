"""Flaws of pairs, and text in the wrong languages, which is refused."""

from dataclasses import replace

import pytest

from jaxformer.config.data import DROPPED
from jaxformer.corpus.preparation import prepare
from jaxformer.system.errors import InputError
from jaxformer.text.flaws import flaws, require_languages
from tests.text.test_languages import ENGLISH, FRENCH, GERMAN

FLAWED = {
    (GERMAN, ENGLISH): ["swapped"],
    (ENGLISH, FRENCH): ["language"],
    (">>x<< Anna Berg 7", "Anna  Berg 7"): ["copy"],
    ("Tom &amp; Anna run.", "Tom und Anna rennen."): ["entities"],
    ("It is for Max.", "Es ist fÃ¼r Max."): ["mojibake"],
    ('"He said ""yes"" to her."', "Er sagte ihr ja."): ["quotes"],
    ('"Yes," he said. ""', '"Ja", sagte er & ging; AT&T; für €5, “so”, naïve'): [],
    ("R&D; costs", 'Er sagte: "Ja", und sie sagte: "Nein"'): [],
}


def test_each_flaw_is_found_and_dropped_pairs_are_counted(config, tmp_path):
    config = replace(config, tag=">>x<<", drop=DROPPED)
    found = flaws([*FLAWED], config, DROPPED)
    for index, kinds in enumerate(FLAWED.values()):
        assert [kind for kind in DROPPED if found[kind][index]] == kinds, index
    lines = [f"{s.removeprefix('>>x<< ')}\t{t}\n" for s, t in FLAWED]
    (tmp_path / "text.tsv").write_text("".join(lines) * 2, encoding="utf-8")
    own = {"corpus": "tsv", "train": f"{tmp_path}/text.tsv", "max_length": 200}
    own["max_ratio"] = 1000.0
    config = replace(config, **own, dev=own["train"], max_foreign=0.5, vocab_size=90)
    dropped = prepare(config, tmp_path / "run").report["train"]["dropped"]
    assert dropped == dict.fromkeys(DROPPED, 1) | {
        "duplicate": 8, "empty": 0, "too_long": 0, "ratio": 0,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"data\.drop was .* and is now \('copy',\)"):
        prepare(replace(config, drop=("copy",)), tmp_path / "run")


def test_text_in_the_wrong_languages_is_refused(config, pairs, caplog):
    swapped = [pair[::-1] for pair in pairs]
    with pytest.raises(
        InputError,
        match=r"1,.* of 1,500 pairs of the dev text are not "
        r"en-de, most have source and target exchanged; exchange the f",
    ):
        require_languages(swapped, "dev", config)
    french = [(ENGLISH, FRENCH)] * 30
    with pytest.raises(InputError, match="most have another language; correct data"):
        require_languages(french, "train", config)
    some = [*pairs, *swapped[:100]]
    require_languages(some, "train", config)
    assert "of the train text are not en-de" in caplog.text
    assert "; drop them by data.drop=swapped,language" in caplog.text
    require_languages(some, "dev", replace(config, drop=("swapped", "copy")))
    assert "; correct the lines listed by `jaxformer check --output" in caplog.text
    caplog.clear()
    for changes in (
        {"drop": ("swapped",)}, {"max_foreign": None}, {"target_language": "tlh"},
    ):  # fmt: skip
        require_languages(swapped, "train", replace(config, **changes))
    require_languages([*pairs, *swapped[:9]], "train", config)
    assert not caplog.text
    with pytest.raises(InputError, match="20 of 1,520 pairs"):  # below 2 %
        require_languages(
            [*pairs, *swapped[:20]], "train", replace(config, max_foreign=0.01)
        )


def test_exchanged_text_is_refused_before_a_vocabulary_is_trained(config, tmp_path):
    config = replace(config, source_language="de", target_language="en")
    (tmp_path / "text.tsv").write_text(f"{ENGLISH}\t{GERMAN}\n" * 30)
    (tmp_path / "dev.tsv").write_text(f"{GERMAN}\t{ENGLISH}\n" * 30)
    config = replace(
        config, corpus="tsv", train=f"{tmp_path}/text.tsv", dev=f"{tmp_path}/dev.tsv"
    )
    with pytest.raises(InputError, match="30 of 30 pairs of the train text are not"):
        prepare(config, tmp_path / "run")
    name = replace(config, source_language="German")
    with pytest.raises(InputError, match="language is 'German'; write its code, de"):
        prepare(name, tmp_path / "run")
    with pytest.raises(InputError, match="no language 'tlh'"):
        prepare(replace(config, target_language="tlh", drop=("swapped",)), tmp_path)
