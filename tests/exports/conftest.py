"""A small model whose every parameter matters, and a tokeniser of numbers."""

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers.decoding import Numbers
from jaxformer.batch import Batch, shift_right
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports.marian import export_marian
from jaxformer.models.sequence_model import Model
from jaxformer.tokens import EOS, PAD
from tests.models.tiny import model_of, shapes_of

VOCABULARY = 40
# Parts of lines that programs may read, cut or write otherwise than we do.
_ODD = (
    " |  |\t|\u00a0|\u1680|\u2003|\u202f|\u3000|\u2028|\u2029|\x85|\r|\x0b|\x00|\x07|"
    "\x1b|\x1c|\x7f|\x9f|\u2581|\u2581\u2581|\u200b|\u200d|\ufeff|\u00ad|\u2060|\u202e|"
    "\u2066|\u0600|a\u0308|\u0301|e\u0323\u0302|e\u0302\u0323|\u1112\u1161\u11ab|"
    "\u212b|\u0958|\u2603\ufe0f|\U0001f469\u200d\U0001f467|\U0001f1e9\U0001f1ea|"
    "\U00020000|\u05e9\u05dc\u05d5\u05dd|\u4f60\u597d\uff01|\u043c\u0438\u0440|"
    "\u0e44\u0e17\u0e22|>>|<<|>>de<<|>>x y<<|<s>|</s>|<unk>|<pad>|\u2047|\u00bd|@@|"
    "\ufb01|\u2019"
)
OPTIONS = TranslateOptions(
    beam_size=4, alpha=0.6, extra_length=50, batch_tokens=4096, no_repeat_ngram=99
)
# Fields of models whose embeddings are not all one, with one vocabulary or two.
UNTIED = [
    {"tied_embeddings": tied, "source_vocab_size": size, "biases": "logits"}
    for tied in ("target", "none")
    for size in (VOCABULARY, VOCABULARY - 10)
]
CONFIG = {"vocab_size": VOCABULARY, "layers": 2, "d_ff": 24}


def odd_lines(words: Sequence[str], count: int) -> list[str]:
    """Draw lines of odd parts, with and without words, 2 to 60 parts a line."""
    draw, odd = random.Random(0), _ODD.split("|")
    parts = [odd, [*odd, *words * (len(odd) // len(words))]]
    return [
        "".join(draw.choices(parts[number % 2], k=draw.choice((2, 3, 9, 60))))
        for number in range(count)
    ]


@pytest.fixture(scope="package", autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def words() -> Numbers:
    return Numbers(VOCABULARY)


class Separate(Numbers):
    """The words of sources are other ones than those of targets, and fewer."""

    source_model, target_model = b"of the source", b"of the target"

    def __init__(self, vocabulary: int, source_vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.source_vocab_size = source_vocabulary

    def source_pieces(self) -> list[str]:
        pieces = self.pieces()[: self.source_vocab_size]
        return pieces[:4] + [f"s{piece}" for piece in pieces[4:]]


def tokenizer_of(model: Model) -> Numbers:
    """Make a tokeniser whose pieces are the ids of a model."""
    sizes = model.vocab_size, model.source_vocab_size
    return Numbers(sizes[0]) if sizes[1] in (None, sizes[0]) else Separate(*sizes)


def sources_of(model: Model, batch: Batch) -> Batch:
    """Return a batch with the ids of sources that a model has."""
    most = (model.source_vocab_size or model.vocab_size) - 1
    return batch._replace(source=jnp.minimum(batch.source, most))


@pytest.fixture(scope="session")
def batch() -> Batch:
    """60 random sentences and, as their translations, the same in reverse order."""
    draw = np.random.default_rng(0)
    ids = [[*draw.integers(EOS + 1, VOCABULARY, n), EOS] for n in [*range(1, 13)] * 5]
    return make_batch(ids, ids[::-1])


def make_batch(*sides) -> Batch:
    """Pad the ids of sources and of targets."""
    columns = [itertools.zip_longest(*side, fillvalue=PAD) for side in sides]
    rows = [jnp.asarray([*each], jnp.int32).T for each in columns]
    return Batch(*rows, *((ids != PAD).astype(jnp.int32) for ids in rows))


@pytest.fixture(scope="session")
def make_model() -> Callable[..., tuple[Model, dict]]:
    """Make a model with some fields of its config changed, and random parameters."""

    def make(**changes) -> tuple[Model, dict]:
        model = model_of(**CONFIG | changes)
        draw = np.random.default_rng(1)

        def random(path, leaf) -> np.ndarray:
            name, noise = path[-1].key, draw.normal(size=leaf.shape)
            deviation = {"scale": 0.3, "bias": 0.3, "embedding": 0.5}.get(name, 0.4)
            return np.float32((name == "scale") + deviation * noise)

        return model, jax.tree_util.tree_map_with_path(random, shapes_of(model))

    return make


def run_config(model: Model) -> SimpleNamespace:
    """The sections of a config that exports read."""
    data = {"source_language": "en", "target_language": "de", "direction": "en-de"}
    data["only_tag"] = data["only_target_tag"] = ""
    data["target_tags"] = []
    return SimpleNamespace(
        model=model.config, data=SimpleNamespace(**data, max_length=12)
    )


@pytest.fixture(scope="session")
def export_to_marian(tmp_path_factory, words) -> Callable[..., Path]:
    """Write a model as a Marian checkpoint; returns the folder."""

    def export(model: Model, params: dict, tokenizer=words) -> Path:
        folder = tmp_path_factory.mktemp("marian")
        export_marian(folder, run_config(model), params, tokenizer, OPTIONS)
        return folder

    return export


def log_probabilities(model, params, batch) -> np.ndarray:
    """Compute log P of every next piece of the targets: [B, T, V]."""
    logits = jax.jit(lambda params: model.logits(params, batch))
    return np.array(jax.nn.log_softmax(logits(params)))


def assert_transformers_agrees(transformers, folder, model, params, batch, rows):
    """Compare log P with Transformers' checkpoint, whose ids are `rows` by our id."""
    target = shift_right(batch.target, batch.target_segments)
    source, target = rows[batch.source], rows[target]
    segments = np.asarray(batch.source_segments)
    found = transformers("log_probabilities", folder, source, segments, target, rows)
    ours = log_probabilities(model, params, batch)
    real = np.asarray(batch.target_segments) != 0
    assert np.ptp(ours[real], axis=-1).min() > 5  # so that errors would show
    np.testing.assert_allclose(found[real], ours[real], atol=1e-4)
