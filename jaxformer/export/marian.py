"""Models for Hugging Face Transformers, as Marian checkpoints.

`MarianMTModel.from_pretrained(folder)` computes our logits within 1e-4, and
`MarianTokenizer.from_pretrained(folder)` gives our ids for text that is in NFC, has
single spaces and does not begin with ">>". `jaxformer.export.marian_import` is the
exact inverse: parameters are permuted and multiplied by powers of two.

Order. Marian's sinusoids have all sines before all cosines; section 3.5 interleaves
them. So on every axis of size d_model our columns 0, 2, 4, ... become the first half
and 1, 3, 5, ... the second. Permuting all these axes alike leaves the model unchanged.

Scale. Marian's layer norm divides by sqrt(variance + 1e-5), ours by sqrt(variance +
epsilon). With an input c times as large it adds 1e-5 / c^2 to our variance. So between
the first and the last norm of a stack, parameters that write to the residual stream are
multiplied by c, and those that read it divided by c. c is the power of two nearest to
sqrt(1e-5 / epsilon): 4 for 1e-6, which turns 1e-5 into 6e-7. The first norm keeps 1e-5,
because positions cannot be scaled.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.batch import BOS, EOS, PAD, UNK, Tokenizer
from jaxformer.config import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.export import parameters
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
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: Tokenizer,
    options: TranslateOptions,
) -> None:
    """Write model, tokeniser and search settings into an existing folder.

    `params` are nested dicts of arrays. Transformers divides the log-probability of n
    pieces by n^alpha, the paper by ((5 + n) / 6)^alpha. Raises InputError, before it
    writes, for a model that Marian's layout cannot hold.
    """
    with parameters.optional_package("safetensors"):
        import safetensors.numpy
    model, vocab_size = config.model, len(params["embedding"])
    tensors = _tensors(model, params)
    content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(content)
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "forced_eos": EOS, "decoder_start": BOS}
    ids = {f"{name}_token_id": token for name, token in ids.items()}
    _write_json(folder / "config.json", {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        **{key: value for key, (value, _) in FIXED.items()},
        **{key: getattr(model, field) for key, field in SIZES.items()},
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "activation_function": model.activation,
        "dropout": model.dropout,
        "layer_norm_epsilon": model.layer_norm_epsilon,  # only for our own import
        **ids,
    })  # fmt: skip
    _write_json(folder / "generation_config.json", {
        "bad_words_ids": [[PAD], [UNK], [BOS]],  # our search never generates them
        "length_penalty": options.alpha,
        "max_length": min(LONGEST, model.max_positions),
        "num_beams": options.beam_size,
        **ids,
    })  # fmt: skip
    pieces = tokenizer.pieces()
    (folder / "source.spm").write_bytes(tokenizer.source_model)
    (folder / "target.spm").write_bytes(tokenizer.target_model)
    _write_json(folder / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": pieces[PAD], "unk_token": pieces[UNK],
        "bos_token": pieces[BOS], "eos_token": pieces[EOS],
        "separate_vocabs": False,
        "split_special_tokens": True,  # "</s>" in a text is text
        "clean_up_tokenization_spaces": False,
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "model_max_length": model.max_positions,
    })  # fmt: skip


def _tensors(config: TransformerConfig, params: dict) -> dict[str, np.ndarray]:
    """Return all parameters by Marian's names and layout; missing biases are 0."""
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

    def to_marian(self, ours: np.ndarray) -> np.ndarray:
        """Lay out our parameter as Marian does: [outputs, inputs], or one axis."""
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


# Of each layer: our name and Marian's, the axes of our kernel or scale, the power of c.
_LAYER = (
    ("self_attention/query", "self_attn.q_proj", "D|HK", -1),
    ("self_attention/key", "self_attn.k_proj", "D|HK", -1),
    ("self_attention/value", "self_attn.v_proj", "D|HK", -1),
    ("self_attention/output", "self_attn.out_proj", "HK|D", 1),
    ("self_attention_sublayer/norm", "self_attn_layer_norm", "D", 1),
    ("cross_attention/query", "encoder_attn.q_proj", "D|HK", -1),
    ("cross_attention/key", "encoder_attn.k_proj", "D|HK", 0),  # of the encoder's
    ("cross_attention/value", "encoder_attn.v_proj", "D|HK", 0),  # output, unscaled
    ("cross_attention/output", "encoder_attn.out_proj", "HK|D", 1),
    ("cross_attention_sublayer/norm", "encoder_attn_layer_norm", "D", 1),
    ("feed_forward/hidden", "fc1", "D|F", -1),
    ("feed_forward/output", "fc2", "F|D", 1),
    ("feed_forward_sublayer/norm", "final_layer_norm", "D", 1),
)
_AXES = {"D": "d_model", "H": "num_heads", "K": "d_k", "F": "d_ff"}


def layer_leaves(fields: Mapping[str, Any]) -> Iterator[Leaf]:
    """Yield every parameter of both stacks, attention biases included.

    `fields` are those of a `TransformerConfig`.
    """
    for stack in ("encoder", "decoder"):
        layers = fields[f"{stack}_layers"]
        parameters = itertools.product(range(layers), _LAYER)
        for index, (ours, theirs, axes, power) in parameters:
            if stack == "encoder" and ours.startswith("cross_attention"):
                continue
            # The embedding, which the first layer reads, and the output of a stack,
            # which the last norm writes, are not scaled.
            is_first, is_last = index == 0, index == layers - 1
            ends = ("self_attention/",) * is_first + ("feed_forward_sub",) * is_last
            power = 0 if ours.startswith(ends) else power
            for kind, suffix, letters, exponent in (
                ("kernel" if "|" in axes else "scale", "weight", axes, power),
                ("bias", "bias", axes.rpartition("|")[2], max(power, 0)),
            ):
                shape = tuple(fields[_AXES[each]] for each in letters if each != "|")
                our_name = f"{stack}/layer_{index}/{ours}/{kind}"
                name = f"model.{stack}.layers.{index}.{theirs}.{suffix}"
                yield Leaf(our_name, name, letters, exponent, shape)


def stream_scale(epsilon: float) -> np.float32:
    """Return c of this module's docstring, for layer norms that add `epsilon`."""
    return np.float32(2.0 ** round(math.log2(LAYER_NORM_EPSILON / epsilon) / 2))


def sines_first(d_model: int) -> np.ndarray:
    """Return which of our columns each of Marian's is: int [D]."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])
