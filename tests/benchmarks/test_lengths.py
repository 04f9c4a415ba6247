"""BLEU by length: which texts are joined, which are scored together."""

import gzip
import itertools
import json

import pytest

from benchmarks import lengths

PAIRS = [(f"a{n} b", f"A{n} B C D E") for n in range(10)]


def test_consecutive_pairs_are_joined_and_the_rest_is_left_out():
    found = list(lengths.joined(PAIRS[:8], itertools.cycle([1, 2, 3])))
    assert [source for source, _ in found] == [
        "a0 b", "a1 b a2 b", "a3 b a4 b a5 b", "a6 b",
    ]  # fmt: skip
    assert found[1][1] == "A1 B C D E A2 B C D E"


def test_texts_are_grouped_by_words_of_the_source(monkeypatch):
    monkeypatch.setattr(lengths, "EDGES", (0, 4, 8, 12))
    found = lengths.by_length(PAIRS)
    # By 1 and 2: up to 4 words; by 3 and 4: up to 8; by 5 and 6: up to 12; by 7: more.
    assert {key: len(group) for key, group in found.items()} == {
        (0, 4): 10 + 5, (4, 8): 3 + 2, (8, 12): 2 + 1,
    }  # fmt: skip


@pytest.fixture
def text(tmp_path):
    for split in lengths.SPLITS:
        for language, side in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
            with gzip.open(tmp_path / f"{split}.{language}.gz", "wt") as file:
                file.write("\n".join(side) + "\n")
    return tmp_path


class Copier:
    """A translator into capitals that stops after five words."""

    def __init__(self, folder, *, split_sentences):
        assert not split_sentences

    def translate(self, lines):
        words = (
            " ".join(f"{w} C D E" if w == "b" else w for w in s.split()) for s in lines
        )
        return [[Found(" ".join(each.upper().split()[:5]))] for each in words]


class Found:
    def __init__(self, text):
        self.text = text


def test_a_model_that_stops_early_falls_off(text, monkeypatch, capsys):
    monkeypatch.setattr(lengths, "EDGES", (0, 2, 80))
    monkeypatch.setattr(lengths, "Translator", Copier)
    assert lengths.main([f"--text={text}", "--runs=runs/it"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["words"] == [[0, 2], [2, 80]]
    short, long = found["bleu"]["it"]
    assert short > 99.9
    assert long < 30


def test_joined_splits_are_written(text, tmp_path, capsys):
    flags = f"--text={text}", f"--join={tmp_path / 'joined'}"
    assert lengths.main(flags) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["joined"]["train"] == 4
    pairs = lengths.read_pairs(tmp_path / "joined", "train")
    assert pairs[1] == ("a1 b a2 b", "A1 B C D E A2 B C D E")


def test_a_folder_without_the_text_is_one_line(tmp_path, capsys):
    assert lengths.main([f"--text={tmp_path}"]) == 2
    assert "has no test_2016_flickr.en" in capsys.readouterr().err


def test_runs_of_several_seeds_are_drawn_as_a_mean_with_its_range(tmp_path, capsys):
    words = [[0, 8], [8, 12]]
    found = [
        {"words": words, "bleu": {"lstm_1": [10.0, 4.0], "rotary": [7.0, 8.0]}},
        {"words": words, "bleu": {"lstm_2": [20.0, 6.0]}},
    ]
    points = lengths.lines_of(found)
    assert points[0] == {
        "words": 8, "run": "lstm", "mean": 15.0, "lowest": 10.0, "highest": 20.0,
    }  # fmt: skip
    assert [point["mean"] for point in points] == [15.0, 5.0, 7.0, 8.0]
    files = [tmp_path / f"{number}.txt" for number in range(2)]
    for file, each in zip(files, found, strict=True):
        file.write_text(f"| a table |\n{json.dumps(each)}\n")
    picture = tmp_path / "lengths.svg"
    given = ",".join(map(str, files))
    assert lengths.main([f"--found={given}", f"--output={picture}"]) == 0
    assert "lstm" in picture.read_text()
