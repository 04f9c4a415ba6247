"""--mode=visualize: a page or a picture of the attention of each head."""

import json
import re
from pathlib import Path

import pytest

import jaxformer
from jaxformer.errors import InputError


@pytest.fixture
def visualize(command, trained, tmp_path):
    """Run the mode on the trained run with more flags; returns the Answer."""

    def run(*flags, stdin="", output="page.html"):
        return command(
            "--mode=visualize", f"--workdir={trained.workdir}",
            f"--output={tmp_path / output}", *flags, stdin=stdin.encode(),
        )  # fmt: skip

    return run


def data_of(path):
    """What a page carries."""
    html = Path(path).read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def text_of(alternative) -> str:
    return " ".join(words for kind, words in alternative["parts"] if kind != "gone")


def test_sentences_are_translated_and_become_a_page(command, own_run, toy):
    sentences = sorted(toy.test, key=len)[-2:]
    stdin = "".join(f"{line}\n" for line in sentences).encode()
    result = command("--mode=visualize", f"--workdir={own_run}", stdin=stdin).result
    assert list(result) == ["output", "sentences", "bytes", "seconds"]
    path = own_run / "attention.html"
    assert (result["output"], result["sentences"]) == (str(path), 2)
    assert result["bytes"] == path.stat().st_size
    data = data_of(path)
    assert (data["layers"]["cross"], data["heads"]) == (1, 2)
    assert [each["text"] for each in data["sentences"]] == sentences
    for sentence, shown in zip(sentences, data["sentences"], strict=True):
        first, second = shown["alternatives"]  # as many as the beam is wide
        assert text_of(first) == toy.translate(sentence)
        assert first["score"] > second["score"]
        assert first["pieces"][-1] == "<end>"


def test_given_pairs_are_shown_as_they_are(visualize, toy, tmp_path):
    source, other = toy.test[:2]
    (tmp_path / "source").write_text(f"{source}\n")
    (tmp_path / "target").write_text(f"{toy.translate(other)}\n")
    flags = (f"--source={tmp_path / 'source'}", f"--reference={tmp_path / 'target'}")
    assert visualize(*flags, "--heads=2", "--view=heat_map").result["sentences"] == 1
    data = data_of(tmp_path / "page.html")
    (only,) = data["sentences"][0]["alternatives"]
    assert (text_of(only), only["score"]) == (toy.translate(other), None)
    assert (data["begin"]["heads"], data["begin"]["view"]) == ([2], "heat_map")
    visualize(flags[0], "--n_best=1")
    (only,) = data_of(tmp_path / "page.html")["sentences"][0]["alternatives"]
    assert text_of(only) == toy.translate(source)


def test_a_picture_is_of_one_sentence_and_replaces_a_file(visualize, toy, tmp_path):
    (tmp_path / "look.svg").write_text("older")
    flags = ("--attention=encoder", "--layer=1", "--heads=1")
    answer = visualize(*flags, stdin=f"{toy.test[0]}\n\n", output="look.svg")
    assert answer.result["sentences"] == 1
    assert "Encoder self-attention" in (tmp_path / "look.svg").read_text()
    two = "\n".join(toy.test[:2])
    assert "one sentence" in visualize(stdin=two, output="two.pdf").complaint


@pytest.mark.parametrize(
    ("flags", "stdin", "message"),
    [
        (["--layer=2"], "bo", "no layer 2: choose from 1 to 1"),
        (["--heads=1,b"], "bo", "--heads=1,b is no list"),
        ([], "\n \n", "0 sentences"),
        ([], "bo " * 40, "more than 32"),
        (["--n_best=9"], "bo", "n_best"),
        (["--reference=x"], "", "go together"),
        (["--output=page.gif"], "bo", "does not end in .html"),
    ],
)
def test_bad_input_is_one_line(visualize, tmp_path, flags, stdin, message):
    assert message in visualize(*flags, stdin=stdin).complaint
    assert not (tmp_path / "page.html").exists()


def test_the_same_from_python(trained, toy, tmp_path):
    translator = jaxformer.Translator(trained.workdir, n_best=2)
    sentence = toy.test[0]
    view = jaxformer.attention_view(translator, sentence)
    assert [len(each.alternatives) for each in view.viewed] == [2]
    assert view.viewed[0].alternatives[0].text == toy.translate(sentence)
    view.save(tmp_path / "view.html")
    assert sentence in (tmp_path / "view.html").read_text(encoding="utf-8")
    given = jaxformer.attention_view(translator, [sentence], ["SU"])
    assert given.viewed[0].alternatives[0].text == "SU"
    with pytest.raises(InputError, match="1 sentences and 2 translations"):
        jaxformer.attention_view(translator, [sentence], ["SU", "RI"])
