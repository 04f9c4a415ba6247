"""Repeats and overlap of corpora of a few texts, counted by hand."""

import numpy as np

from jaxformer.inspection.repeats import (
    Hashes,
    find_ambiguous,
    find_overlap,
    find_repeats,
    hash_texts,
)


def hashes(*pairs):
    return Hashes(*(hash_texts([pair[side] for pair in pairs]) for side in (0, 1)))


def test_blank_texts_have_no_hash_and_others_have():
    found = hash_texts(["a", "", "b", "a"])
    assert found[1] == 0
    assert found[0] == found[3] != found[2]
    assert np.count_nonzero(found) == 3


def test_repeats_are_grouped_in_order_of_size():
    groups = find_repeats(hash_texts(["a", "b", "a", "c", "b", "a", "", ""]))
    assert groups == (2, 5, 3, [(3, [0, 2, 5]), (2, [1, 4])])


def test_pairs_repeat_only_as_a_whole():
    found = hashes(("a", "x"), ("a", "y"), ("x", "a"), ("a", "x"), ("", "x"), ("", "x"))
    assert find_repeats(found.pair) == (1, 2, 1, [(2, [0, 3])])


def test_a_source_is_ambiguous_with_different_targets_only():
    pairs = [("z", "z"), ("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "")]
    found = hashes(*pairs)
    assert find_ambiguous(found, "source") == (1, 2, 1, [(2, [1, 4])])
    assert find_ambiguous(found, "target") == (1, 2, 1, [(2, [1, 3])])


def test_overlap_names_the_first_in_the_other():
    here, train = hash_texts(["q", "a", "", "b"]), hash_texts(["b", "", "a", "b", "a"])
    assert find_overlap(here, train) == (2, [(1, 2), (3, 0)])
    assert find_overlap(here[:1], train) == (0, [])


def test_many_texts_share_no_hash():
    texts = [str(number) for number in range(20_000)]
    pairs = hashes(*zip(texts, texts[::-1], strict=True))
    assert find_repeats(pairs.source).texts == find_repeats(pairs.pair).texts == 0
