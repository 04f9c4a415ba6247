"""A small model whose every parameter matters, and a tokeniser that is none."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from jaxformer.batch import EOS
from jaxformer.models.sequence_model import Model
from tests.models.tiny import model_of, shapes_of

VOCABULARY = 40
CONFIG = {
    "vocab_size": VOCABULARY, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 24,
}  # fmt: skip


class Words:
    """Stands in for a tokeniser: a sentence is words, and each of them is a piece."""

    source_model = target_model = b"no SentencePiece model"

    def pieces(self):
        """Reserved pieces, then w4, w5, ..."""
        return ["<pad>", "<unk>", "<s>", "</s>"] + [
            f"w{i}" for i in range(EOS + 1, VOCABULARY)
        ]

    def encode(self, sentences):
        """Ids of each sentence, EOS last."""
        ids = {piece: i for i, piece in enumerate(self.pieces())}
        return [[*(ids[word] for word in s.split()), EOS] for s in sentences]

    def decode(self, ids):
        """The words before EOS."""
        ids = list(ids)
        return " ".join(self.pieces()[i] for i in ids[: ids.index(EOS)])


@pytest.fixture(scope="session")
def words() -> Words:
    return Words()


@pytest.fixture(scope="session")
def sentences(words) -> list[str]:
    """Random ones of 1 to 12 words."""
    draw = np.random.default_rng(0)
    return [
        " ".join(draw.choice(words.pieces()[EOS + 1 :], size))
        for size in draw.integers(1, 13, 60)
    ]


@pytest.fixture(scope="session")
def make_model() -> Callable[..., tuple[Model, dict]]:
    """Make a model with some fields of its config changed, and numpy parameters.

    All are random, biases and norms too, so that none can be lost or misplaced
    unnoticed. Probable next pieces are few, and EOS is among them now and then.
    """

    def make(**changes) -> tuple[Model, dict]:
        model = model_of(**CONFIG | changes)
        draw = np.random.default_rng(1)

        def random(path, leaf) -> np.ndarray:
            noise = draw.normal(size=leaf.shape).astype(np.float32)
            name = path[-1].key
            if name == "scale":
                return 1 + 0.3 * noise
            return noise * {"bias": 0.3, "embedding": 0.5}.get(name, 0.4)

        params = jax.tree_util.tree_map_with_path(random, shapes_of(model))
        embedding = params["embedding"]
        last = params["decoder"]
        if not model.config.norm_first:
            last = last[f"layer_{model.config.decoder_layers - 1}"][
                "feed_forward_sublayer"
            ]
        last["norm"]["bias"] = 3 * embedding[EOS] / (embedding[EOS] ** 2).sum()
        return model, params

    return make
