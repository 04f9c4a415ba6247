"""--mode=visualize: a page or a picture of where each head looks."""

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


@pytest.fixture
def page(tmp_path):
    """Read what the page carries."""

    def read(name="page.html"):
        html = (tmp_path / name).read_text(encoding="utf-8")
        return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])

    return read


def text_of(alternative) -> str:
    return " ".join(words for kind, words in alternative["parts"] if kind != "gone")


def test_sentences_are_translated_and_become_a_page(visualize, page, toy, tmp_path):
    sentences = sorted(toy.test, key=len)[-2:]
    result = visualize(stdin="".join(f"{line}\n" for line in sentences)).result
    assert list(result) == ["output", "sentences", "bytes", "seconds"]
    path = tmp_path / "page.html"
    assert (result["output"], result["sentences"]) == (str(path), 2)
    assert result["bytes"] == path.stat().st_size
    data = page()
    assert (data["layers"], data["heads"]) == (1, 2)
    assert [each["text"] for each in data["sentences"]] == sentences
    for sentence, shown in zip(sentences, data["sentences"], strict=True):
        first, second = shown["alternatives"]  # as many as the beam is wide
        assert text_of(first) == toy.translate(sentence)
        assert first["score"] > second["score"]
        assert first["pieces"][-1] == "<end>"


def test_given_pairs_are_taken_as_they_are(visualize, page, toy, tmp_path):
    source, other = toy.test[:2]
    (tmp_path / "source").write_text(f"{source}\n")
    (tmp_path / "target").write_text(f"{toy.translate(other)}\n")
    flags = (f"--source={tmp_path / 'source'}", f"--reference={tmp_path / 'target'}")
    assert visualize(*flags, "--heads=2", "--view=heat_map").result["sentences"] == 1
    data = page()
    (only,) = data["sentences"][0]["alternatives"]
    assert (text_of(only), only["score"]) == (toy.translate(other), None)
    assert data["begin"]["heads"] == [2]
    assert data["begin"]["view"] == "heat_map"
    visualize(flags[0])
    assert text_of(page()["sentences"][0]["alternatives"][0]) == toy.translate(source)


def test_n_best_says_how_many_are_shown(visualize, page, toy):
    visualize("--n_best=1", stdin=toy.test[0])
    assert len(page()["sentences"][0]["alternatives"]) == 1


def test_a_picture_is_of_one_sentence_and_is_written_over(visualize, toy, tmp_path):
    flags = ("--attention=encoder", "--layer=1", "--heads=1")
    (tmp_path / "look.png").write_text("older")
    for output in ("look.png", "look.svg"):
        answer = visualize(*flags, stdin=f"{toy.test[0]}\n\n", output=output)
        assert answer.result["sentences"] == 1
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")
    assert "Encoder self-attention" in (tmp_path / "look.svg").read_text()
    two = "\n".join(toy.test[:2])
    assert "one sentence" in visualize(stdin=two, output="two.pdf").complaint


def test_without_output_the_page_is_in_the_workdir(command, own_run, toy):
    flags = ("--mode=visualize", f"--workdir={own_run}")
    result = command(*flags, stdin=toy.test[0].encode()).result
    assert Path(result["output"]) == own_run / "attention.html"
    assert (own_run / "attention.html").exists()


@pytest.mark.parametrize(
    ("flags", "stdin", "message"),
    [
        (["--layer=2"], "bo", "no layer 2: choose from 1 to 1"),
        (["--heads=1,3"], "bo", "no head 3: choose from 1 to 2"),
        (["--heads=1,b"], "bo", "--heads=1,b is no list"),
        ([], "", "no sentence"),
        ([], "\n \n", "no sentence"),
        ([], "bo\n" * 51, "51 sentences are too many"),
        ([], "bo " * 40, "more than 32"),
        (["--n_best=9"], "bo", "n_best"),
        (["--reference=x"], "", "go together"),
    ],
)
def test_bad_input_is_one_line(visualize, tmp_path, flags, stdin, message):
    assert message in visualize(*flags, stdin=stdin).complaint
    assert not (tmp_path / "page.html").exists()


def test_an_output_that_cannot_be_is_refused_before_any_work(visualize, tmp_path):
    assert "not called .html" in visualize(stdin="bo", output="page.gif").complaint
    (tmp_path / "file").write_text("")
    answer = visualize(stdin="bo", output="file/page.html")
    assert "cannot be written" in answer.complaint


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
