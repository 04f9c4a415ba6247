"""Models for Hugging Face Transformers, as Marian checkpoints.

`MarianMTModel.from_pretrained(folder)` computes our logits within 1e-4, and
`MarianTokenizer.from_pretrained(folder)` gives our ids for text that is in NFC, has
single spaces and does not begin with ">>"; the program of the model card prepares any
text so. `jaxformer.exports.marian_import` is the exact inverse: parameters are permuted
and multiplied by powers of two.

Order. Marian's sinusoids have all sines before all cosines; section 3.5 interleaves
them. So on every axis of size d_model our columns 0, 2, 4, ... become the first half
and 1, 3, 5, ... the second. Permuting all these axes alike leaves the model unchanged.

Scale. Marian's layer norm divides by sqrt(variance + 1e-5), ours by sqrt(variance +
epsilon). With an input c times as large it adds 1e-5 / c^2 to our variance. So between
the first and the last norm of a stack, parameters that write to the residual stream are
multiplied by c, and those that read it divided by c. c is the power of two nearest to
sqrt(1e-5 / epsilon): 4 for 1e-6, which turns 1e-5 into 6e-7. The first norm keeps 1e-5,
because positions cannot be scaled. So a larger epsilon than 1e-5 is refused.
"""

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import parameters
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.system.errors import packages_of
from jaxformer.tokens import BOS, EOS, PAD, UNK, AnyTokenizer

Fields = Mapping[str, Any]  # of a `TransformerConfig`
LONGEST = 512  # pieces that Transformers' search may generate
LAYER_NORM_EPSILON = 1e-5  # PyTorch's, of every Marian model
# Our embeddings [V, D] by Marian's names, for each `model.tied_embeddings`.
EMBEDDINGS = {
    "all": {"model.shared.weight": "embedding"},
    "target": {
        "model.encoder.embed_tokens.weight": "source_embedding",
        "model.decoder.embed_tokens.weight": "embedding",
    },
}
EMBEDDINGS["none"] = EMBEDDINGS["target"] | {"lm_head.weight": "output_embedding"}
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
# Keys of config.json by `model.tied_embeddings`, (True, True) where they are missing.
TIES = {
    "all": (True, True),
    "target": (False, True),
    "none": (False, False),
}
TIE_KEYS = "share_encoder_decoder_embeddings", "tie_word_embeddings"
# Keys of config.json that our model fixes: the value, and that of a missing key.
FIXED = {
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}


def export_marian(
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: AnyTokenizer,
    options: TranslateOptions,
) -> None:
    """Write model, tokeniser and search settings into an existing folder.

    `params` are nested dicts of arrays. Transformers divides the log-probability of n
    pieces by n^alpha, whatever `options.length_penalty` says. Raises InputError, before
    it writes, for a model that Marian's layout cannot hold.
    """
    with packages_of("export"):
        import safetensors.numpy
    model, pieces = config.model, tokenizer.pieces()
    content = safetensors.numpy.save(_tensors(model, params), {"format": "pt"})
    (folder / "model.safetensors").write_bytes(content)
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "forced_eos": EOS, "decoder_start": BOS}
    ids = {f"{name}_token_id": token for name, token in ids.items()}
    sides = {"vocab.json": tokenizer.source_pieces(), "target_vocab.json": pieces}
    are_separate = sides["vocab.json"] != pieces
    if not are_separate:
        del sides["target_vocab.json"]
    files: dict[str, dict] = {
        name: {piece: index for index, piece in enumerate(side)}
        for name, side in sides.items()
    }
    files["config.json"] = {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        **{key: value for key, (value, _) in FIXED.items()},
        **dict(zip(TIE_KEYS, TIES[model.tied_embeddings], strict=True)),
        **{key: getattr(model, field) for key, field in SIZES.items()},
        "vocab_size": len(sides["vocab.json"]),
        "decoder_vocab_size": len(pieces),
        "activation_function": model.activation,
        "dropout": model.dropout,
        "layer_norm_epsilon": model.layer_norm_epsilon,  # only for our own import
        **ids,
    }
    files["generation_config.json"] = {
        "bad_words_ids": [[PAD], [UNK], [BOS]],  # our search never generates them
        "length_penalty": options.alpha,
        "no_repeat_ngram_size": options.no_repeat_ngram,
        "max_length": min(LONGEST, model.max_positions),
        "num_beams": options.beam_size,
        **ids,
    }
    (folder / "source.spm").write_bytes(tokenizer.source_model)
    (folder / "target.spm").write_bytes(tokenizer.target_model)
    files["tokenizer_config.json"] = {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": pieces[PAD], "unk_token": pieces[UNK],
        "bos_token": pieces[BOS], "eos_token": pieces[EOS],
        "separate_vocabs": are_separate,
        "split_special_tokens": True,  # "</s>" in a text is text
        "clean_up_tokenization_spaces": False,
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "model_max_length": model.max_positions,
    }  # fmt: skip
    for name, values in files.items():
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _tensors(config: TransformerConfig, params: dict) -> dict[str, np.ndarray]:
    """Return all parameters by Marian's names and layout; missing biases are 0."""
    head_size = Fraction(config.d_model, config.num_heads)
    parameters.require_fields("Marian's layout", config, {
        "positions": ("sinusoidal",),
        "norm_first": (False,),
        "attention_window": (None,),
        "encoder_projected_keys": (None,),
        "activation": ("relu", "swish"),
        "d_k": (head_size,),
        "d_v": (head_size,),
        "layer_norm_epsilon": (min(config.layer_norm_epsilon, LAYER_NORM_EPSILON),),
    })  # fmt: skip
    left, scale = parameters.flat(params), stream_scale(config.layer_norm_epsilon)
    order = sines_first(config.d_model)
    bias = left.pop("logits_bias", np.zeros(len(left["embedding"]), np.float32))
    tensors = {LOGITS_BIAS: bias[None]}
    for name, ours in EMBEDDINGS[config.tied_embeddings].items():
        tensors[name] = left.pop(ours).take(order, 1)
    for leaf in layer_leaves(vars(config)):
        ours = left.pop(leaf.ours, np.zeros(leaf.shape, np.float32))
        tensors[leaf.name] = ours.ravel()[leaf.order] * scale**leaf.power
    assert not left, left  # `require_fields` has refused what would be
    return tensors


