"""Counts and changes of benchmarks/noise.py, with a translator that drops a symbol."""

from random import Random

from benchmarks import noise

SENTENCES = ["Ann saw 3 cats.", "", "No.", "7"] * 4


class Dropping:
    def __call__(self, texts):
        return [text.replace("😀", "") for text in texts]

    def translate_document(self, text, *, markup):
        return text.replace("7", "")


def test_insertions_are_counted_in_lines_and_in_a_document(monkeypatch):
    monkeypatch.setattr(noise, "SYMBOLS", "😀★")
    found = noise.kept(Dropping(), SENTENCES, 16, Random(2))
    assert list(found) == ["symbol", "URL", "number", "placeholder"]
    assert {each["sentences"] for each in found.values()} == {4}
    assert 0 < found["symbol"]["lines"] < found["symbol"]["document"] == 4
    assert found["number"]["document"] < found["number"]["lines"] == 4
    assert found["placeholder"] == {"sentences": 4, "lines": 4, "document": 4}


def test_a_typo_changes_at_most_two_letters_that_are_neighbours():
    made = {noise.typo("at 5", Random(seed)) for seed in range(20)}
    assert made == {"ta 5", "t 5", "aat 5"}
    assert noise.typo("7", Random(1)) == "7"
