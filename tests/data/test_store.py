"""What is written comes back, and nothing half-written stays."""

import numpy as np
import pytest

from jaxformer.data.store import Ragged, new_directory, open_corpus, write_corpus
from jaxformer.errors import InputError

SOURCES = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]
TARGETS = [[11, 3], [12, 13, 3], [3]]


def write(directory, *, vocab_size=100):
    chunks = [(SOURCES[:2], TARGETS[:2]), ([], []), (SOURCES[2:], TARGETS[2:])]
    write_corpus(directory, chunks, vocab_size=vocab_size)
    return open_corpus(directory)


def test_every_sequence_comes_back_in_order(tmp_path):
    corpus = write(tmp_path / "train")
    assert [list(s) for s in map(corpus.source.__getitem__, range(3))] == SOURCES
    assert [list(s) for s in map(corpus.target.__getitem__, range(3))] == TARGETS
    assert len(corpus.source) == len(corpus.target) == 3
    assert corpus.source.lengths.tolist() == [3, 1, 5]
    assert corpus.source.lengths.dtype == np.int32
    assert corpus.source.offsets.tolist() == [0, 3, 4, 9]


def test_tokens_are_memory_mapped_and_read_only(tmp_path):
    tokens = write(tmp_path / "train").source.tokens
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65536, 2), (65537, 4)])
def test_an_id_takes_two_bytes_while_it_fits(tmp_path, vocab_size, bytes_each):
    last = vocab_size - 1
    write_corpus(tmp_path / "c", [([[last, 3]], [[3]])], vocab_size=vocab_size)
    tokens = open_corpus(tmp_path / "c").source.tokens
    assert tokens.dtype.itemsize == bytes_each
    assert tokens.tolist() == [last, 3]


def test_an_index_outside_is_refused():
    ragged = Ragged(np.array([4, 3], np.uint16), np.array([0, 2]))
    for index in (1, -1):
        with pytest.raises(IndexError):
            ragged[index]


def test_a_corpus_without_pairs_opens(tmp_path):
    write_corpus(tmp_path / "c", [], vocab_size=10)
    assert len(open_corpus(tmp_path / "c").target) == 0


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def chunks():
        yield SOURCES, TARGETS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path / "train", chunks(), vocab_size=100)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_replaced(tmp_path):
    (tmp_path / "made.partial").mkdir()
    (tmp_path / "made.partial" / "old").touch()
    with new_directory(tmp_path / "made") as partial:
        (partial / "new").touch()
        assert not (tmp_path / "made").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["made"]
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["new"]


def test_an_existing_directory_is_never_replaced(tmp_path):
    (tmp_path / "made").mkdir()
    with (
        pytest.raises(FileExistsError, match="made"),
        new_directory(tmp_path / "made"),
    ):
        pass
    assert (tmp_path / "made").exists()


def test_unequal_sides_are_refused(tmp_path):
    with pytest.raises(ValueError, match="3 sources, 2 targets"):
        write_corpus(tmp_path / "c", [(SOURCES, TARGETS[:2])], vocab_size=100)


@pytest.mark.parametrize("name", ["source.tokens", "target.offsets.npy", "format.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damage_is_one_sentence(tmp_path, name, damage):
    write(tmp_path / "train")
    path = tmp_path / "train" / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"train is missing or damaged.*prepare"):
        open_corpus(tmp_path / "train")
