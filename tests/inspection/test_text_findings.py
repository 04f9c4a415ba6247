"""Characters, repeats and overlap, counted by hand."""

import numpy as np
import pytest

from jaxformer.inspection.alignment import find_shifted
from jaxformer.inspection.text_findings import (
    EXAMPLES,
    TextFinding,
    count_odd_characters,
    find_overlap,
    find_repeats,
    place,
)

NAMELESS = "CONTROL OR PRIVATE USE"
ODD = {
    "a\x00": f"U+0000 {NAMELESS}", "a\ue000": f"U+E000 {NAMELESS}",
    "a\rb": f"U+000D {NAMELESS}", "a\x85": f"U+0085 {NAMELESS}",
    "a\u2028": "U+2028 LINE SEPARATOR", "a\u2029": "U+2029 PARAGRAPH SEPARATOR",
    "\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE", "e\u0301": "not NFC",
    "\u2066a": "U+2066 LEFT-TO-RIGHT ISOLATE", "a\u200bb": "U+200B ZERO WIDTH SPACE",
    "\ufeff": "U+FEFF ZERO WIDTH NO-BREAK SPACE", "a\u200d": "U+200D ZERO WIDTH JOINER",
    "\ufffd": "U+FFFD REPLACEMENT CHARACTER",
}  # fmt: skip
USUAL = ["a\tb", "naïve „Straße“ 12\xa0€", "می\u200cروم", "👩\u200d🔬", "क्\u200dष", ""]


@pytest.mark.parametrize("text", [*ODD, *USUAL])
def test_odd_characters_are_named_and_usual_ones_are_not(text):
    assert count_odd_characters(text) == ({ODD[text]: 1} if text in ODD else {})
    if "\u2028" in text:
        assert count_odd_characters(text * 2)["U+2028 LINE SEPARATOR"] == 2


def test_repeats_are_grouped_by_size():
    found = find_repeats(np.array([7, 5, 7, 4, 5, 7, 0, 0]))
    assert (found.pairs, found.count) == (3, 3)  # all but the first of each text
    groups = [(each.pairs, each.indices()) for each in found.labels.values()]
    assert groups == [(3, [0, 2, 5]), (2, [1, 4])]


def test_overlap_is_with_the_first_there():
    here, train = np.array([9, 1, 0, 2]), np.array([2, 0, 1, 2, 1])
    assert find_overlap(here, train) == {1: 2, 3: 0}
    assert find_overlap(here[:1], train) == {}


def test_the_surest_examples_are_kept_and_then_the_first():
    found = TextFinding()
    for index in range(100):
        found.add(index, odds=50.0 if index in (70, 90) else 1.0)
    found.add(100, odds=60.0)
    assert (found.pairs, found.count) == (101, 101)
    assert found.indices() == [100, 70, 90, *range(EXAMPLES - 3)]


def test_a_text_may_be_shifted_as_a_whole(pairs):
    sources, targets = map(list, zip(*pairs, strict=True))
    assert (find_shifted(sources[:-1], targets[1:]) == -1).mean() > 0.95
    assert (find_shifted(sources[1:], targets[:-1]) == 1).mean() > 0.95
    assert not find_shifted(sources, targets).any()
    assert not find_shifted(sources[:9], targets[1:10]).any()  # too few to say


def test_labels_are_counted_apart():
    found = TextFinding()
    found.add(3, {"a": 2, "b": 1})
    found.add(5, {"b": 4})
    assert (found.pairs, found.count) == (2, 7)
    said = found.describe(lambda index: {"index": index})
    assert list(said["labels"]) == ["b", "a"]  # of most pairs first
    assert said["labels"]["b"] == {
        "pairs": 2, "count": 5, "examples": [{"index": 3}, {"index": 5}], "labels": {},
    }  # fmt: skip


def test_an_index_is_a_line_of_its_file():
    files = [("a.en", "a.de", 0), ("b.en", "b.de", 10), ("c.en", "c.de", 10)]
    assert place(9, "source", files) == ("a.en", 10)
    assert place(10, "target", files) == ("c.de", 1)
