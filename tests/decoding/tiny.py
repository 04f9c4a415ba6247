"""Tiny models with random parameters, and a tokeniser of numbers."""

import re
from functools import cache, partial

import jax
import numpy as np

from jaxformer.batch import Batch
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.models.sequence_model import Model
from jaxformer.tokens import BOS, EOS, PAD, UNK
from jaxformer.training.sharding import batch_sharding
from tests.models.tiny import VOCABULARY, model_of, shapes_of
from tests.training.setups import mesh_of

FIRST_WORD = EOS + 1
EXTRA = 5  # extra_length of `open_translator`
MODEL = model_of()  # the smallest that translates different sentences differently


@cache
def params_of(model: Model, seed: int = 0) -> dict:
    """Random parameters; the last norm keeps a model from repeating what it reads."""
    draw = np.random.default_rng(seed)

    def leaf(path, shape):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        deviation = 0.05 if len(shape.shape) == 1 else 0.25
        return draw.normal(mean, deviation, shape.shape).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(leaf, shapes_of(model))
    last = params["decoder"][f"layer_{model.config.decoder_layers - 1}"]
    norm = last["feed_forward_sublayer"]["norm"]
    norm["scale"] = draw.normal(0.0, 2.0, norm["scale"].shape).astype(np.float32)
    return params


def padded(rows, length: int) -> np.ndarray:
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


class Numbers:
    """A sentence is numbers, each of them an id; punctuation is not spoken.

    A snowman is unknown.
    """

    def encode(self, sentences):
        found = (re.findall(r"\d+|☃", sentence) for sentence in sentences)
        return [[*(UNK if w == "☃" else int(w) for w in each), EOS] for each in found]

    encode_target, target_start = encode, ()

    def decode(self, ids):
        ids = list(ids)
        return " ".join(map(str, ids[: ids.index(EOS)]))

    def pieces(self):
        names = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
        return [names.get(i, str(i)) for i in range(VOCABULARY)]

    source_pieces = pieces

    def is_unknown(self, ids):
        return {*ids} == {UNK, EOS}

    def for_target(self, tag):
        return self

    def language_code(self, text):
        return ">>5<<" if text.startswith(">>5<<") else ""


def random_sentences(count: int, *, longest: int, seed: int = 0) -> list[str]:
    """Sentences of 1 to `longest` words, both among them."""
    draw = np.random.default_rng(seed)
    lengths = [1, longest, *draw.integers(1, longest + 1, count - 2)]
    words = [draw.integers(FIRST_WORD, VOCABULARY, n) for n in lengths]
    return [" ".join(map(str, row)) for row in words]


@partial(jax.jit, static_argnums=0)
def _log_probabilities(model, params, batch):
    return jax.nn.log_softmax(model.logits(params, batch))


def teacher_forced(model, params, source: str, target: str, room=32) -> np.ndarray:
    """Log-probabilities [T, V] of what follows each beginning of `target`.

    Both sides are padded to `room` pieces.
    """
    ids = Numbers().encode([source, target])
    sides = [padded([side], room) for side in ids]
    batch = Batch(*sides, *((side != PAD).astype(np.int32) for side in sides))
    return np.asarray(_log_probabilities(model, params, batch))[0, : len(ids[1])]


SENTENCES = random_sentences(9, longest=15)  # of one bucket; four share a batch


def open_translator(
    *,
    models=(MODEL,),
    seeds=(0,),
    beam_size=3,
    rows=None,
    searches=1,
    choose=None,
    **options,
) -> Translator:
    options = TranslateOptions(
        beam_size=beam_size, alpha=0.6, extra_length=EXTRA, batch_tokens=64, **options
    )
    params = [params_of(*each) for each in zip(models, seeds, strict=True)]
    how = {"language": "en", "options": options, "choose": choose}
    how["rows"] = rows or batch_sharding(mesh_of((1, 1, 1)))
    how["searches"] = searches
    return Translator(models, params, Numbers(), **how)
