"""--mode=visualize: a page or a picture of the attention of each head."""

import json
import re

import numpy as np
import pytest

import jaxformer
from jaxformer.errors import InputError


def data_of(path):
    """The data in a page."""
    html = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_sentences_are_translated_and_become_a_page(command, use, own_run, toy):
    sentences = sorted(toy.test, key=len)[-2:]
    expected = use("translate", lines=sentences).lines
    stdin = "".join(f"{line}\n" for line in sentences).encode()
    result = command("--mode=visualize", f"--workdir={own_run}", stdin=stdin).result
    path = own_run / "attention.html"
    size = path.stat().st_size
    assert result.pop("seconds") > 0
    assert result == {"output": str(path), "sentences": 2, "bytes": size}
    data = data_of(path)
    assert (data["layers"]["cross"], data["heads"]) == (1, 2)
    assert [each["text"] for each in data["sentences"]] == sentences
    for translation, shown in zip(expected, data["sentences"], strict=True):
        first, second = shown["alternatives"]  # as many as the beam is wide
        assert first["text"] == translation
        assert first["score"] > second["score"]
        assert first["sides"]["translation"][-1] == "<end>"


def test_given_pairs_are_shown_as_they_are(use, toy, pair_flags, tmp_path):
    page = tmp_path / "page.html"
    source, other = toy.test[:2]
    flags = (*pair_flags([("", ""), (source, toy.translate(other))]), "--heads=2")
    answer = use("visualize", *flags, "--view=heat_map", f"--output={page}")
    assert answer.result["sentences"] == 1  # blank ones are left out
    data = data_of(page)
    (only,) = data["sentences"][0]["alternatives"]
    assert (only["text"], only["score"]) == (toy.translate(other), None)
    assert (data["begin"]["heads"], data["begin"]["view"]) == ([2], "heat_map")
    flags = pair_flags([("", ""), (source, "SU " * 40)])
    assert "the translation of line 2 has" in use("visualize", *flags).complaint


def test_a_picture_is_of_one_sentence_and_replaces_a_file(use, toy, tmp_path):
    picture = tmp_path / "view.svg"
    picture.write_text("older")
    flags = (f"--output={picture}", "--attention=encoder", "--heads=1", "--n_best=1")
    assert use("visualize", *flags, lines=[toy.test[0], ""]).result["sentences"] == 1
    assert "Encoder self-attention" in picture.read_text()
    assert "one sentence" in use("visualize", *flags, lines=toy.test[:2]).complaint


@pytest.mark.parametrize(
    ("flag", "lines", "message"),
    [
        ("--layer=2", ["bo"], "no layer 2: choose from 1 to 1"),
        ("--heads=1,b", ["bo"], "--heads=1,b is no list"),
        ("--layer=1", [" "], "0 sentences cannot be shown"),
        ("--layer=1", ["bo"] * 51, "51 sentences cannot be shown: give 1 to 50"),
        ("--layer=1", ["", "bo " * 40], "the sentence of line 2 has"),
        ("--reference=x", [], "go together"),
        ("--output=page.gif", ["bo"], "does not end in .html"),
    ],
)
def test_bad_input_is_one_line(use, tmp_path, flag, lines, message):
    page = tmp_path / "page.html"
    answer = use("visualize", f"--output={page}", flag, lines=lines)
    assert message in answer.complaint
    assert not page.exists()


def test_python_shows_the_same(trained, toy, tmp_path):
    translator = jaxformer.Translator(trained.workdir, n_best=2)
    sentence = toy.test[0]
    view = jaxformer.attention_view(translator, sentence)
    (found,) = translator.translate([sentence])
    for shown, expected in zip(view.viewed[0].alternatives, found, strict=True):
        assert shown.found == expected
        maps = translator.attention(sentence, expected.text)
        np.testing.assert_array_equal(shown.attention.cross, maps.cross)
    view.save(tmp_path / "view.html")
    assert sentence in (tmp_path / "view.html").read_text(encoding="utf-8")
    (score,) = translator.score([sentence], ["SU"])
    (given,) = jaxformer.attention_view(translator, [sentence], ["SU"]).viewed
    text = ("SU", None, score.log_probability, len(score.pieces))
    assert given.alternatives[0].found == text
    with pytest.raises(InputError, match="1 sentences and 2 translations"):
        jaxformer.attention_view(translator, [sentence], ["SU", "RI"])
