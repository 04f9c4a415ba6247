"""Tests of word vectors: which piece gets which, their scale, and every message."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.data.embeddings import read_word_vectors
from jaxformer.errors import InputError
from jaxformer.trainer import new_state
from jaxformer.training.sharding import make_mesh
from jaxformer.training.step import TrainState

PIECES = ["<pad>", "<unk>", "<s>", "</s>", "▁dog", "dog", "▁hund", "ing"]
LINES = ["dog 1 -1", "cat 5 5", "hund 3 -3"]


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        path = tmp_path / "vectors.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    "lines", [LINES, ["3 2", *LINES], [f"{line} " for line in LINES]]
)
def test_pieces_take_the_vectors_of_their_words(write, lines):
    vectors, is_found = read_word_vectors(write(*lines), PIECES, d_model=2)
    assert vectors.dtype == np.float32
    assert [PIECES[i] for i in np.flatnonzero(is_found)] == ["▁dog", "dog", "▁hund"]
    np.testing.assert_array_equal(vectors[4], vectors[5])
    np.testing.assert_allclose(vectors[6], 3 * vectors[4])
    assert vectors[4, 0] == -vectors[4, 1] > 0
    # The deviation that the embedding is drawn with: d_model^-0.5.
    assert vectors[is_found].std() == pytest.approx(2**-0.5)
    assert not vectors[~is_found].any()


@pytest.mark.parametrize("lines", [["dog 1 -1", "▁dog 2 7"], ["▁dog 2 7", "dog 1 -1"]])
def test_the_vector_of_a_piece_precedes_that_of_its_word(write, lines):
    vectors, _ = read_word_vectors(write(*lines), PIECES, d_model=2)
    np.testing.assert_allclose(vectors[4] / vectors[5], [2, -7], rtol=1e-6)
    vectors, is_found = read_word_vectors(write("cat 1 2"), PIECES, d_model=2)
    assert not is_found.any() | vectors.any()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["3 300", "dog 1 2"], r"line 1: its vectors have 300 numbers .*d_model is 2"),
        (["dog 1 2 3"], r"line 1: its vectors have 3 numbers .*d_model is 2"),
        (["cat 1 2", "dog 1"], r"line 2: the vector has 1 numbers instead of 2"),
        (["3 2", "cat 1 2", "dog 1 x"], r"line 3: could not convert .*'x'"),
        (["dog nan 2"], r"line 1: .* not finite"),
        (["dog 1 1", "hund 1 1"], r"all numbers are equal"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(write, lines, message):
    with pytest.raises(InputError, match=rf"vectors\.txt.*{message}"):
        read_word_vectors(write(*lines), PIECES, d_model=2)


def test_a_new_run_starts_from_the_vectors_where_they_belong(write):
    """Only found rows change, in both copies, and the table keeps its sharding."""
    mesh = make_mesh(data=2, fsdp=2, tensor=2)

    def table():
        boxed = nn.LogicallyPartitioned(jnp.ones((8, 2)), ("vocab", "embed"))
        return {"embedding": boxed, "other": jnp.ones(3)}

    def init():
        zero = jnp.zeros(())
        return TrainState(zero, zero, zero, table(), (), table(), zero, zero)

    def start(file):
        run = SimpleNamespace(
            config=SimpleNamespace(training=SimpleNamespace(initial_embeddings=file)),
            tokenizer=SimpleNamespace(pieces=lambda: PIECES),
            model=SimpleNamespace(d_model=2),
        )
        return new_state(run, SimpleNamespace(mesh=mesh, init=init))

    path = write(*LINES)
    vectors, is_found = read_word_vectors(path, PIECES, d_model=2)
    drawn, state = start(""), start(str(path))
    assert (np.asarray(drawn.params["embedding"]) == 1).all()
    for params in (state.params, state.ema):
        expected = np.where(is_found[:, None], vectors, 1.0)
        np.testing.assert_array_equal(params["embedding"], expected)
        spec = NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))
        assert params["embedding"].sharding.is_equivalent_to(spec, 2)
        np.testing.assert_array_equal(params["other"], np.ones(3))
    assert state.params["embedding"] is not state.ema["embedding"]  # both are donated
