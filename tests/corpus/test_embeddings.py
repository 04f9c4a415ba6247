"""Tests of word vectors: which piece gets which, their scale, and every message."""

from types import SimpleNamespace
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.corpus.embeddings import read_word_vectors
from jaxformer.runs.warm_start import new_state
from jaxformer.system.errors import InputError
from jaxformer.training.sharding import make_mesh
from jaxformer.training.step import TrainState

PIECES = ["<pad>", "<unk>", "<s>", "</s>", "▁dog", "dog", "▁hund", "ing"]
LINES = ["dog 1 -1", "cat 5 5", "hund 3 -3"]


@pytest.fixture
def read(tmp_path):
    def read(*lines):
        path = tmp_path / "vectors.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return read_word_vectors(path, PIECES, d_model=2)

    return read


@pytest.mark.parametrize(
    "lines", [LINES, ["3 2", *LINES], [f"{line} " for line in LINES]]
)
def test_pieces_take_the_vectors_of_their_words(read, lines):
    vectors, is_found = read(*lines)
    assert vectors.dtype == np.float32
    expected = np.array([[0, 0]] * 4 + [[1, -1], [1, -1], [3, -3], [0, 0]])
    # The deviation that the embedding is drawn with: d_model^-0.5.
    expected = expected * (2**-0.5 / expected[4:7].std())
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    np.testing.assert_array_equal(is_found, expected.any(axis=1))


@pytest.mark.parametrize("lines", [["dog 1 -1", "▁dog 2 7"], ["▁dog 2 7", "dog 1 -1"]])
def test_the_vector_of_a_piece_precedes_that_of_its_word(read, lines):
    vectors, _ = read(*lines)
    np.testing.assert_allclose(vectors[4] / vectors[5], [2, -7], rtol=1e-6)
    assert not any(map(np.any, read("cat 1 2")))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["dog 1 2 3"], r"line 1: the vector has 3 numbers .*d_model is 2"),
        (["3 300", "other 1 2 3"], r"line 2: the vector has 3 numbers"),
        (["cat 1 2", "dog 1"], r"line 2: the vector has 1 numbers .*d_model is 2"),
        (["3 2", "cat 1 2", "dog 1 x"], r"line 3: could not convert .*'x'"),
        (["dog nan 2"], r"line 1: .* not finite"),
        (["dog 1 1", "hund 1 1"], r"all numbers are equal"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(read, lines, message):
    with pytest.raises(InputError, match=rf"vectors\.txt.*{message}"):
        read(*lines)


@pytest.mark.parametrize("others", [(), ("source_embedding", "output_embedding")])
def test_a_new_run_starts_from_the_vectors_where_they_belong(read, tmp_path, others):
    """Only found rows change, in both copies, and the table keeps its sharding."""
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    vectors, is_found = read(*LINES)

    def init():
        boxed = nn.LogicallyPartitioned(jnp.ones((8, 2)), ("vocab", "embed"))
        table, zero = {"embedding": boxed, "other": jnp.ones(3)}, jnp.zeros(())
        table |= {name: boxed for name in others}
        return TrainState(zero, zero, zero, table, (), table, zero, zero, zero)

    def start(file):
        run = Mock()
        run.config.training.initial_embeddings = str(file)
        run.config.training.init_from = ""
        run.tokenizer.pieces.return_value, run.model.d_model = PIECES, 2
        run.tokenizer.source_pieces.return_value = PIECES[::-1]
        return new_state(run, SimpleNamespace(mesh=mesh, init=init))

    assert (np.asarray(start("").params["embedding"]) == 1).all()
    state = start(tmp_path / "vectors.txt")
    for params in (state.params, state.ema):
        expected = np.where(is_found[:, None], vectors, 1.0)
        np.testing.assert_array_equal(params["embedding"], expected)
        spec = NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))
        assert params["embedding"].sharding.is_equivalent_to(spec, 2)
        np.testing.assert_array_equal(params["other"], np.ones(3))
    assert state.params["embedding"] is not state.ema["embedding"]  # both are donated
    if others:
        expected = np.where(is_found[::-1, None], vectors[::-1], 1.0)
        np.testing.assert_array_equal(state.params["source_embedding"], expected)
        assert (np.asarray(state.params["output_embedding"]) == 1).all()