class Leaf(NamedTuple):
    """One parameter of a layer, ours and Marian's: `ours.ravel()[order]`."""

    ours: str  # "encoder/layer_0/self_attention/query/kernel"
    name: str  # "model.encoder.layers.0.self_attn.q_proj.weight"
    shape: list[int]  # ours
    order: np.ndarray  # indices, in Marian's shape: [outputs, inputs], or one axis
    power: int  # of c, by which Marian's is multiplied


# Of each layer: our name and Marian's, the axes of our kernel (inputs, then outputs) or
# scale, and the power of c.
_LAYER = (
    ("self_attention/query", "self_attn.q_proj", "D HK", -1),
    ("self_attention/key", "self_attn.k_proj", "D HK", -1),
    ("self_attention/value", "self_attn.v_proj", "D HK", -1),
    ("self_attention/output", "self_attn.out_proj", "HK D", 1),
    ("self_attention_sublayer/norm", "self_attn_layer_norm", "D", 1),
    ("cross_attention/query", "encoder_attn.q_proj", "D HK", -1),
    ("cross_attention/key", "encoder_attn.k_proj", "D HK", 0),  # of the encoder's
    ("cross_attention/value", "encoder_attn.v_proj", "D HK", 0),  # output, unscaled
    ("cross_attention/output", "encoder_attn.out_proj", "HK D", 1),
    ("cross_attention_sublayer/norm", "encoder_attn_layer_norm", "D", 1),
    ("feed_forward/hidden", "fc1", "D F", -1),
    ("feed_forward/output", "fc2", "F D", 1),
    ("feed_forward_sublayer/norm", "final_layer_norm", "D", 1),
)
_AXES = {"D": "d_model", "H": "num_heads", "K": "d_k", "F": "d_ff"}


def layer_leaves(fields: Fields) -> Iterator[Leaf]:
    """Yield each parameter that a `TransformerConfig` of these fields may have."""
    for stack in ("encoder", "decoder"):
        layers = fields[f"{stack}_layers"]
        for index, (ours, theirs, axes, power) in product(range(layers), _LAYER):
            if stack == "encoder" and ours.startswith("cross_attention"):
                continue
            # The embedding, which the first layer reads, and the output of a stack,
            # which the last norm writes, are not scaled.
            is_first, is_last = index == 0, index == layers - 1
            ends = ("self_attention/",) * is_first + ("feed_forward_sub",) * is_last
            power = 0 if ours.startswith(ends) else power
            for kind, suffix, letters, exponent in (
                ("kernel" if " " in axes else "scale", "weight", axes, power),
                ("bias", "bias", axes.split()[-1], max(power, 0)),
            ):
                our_name = f"{stack}/layer_{index}/{ours}/{kind}"
                name = f"model.{stack}.layers.{index}.{theirs}.{suffix}"
                yield Leaf(our_name, name, *_order(letters, fields), exponent)


def _order(axes: str, fields: Fields) -> tuple[list[int], np.ndarray]:
    """Return shape and `order` of a parameter of ours with these axes."""
    sizes = [[fields[_AXES[letter]] for letter in group] for group in axes.split()]
    shape = [size for group in sizes for size in group]
    order = np.arange(math.prod(shape)).reshape([*map(math.prod, sizes)])
    for axis, group in enumerate(axes.split()):
        if group == "D":
            order = order.take(sines_first(order.shape[axis]), axis)
    return shape, np.ascontiguousarray(order.T)


def stream_scale(epsilon: float) -> np.float32:
    """Return c of this module's docstring, for layer norms that add `epsilon`."""
    return np.float32(2.0 ** round(math.log2(LAYER_NORM_EPSILON / epsilon) / 2))


def sines_first(d_model: int) -> np.ndarray:
    """Return which of our columns each of Marian's is: int [D]."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])
