"""jaxformer visualize: a page or a picture of the attention of each head."""

import pytest

import jaxformer
from jaxformer.system.errors import InputError
from tests.commands.runs import page_data, pair_flags


def test_sentences_are_translated_and_become_a_page(command, use, own_run, toy):
    sentences = sorted(toy.test, key=len)[-2:]
    expected = use("translate", stdin=sentences).lines
    result = command("visualize", workdir=own_run, stdin=sentences).result
    path = own_run / "attention.html"
    assert result == {
        "output": str(path), "sentences": 2, "bytes": path.stat().st_size,
    }  # fmt: skip
    data = page_data(path)
    assert (data["layers"]["cross"], data["heads"]) == (1, 2)
    assert [each["text"] for each in data["sentences"]] == sentences
    for translation, shown in zip(expected, data["sentences"], strict=True):
        first, second = shown["alternatives"]  # as many as the beam is wide
        assert first["text"] == translation
        assert first["score"] > second["score"]


def test_given_pairs_are_shown_as_they_are(use, toy, tmp_path):
    page = tmp_path / "page.html"
    source, other = toy.test[:2]
    pair = pair_flags(tmp_path, [(source, toy.translate(other))])
    flags = (f"--output={page}", "--attention=cross::2", "--view=heat_map")
    answer = use("visualize", *pair, *flags)
    assert answer.result["sentences"] == 1
    data = page_data(page)
    (only,) = data["sentences"][0]["alternatives"]
    assert (only["text"], only["score"]) == (toy.translate(other), None)
    assert (data["begin"]["heads"], data["begin"]["view"]) == ([2], "heat_map")


def test_a_picture_replaces_a_file(use, toy, tmp_path):
    picture = tmp_path / "view.svg"
    picture.write_text("older")
    flags = (f"--output={picture}", "--attention=encoder::1", "--n_best=1")
    assert use("visualize", *flags, stdin=[toy.test[0], ""]).result["sentences"] == 1
    assert "Encoder self-attention" in picture.read_text()


def test_python_shows_the_same(trained, toy):
    translator = jaxformer.Translator(trained.workdir, n_best=2)
    sentence = toy.test[0]
    (shown,) = jaxformer.attention_view(translator, sentence).viewed
    first, _ = shown.alternatives
    assert first.found.text == translator(sentence)
    (shown,) = jaxformer.attention_view(translator, [sentence], ["SU"]).viewed
    assert [each.found.text for each in shown.alternatives] == ["SU"]
    two = jaxformer.attention_view(translator, f"{sentence}\n{toy.test[1]}").viewed
    assert [each.source for each in two] == toy.test[:2]
    for each in two:
        best = each.alternatives[0]
        assert best.attention.target == best.found.pieces
    with pytest.raises(InputError, match="targets has 2 for 1 text"):
        jaxformer.attention_view(translator, [sentence], ["SU", "RI"])
