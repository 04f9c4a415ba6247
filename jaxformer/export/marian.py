"""A folder for Hugging Face Transformers: Marian's layout of the paper's model.

`MarianMTModel.from_pretrained(folder)` computes our logits, within rounding and a hair:
its layer norm adds 1e-5 to the variance, and a run `model.layer_norm_epsilon`. How
`jaxformer.export.marian_layout` scales for that leaves a difference at two norms; a run
with 1e-5 has none. `MarianTokenizer.from_pretrained(folder)` gives our ids for text
that is normalised already (NFC, single spaces) and does not begin with ">>".

Written by hand and with safetensors, so neither Transformers nor PyTorch is needed.
Used by `--mode=export --format=huggingface`.
"""

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.errors import InputError
from jaxformer.export import require_transformer
from jaxformer.export.marian_files import write_tensors
from jaxformer.export.marian_layout import (
    EMBEDDING,
    LOGITS_BIAS,
    marian_shape,
    places,
    sines_first,
    stream_scale,
    to_marian,
)
from jaxformer.models.transformer.config import TransformerConfig

LONGEST = 512  # pieces of a translation, that Transformers' search may write


class Tokenizer(Protocol):
    """What export needs of a tokeniser."""

    source_model: bytes  # SentencePiece
    target_model: bytes

    def pieces(self) -> list[str]:
        """The piece of every id, in their order."""


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
    require_expressible(config)
    write_tensors(output, marian_tensors(config, params))
    _write_json(output / "config.json", marian_config(config, len(params["embedding"])))
    _write_json(
        output / "generation_config.json",
        {
            "bad_words_ids": [[PAD], [UNK], [BOS]],  # our search never writes them
            "bos_token_id": BOS,
            "decoder_start_token_id": BOS,
            "eos_token_id": EOS,
            "forced_eos_token_id": EOS,
            "length_penalty": alpha,
            "max_length": min(LONGEST, config.max_positions),
            "num_beams": beam_size,
            "pad_token_id": PAD,
        },
    )
    _write_tokenizer(
        output,
        tokenizer,
        source_lang=source_language,
        target_lang=target_language,
        model_max_length=config.max_positions,
    )


def require_expressible(config: TransformerConfig) -> None:
    """Raise InputError unless Marian's layout can hold such a model."""
    size, rest = divmod(config.d_model, config.num_heads)
    wrong = None
    if config.positions != "sinusoidal":
        wrong = f"model.positions={config.positions!r} instead of 'sinusoidal'"
    elif config.norm_first:
        wrong = "model.norm_first=True instead of the paper's post-norm"
    elif rest or config.d_k != size or config.d_v != size:
        wrong = (
            f"model.d_k={config.d_k} and model.d_v={config.d_v} instead of "
            f"d_model / num_heads = {config.d_model / config.num_heads:g} for both"
        )
    elif config.attention_window is not None:
        wrong = (
            f"model.attention_window={config.attention_window} instead of None, "
            "attention to all positions"
        )
    if wrong:
        raise InputError(
            f"Marian's layout cannot hold a model with {wrong}; choose another --format"
        )


def marian_tensors(config: TransformerConfig, params: dict) -> dict[str, np.ndarray]:
    """All parameters by Marian's names and in its layout, float32.

    It has biases that the paper does not have; they are zero.
    """
    sizes = sizes_of(config)
    factor = stream_scale(config.layer_norm_epsilon)
    embedding = np.asarray(params["embedding"], np.float32)  # [V, D]
    bias = params["logits_bias"] if config.logits_bias else np.zeros(len(embedding))
    tensors = {
        EMBEDDING: np.take(embedding, sines_first(config.d_model), axis=1),
        LOGITS_BIAS: np.asarray(bias, np.float32)[None],  # [1, V]
    }
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for place in places(layers):
        if place.is_attention_bias and not config.attention_bias:
            shape = marian_shape(place.axes, sizes)
            tensors[place.name] = np.zeros(shape, np.float32)
            continue
        leaf = params
        for key in place.path:
            leaf = leaf[key]
        scale = np.float32(place.scale(factor, layers))
        tensors[place.name] = to_marian(np.float32(leaf) * scale, place.axes)
    return tensors


def sizes_of(config: TransformerConfig) -> dict[str, int]:
    """The sizes of axes, by their letters."""
    return {
        "D": config.d_model, "H": config.num_heads, "K": config.d_k, "F": config.d_ff,
    }  # fmt: skip


def marian_config(config: TransformerConfig, vocab_size: int) -> dict[str, Any]:
    """`config.json`, with every key that has a default there which is not ours.

    The last is for the way back alone: Transformers has no place for it.
    """
    stacks = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (
            ("layers", config.layers(stack)),
            ("ffn_dim", config.d_ff),
            ("attention_heads", config.num_heads),
            ("layerdrop", 0.0),
        )
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "d_model": config.d_model,
        **stacks,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "static_position_embeddings": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "layer_norm_epsilon": config.layer_norm_epsilon,
    }


def _write_tokenizer(output: Path, tokenizer: Tokenizer, **settings: Any) -> None:
    pieces = tokenizer.pieces()
    (output / "source.spm").write_bytes(tokenizer.source_model)
    (output / "target.spm").write_bytes(tokenizer.target_model)
    _write_json(output / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    _write_json(
        output / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "pad_token": pieces[PAD],
            "unk_token": pieces[UNK],
            "bos_token": pieces[BOS],
            "eos_token": pieces[EOS],
            "separate_vocabs": False,
            "split_special_tokens": True,  # "</s>" in a text is text
            "clean_up_tokenization_spaces": False,
            **settings,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
