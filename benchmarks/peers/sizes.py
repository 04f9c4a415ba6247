"""What the contestants of benchmarks/decode.py are given: model, parameters, work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from flax import linen as nn

from jaxformer.batch import EOS
from jaxformer.models.architectures import make_model
from jaxformer.models.sequence_model import Model
from jaxformer.models.transformer.config import TransformerConfig

# From ids of sources, EOS left out, to all tokens of their translations.
Decode = Callable[[Sequence[Sequence[int]]], list[list[int]]]
NEVER = -1e9  # a logit


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The model and the work; the paper's base model by default."""

    num_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    vocabulary: int = 37_000
    sentences: int = 32
    source: int = 20  # tokens of each sentence, EOS included
    target: int = 30  # tokens of each translation, exactly

    def config(self) -> TransformerConfig:
        """The same as a config of ours."""
        head = self.d_model // self.num_heads
        return TransformerConfig(
            architecture="transformer", encoder_layers=self.num_layers,
            decoder_layers=self.num_layers, d_model=self.d_model, d_ff=self.d_ff,
            num_heads=self.num_heads, d_k=head, d_v=head, dropout=0.0,
            positions="sinusoidal", max_positions=512,
            norm_first=False, dtype="float32", attention_bias=False, activation="relu",
            logits_bias=True, layer_norm_epsilon=1e-6, attention_window=None,
            fused_attention=False,
        )  # fmt: skip

    def sources(self) -> list[list[int]]:
        """Random ids of words, without EOS."""
        draw = np.random.default_rng(1)
        shape = (self.sentences, self.source - 1)
        return draw.integers(EOS + 1, self.vocabulary, shape).tolist()


def random_model(config: TransformerConfig, vocabulary: int) -> tuple[Model, dict]:
    """Make a model with random parameters, numpy arrays; it never says EOS by itself.

    The bias of the logits sees to that, so that every search takes all its steps.
    """
    model = make_model(config, vocab_size=vocabulary, rematerialise=False)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0)))
    draw = np.random.default_rng(0)

    def random(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if path[-1].key == "scale":
            return np.ones(leaf.shape, np.float32)
        if len(leaf.shape) < 2 or path[-1].key == "bias":
            return np.zeros(leaf.shape, np.float32)
        noise = draw.standard_normal(leaf.shape, np.float32)
        return noise * np.float32(config.d_model**-0.5)

    params = jax.tree_util.tree_map_with_path(random, shapes)
    params["logits_bias"][EOS] = NEVER
    return model, params
