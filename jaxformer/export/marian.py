"""Models for Hugging Face Transformers, as Marian checkpoints.

`MarianMTModel.from_pretrained(folder)` computes our logits within 1e-4, and
`MarianTokenizer.from_pretrained(folder)` gives our ids for text that is in NFC, has
single spaces and does not begin with ">>". Neither Transformers nor PyTorch is needed
to write the files. `jaxformer.export.marian_import` is the inverse; numbers are only
moved and multiplied by powers of two, so that a round trip is equal bit for bit.

Order. Marian's sinusoids have all sines first and all cosines behind; section 3.5
interleaves them. A permutation of the d_model columns leaves the model unchanged if
everything that reads or writes them is permuted alike. So on every axis of size d_model
our columns 0, 2, 4, ... become the first half and 1, 3, 5, ... the second.

Scale. Marian's layer norm divides by sqrt(variance + 1e-5), ours by sqrt(variance +
epsilon). If its input is c times as large as ours, it adds 1e-5 / c^2 to our variance.
So between the first and the last norm of a stack the residual stream is made c times as
large: parameters that write to it are multiplied by c, those that read it are divided
by c. c is the power of two nearest to sqrt(1e-5 / epsilon): 4 for 1e-6, which makes
6e-7 of 1e-5. The first norm keeps 1e-5, because positions cannot be scaled.
"""

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.batch import BOS, EOS, PAD, UNK, Tokenizer
from jaxformer.export import parameters, require_transformer
from jaxformer.models.transformer.config import TransformerConfig

LONGEST = 512  # pieces that Transformers' search may generate
LAYER_NORM_EPSILON = 1e-5  # PyTorch's, of every Marian model
EMBEDDING = "model.shared.weight"  # [V, D]
LOGITS_BIAS = "final_logits_bias"  # [1, V]
# Keys of config.json and the field of `TransformerConfig` that each one sets.
SIZES = {
    "d_model": "d_model",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "max_position_embeddings": "max_positions",
}
# Keys of config.json that our model fixes: the value, and that of a missing key.
FIXED = {
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "share_encoder_decoder_embeddings": (True, True),
    "tie_word_embeddings": (True, True),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}


def export_marian(
    config: TransformerConfig,
    params: dict,
    tokenizer: Tokenizer,
    output: Path,
    *,
    source_language: str,
    target_language: str,
    beam_size: int,
    alpha: float,
) -> None:
    """Write model, tokeniser and search settings into the existing folder `output`.

    `params` are nested dicts of arrays; the languages are codes such as "en".
    Transformers divides a log-probability by n^alpha, the paper by ((5 + n) / 6)^alpha
    of n pieces. Raises InputError for a model that Marian's layout cannot hold, before
    anything is written.
    """
    require_transformer(config)
    with parameters.optional_package("safetensors"):
        import safetensors.numpy
    vocab_size = len(params["embedding"])
    tensors = marian_tensors(config, params)
    content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    (output / "model.safetensors").write_bytes(content)
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "forced_eos": EOS, "decoder_start": BOS}
    ids = {f"{name}_token_id": token for name, token in ids.items()}
    _write_json(output / "config.json", {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        **{key: value for key, (value, _) in FIXED.items()},
        **{key: getattr(config, field) for key, field in SIZES.items()},
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon,  # only for our own import
        **ids,
    })  # fmt: skip
    _write_json(output / "generation_config.json", {
        "bad_words_ids": [[PAD], [UNK], [BOS]],  # our search never generates them
        "length_penalty": alpha,
        "max_length": min(LONGEST, config.max_positions),
        "num_beams": beam_size,
        **ids,
    })  # fmt: skip
    pieces = tokenizer.pieces()
    (output / "source.spm").write_bytes(tokenizer.source_model)
    (output / "target.spm").write_bytes(tokenizer.target_model)
    _write_json(output / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    _write_json(output / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": pieces[PAD], "unk_token": pieces[UNK],
        "bos_token": pieces[BOS], "eos_token": pieces[EOS],
        "separate_vocabs": False,
        "split_special_tokens": True,  # "</s>" in a text is text
        "clean_up_tokenization_spaces": False,
        "source_lang": source_language,
        "target_lang": target_language,
        "model_max_length": config.max_positions,
    })  # fmt: skip


def marian_tensors(config: TransformerConfig, params: dict) -> dict[str, np.ndarray]:
    """Return all parameters by Marian's names and in its layout, float32.

    Biases that the model does not have are zero. Raises InputError for a model that the
    layout cannot hold.
    """
    head_size = Fraction(config.d_model, config.num_heads)
    parameters.require_fields("Marian's layout", config, {
        "positions": ("sinusoidal",),
        "norm_first": (False,),
        "attention_window": (None,),
        "activation": ("relu", "swish"),
        "d_k": (head_size,),
        "d_v": (head_size,),
    })  # fmt: skip
    left = parameters.flat(params)
    tensors = {
        EMBEDDING: left.pop("embedding").take(sines_first(config.d_model), 1),  # [V, D]
        LOGITS_BIAS: np.zeros((1, len(params["embedding"])), np.float32),
    }
    if "logits_bias" in left:
        tensors[LOGITS_BIAS] = left.pop("logits_bias")[None]
    scale = stream_scale(config.layer_norm_epsilon)
    for leaf in layer_leaves(vars(config)):
        ours = np.zeros(leaf.shape, np.float32)
        if config.attention_bias or not leaf.is_attention_bias:
            ours = left.pop(leaf.ours) * scale**leaf.power
        tensors[leaf.name] = leaf.to_marian(ours)
    parameters.require_none_left("Marian's layout", left)
    return tensors


