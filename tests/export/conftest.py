"""A small model whose every parameter matters, and a tokeniser that is none."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxformer.batch import EOS, Batch
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.models.transformer.transformer import Transformer

VOCABULARY = 40
CONFIG = {
    "vocab_size": VOCABULARY, "num_layers": 2, "d_model": 16, "d_ff": 24,
    "num_heads": 2, "d_k": 8, "d_v": 8, "dropout": 0.0, "positions": "sinusoidal",
    "max_positions": 64, "norm_first": False, "dtype": "float32",
    "attention_bias": False, "activation": "relu", "logits_bias": False,
    "layer_norm_epsilon": 1e-6, "attention_window": None,
    "fused_attention": False,
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
def make_model() -> Callable[..., tuple[Transformer, dict]]:
    """Make a model with some fields of its config changed, and numpy parameters.

    All are random, biases and norms too, so that none can be lost or misplaced
    unnoticed. Probable next pieces are few, and EOS is among them now and then.
    """

    def make(**changes) -> tuple[Transformer, dict]:
        model = Transformer(TransformerConfig(**CONFIG | changes))
        row = jnp.ones((1, 2), jnp.int32)
        batch = Batch(row, row, row, row)
        params = jax.eval_shape(
            lambda key: nn.unbox(model.init(key, batch, train=False))["params"],
            jax.random.key(0),
        )
        draw = np.random.default_rng(1)

        def random(path, leaf) -> np.ndarray:
            noise = draw.normal(size=leaf.shape).astype(np.float32)
            name = path[-1].key
            if name == "scale":
                return 1 + 0.3 * noise
            return noise * {"bias": 0.3, "embedding": 0.5}.get(name, 0.4)

        params = jax.tree_util.tree_map_with_path(random, params)
        embedding = params["embedding"]
        last = params["decoder"]
        if not model.config.norm_first:
            last = last[f"layer_{model.config.num_layers - 1}"]["feed_forward_sublayer"]
        last["norm"]["bias"] = 3 * embedding[EOS] / (embedding[EOS] ** 2).sum()
        return model, params

    return make
