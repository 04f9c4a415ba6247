"""Tests of the tokenised corpus on disk: it reads back as written, or not at all."""

import numpy as np
import pytest

from jaxformer.data.store import Ragged, open_corpus, write_corpus
from jaxformer.errors import InputError

SOURCES = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]
TARGETS = [[11, 3], [12, 13, 3], [3]]
CHUNKS = [(SOURCES[:2], TARGETS[:2]), ([], []), (SOURCES[2:], TARGETS[2:])]


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65536, 2), (65537, 4)])
def test_every_sequence_reads_back_in_order(tmp_path, vocab_size, bytes_each):
    last = vocab_size - 1
    write_corpus(tmp_path / "c", [*CHUNKS, ([[last]], [[3]])], vocab_size=vocab_size)
    corpus = open_corpus(tmp_path / "c")
    expected = [*SOURCES, [last]], [*TARGETS, [3]]
    for side, sequences in zip(corpus, expected, strict=True):
        assert [list(ids) for ids in side] == sequences
        assert side.lengths.tolist() == list(map(len, sequences))
        assert side.lengths.dtype == np.int32
        assert isinstance(side.tokens, np.memmap)
        assert side.tokens.dtype.itemsize == bytes_each
        assert not side.tokens.flags.writeable


@pytest.mark.parametrize("index", [1, -1])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError):
        Ragged.of([[4, 3]])[index]


def test_a_corpus_without_pairs_opens(tmp_path):
    write_corpus(tmp_path / "c", [], vocab_size=10)
    assert len(open_corpus(tmp_path / "c").target) == 0


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="argument"):
        write_corpus(tmp_path / "c", [*CHUNKS, (SOURCES,)], vocab_size=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["source.tokens", "target.offsets.npy", "format.json"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_damage_is_one_sentence(tmp_path, name, is_cut):
    write_corpus(tmp_path / "train", CHUNKS, vocab_size=100)
    path = tmp_path / "train" / name
    content = path.read_bytes()
    path.unlink()
    if is_cut:
        path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"train is missing or damaged.*prepare"):
        open_corpus(tmp_path / "train")