def _write_json(file: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")


class Leaf(NamedTuple):
    """One parameter of a layer, ours and Marian's."""

    ours: str  # "encoder/layer_0/self_attention/query/kernel"
    name: str  # "model.encoder.layers.0.self_attn.q_proj.weight"
    axes: str  # ours, by letter; "|" between inputs and outputs of a matrix
    power: int  # of c, by which Marian's is multiplied
    shape: tuple[int, ...]  # ours

    @property
    def is_attention_bias(self) -> bool:
        """Whether a model without `attention_bias` lacks it."""
        return "_attention/" in self.ours and self.ours.endswith("/bias")

    @property
    def marian_shape(self) -> tuple[int, ...]:
        """Its shape in Marian: [outputs, inputs], or one axis."""
        return self.to_marian(np.empty(self.shape)).shape

    def to_marian(self, ours: np.ndarray) -> np.ndarray:
        """Lay out our parameter as Marian does."""
        inputs, bar, outputs = self.axes.partition("|")
        for axis, letter in enumerate(inputs + outputs):
            if letter == "D":
                ours = ours.take(sines_first(ours.shape[axis]), axis)
        rows = math.prod(ours.shape[: len(inputs)])
        return np.ascontiguousarray(ours.reshape(rows, -1).T) if bar else ours.ravel()

    def from_marian(self, theirs: np.ndarray) -> np.ndarray:
        """Undo `to_marian`."""
        ours = np.empty(theirs.size, theirs.dtype)
        ours[self.to_marian(np.arange(theirs.size).reshape(self.shape))] = theirs
        return ours.reshape(self.shape)


def layer_leaves(fields: Mapping[str, Any]) -> Iterator[Leaf]:
    """Yield every parameter of both stacks, attention biases included.

    `fields` are those of a `TransformerConfig`.
    """
    sizes = {letter: fields[field] for letter, field in _AXES.items()}
    for stack in ("encoder", "decoder"):
        layers = fields[f"{stack}_layers"]
        for index in range(layers):
            parts = _layer(stack, is_first=index == 0, is_last=index == layers - 1)
            for ours, name, axes, power in parts:
                shape = tuple(sizes[letter] for letter in axes.replace("|", ""))
                ours = f"{stack}/layer_{index}/{ours}"
                name = f"model.{stack}.layers.{index}.{name}"
                yield Leaf(ours, name, axes, power, shape)


_AXES = {"D": "d_model", "H": "num_heads", "K": "d_k", "F": "d_ff"}
_Parts = Iterator[tuple[str, str, str, int]]  # our name, Marian's, axes, power of c


def _layer(stack: str, *, is_first: bool, is_last: bool) -> _Parts:
    # Neither the embedding, which the first self-attention reads, is scaled, nor the
    # output of the encoder, from which cross-attention takes keys and values.
    reads, writes = (0, 0) if is_first else (-1, 1)
    yield from _attention("self_attention", "self_attn", reads, reads, writes)
    if stack == "decoder":
        yield from _attention("cross_attention", "encoder_attn", -1, 0, 1)
    yield from _linear("feed_forward/hidden", "fc1", "D|F", -1)
    yield from _linear("feed_forward/output", "fc2", "F|D", 1)
    yield from _norm("feed_forward_sublayer", "final_layer_norm", 0 if is_last else 1)


def _attention(ours: str, theirs: str, query: int, memory: int, output: int) -> _Parts:
    for name, power in (("query", query), ("key", memory), ("value", memory)):
        yield from _linear(f"{ours}/{name}", f"{theirs}.{name[0]}_proj", "D|HK", power)
    yield from _linear(f"{ours}/output", f"{theirs}.out_proj", "HK|D", output)
    yield from _norm(f"{ours}_sublayer", f"{theirs}_layer_norm", 1)


def _linear(ours: str, theirs: str, axes: str, power: int) -> _Parts:
    yield f"{ours}/kernel", f"{theirs}.weight", axes, power
    yield f"{ours}/bias", f"{theirs}.bias", axes.partition("|")[2], max(power, 0)


def _norm(ours: str, theirs: str, power: int) -> _Parts:
    yield f"{ours}/norm/scale", f"{theirs}.weight", "D", power
    yield f"{ours}/norm/bias", f"{theirs}.bias", "D", power


def stream_scale(epsilon: float) -> np.float32:
    """Return c of this module's docstring, for layer norms that add `epsilon`."""
    return np.float32(2.0 ** round(math.log2(LAYER_NORM_EPSILON / epsilon) / 2))


def sines_first(d_model: int) -> np.ndarray:
    """Return which of our columns each of Marian's is: int [D]."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])
