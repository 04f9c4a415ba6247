"""A Marian checkpoint of Hugging Face, such as an OPUS-MT model, as parameters of ours.

Reads `config.json`, the safetensors and the tokeniser's files of a folder; the inverse
of `jaxformer.export.marian`. Published models differ from the paper in what
`TransformerConfig` has fields for: biases in attention and of the logits, the
activation, the layer norm's epsilon. What it has no field for is refused. Used by
`--mode=import`.

Ids become ours: PAD, UNK, BOS, EOS, then all other pieces in their order. Published
models start the decoder with their padding piece; its row of the embedding is then that
of our BOS, and of our PAD too, which no sentence holds.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import InputError
from jaxformer.export.marian_files import Tensors, read_bytes, read_json
from jaxformer.export.marian_layout import (
    EMBEDDING,
    LAYER_NORM_EPSILON,
    LOGITS_BIAS,
    from_marian,
    marian_shape,
    places,
    sines_first,
    stream_scale,
)

# What config.json has to say: the value, and what it means where the key is missing.
_REQUIRED = {
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "share_encoder_decoder_embeddings": (True, True),
    "tie_word_embeddings": (True, True),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}
# One matrix under several names, of which a file has one or more.
_EMBEDDINGS = (
    EMBEDDING, "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)  # fmt: skip
_STACKS = ("encoder", "decoder")
_UNKNOWN = "<unk>"


class MarianCheckpoint(NamedTuple):
    """What a folder holds, in our terms."""

    model: dict[str, Any]  # TransformerConfig, without dropout and dtype
    params: dict  # nested dicts of float32 arrays
    pieces: list[str]  # by our id
    source_model: bytes  # SentencePiece
    target_model: bytes


def read_marian(folder: Path) -> MarianCheckpoint:
    """Read a folder. Raises InputError for what is missing, damaged or inexpressible.

    The parameters are those of a `Transformer` with `model` and `len(pieces)` ids.
    """
    if not folder.is_dir():
        raise InputError(
            f"--input={folder} is no folder; download the model into one first, for "
            "example with: hf download Helsinki-NLP/opus-mt-en-de --local-dir FOLDER"
        )
    settings = _Settings(folder)
    pieces, rows = _vocabulary(folder, settings)
    tensors = Tensors(folder)
    layers = {stack: settings.size(f"{stack}_layers") for stack in _STACKS}
    model = {
        "architecture": "transformer",
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "d_model": settings.size("d_model"),
        "d_ff": settings.size_of_both("ffn_dim"),
        "num_heads": settings.size_of_both("attention_heads"),
        "d_k": settings.head_size(),
        "d_v": settings.head_size(),
        "positions": "sinusoidal",
        "max_positions": settings.size("max_position_embeddings"),
        "norm_first": False,
        "attention_window": None,
        "attention_bias": any(
            place.is_attention_bias and tensors.take(place.name).any()
            for place in places(layers)
        ),
        "activation": settings.activation(),
        "logits_bias": LOGITS_BIAS in tensors and bool(tensors.take(LOGITS_BIAS).any()),
        "layer_norm_epsilon": settings.epsilon(),
    }
    params = _parameters(tensors, model, settings.size("vocab_size"), rows)
    tensors.require_all_taken()
    files = (folder / "source.spm", folder / "target.spm")
    return MarianCheckpoint(model, params, pieces, *map(read_bytes, files))


def _parameters(
    tensors: Tensors, model: dict[str, Any], vocab_size: int, rows: np.ndarray
) -> dict:
    """Our parameters, their vocabulary's rows as `rows` says: int [V]."""
    d = model["d_model"]
    layers = {stack: model[f"{stack}_layers"] for stack in _STACKS}
    sizes = {"D": d, "H": model["num_heads"], "K": model["d_k"], "F": model["d_ff"]}
    embedding = tensors.take_same(_EMBEDDINGS, (vocab_size, d))
    params: dict = {
        "embedding": embedding[rows][:, np.argsort(sines_first(d))]  # [V, D]
    }
    if model["logits_bias"]:
        params["logits_bias"] = tensors.take(LOGITS_BIAS, (1, vocab_size))[0, rows]
    factor = stream_scale(model["layer_norm_epsilon"])
    for place in places(layers):
        shape = marian_shape(place.axes, sizes)
        theirs = tensors.take(place.name, shape)
        if place.is_attention_bias and not model["attention_bias"]:
            continue
        within = params
        for key in place.path[:-1]:
            within = within.setdefault(key, {})
        scale = np.float32(1.0 / place.scale(factor, layers))
        within[place.path[-1]] = from_marian(theirs, place.axes, sizes) * scale
    tensors.require_sinusoids(d)
    return params


def _vocabulary(folder: Path, settings: "_Settings") -> tuple[list[str], np.ndarray]:
    """The pieces by our ids, and which row of theirs each of them has: int [V]."""
    file, size = folder / "vocab.json", settings.size("vocab_size")
    ids = read_json(file)
    names = {index: piece for piece, index in ids.items()}
    if names.keys() != set(range(size)) or len(ids) != size:
        raise InputError(
            f"{file} does not name the ids 0 to {size - 1}, one piece each, as "
            "vocab_size in config.json asks; put back the files of one checkpoint"
        )
    if _UNKNOWN not in ids:
        raise InputError(f"{file} has no piece {_UNKNOWN!r}; import another model")
    pad, start, eos = (
        settings.size(f"{name}_token_id", least=0, most=size - 1)
        for name in ("pad", "decoder_start", "eos")
    )
    unknown = ids[_UNKNOWN]
    reserved = [pad, unknown, start, eos]
    others = [index for index in range(size) if index not in reserved]
    pieces = [
        names[pad] if pad not in (unknown, eos) else _new_name("<pad>", ids),
        _UNKNOWN,
        names[start] if reserved.count(start) == 1 else _new_name("<s>", ids),
        names[eos],
        *(names[index] for index in others),
    ]
    return pieces, np.array(reserved + others)


def _new_name(name: str, taken: dict[str, int]) -> str:
    while name in taken:
        name = f"<{name}>"
    return name


class _Settings:
    """`config.json`, and complaints about it."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError unless its model is one that ours can be."""
        self.file = folder / "config.json"
        self.values = read_json(self.file)
        for key, (wanted, missing) in _REQUIRED.items():
            if self.values.get(key, missing) != wanted:
                raise self.refuse(key, f"is not {wanted!r}")

    def refuse(self, key: str, fault: str) -> InputError:
        """A sentence about a key."""
        return InputError(
            f"{self.file} says {key}={self.values.get(key)!r}, which {fault}; the "
            "paper's model cannot be that, so import another one"
        )

    def size(self, key: str, *, least: int = 1, most: int | None = None) -> int:
        """A whole number."""
        value = self.values.get(key)
        if type(value) is not int or value < least:
            raise self.refuse(key, f"is no whole number from {least} on")
        if most is not None and value > most:
            raise self.refuse(key, f"is above {most}")
        return value

    def size_of_both(self, suffix: str) -> int:
        """A whole number that encoder and decoder have in common."""
        ours, theirs = (self.size(f"{stack}_{suffix}") for stack in _STACKS)
        if ours != theirs:
            raise self.refuse(f"decoder_{suffix}", f"is not the encoder's {ours}")
        return ours

    def head_size(self) -> int:
        """d_model / h."""
        size, rest = divmod(self.size("d_model"), self.size_of_both("attention_heads"))
        if rest or self.size("d_model") % 2:
            raise self.refuse("d_model", "its heads cannot share evenly, or is odd")
        return size

    def epsilon(self) -> float:
        """The layer norm's: ours alone say it, all others have that of PyTorch."""
        value = self.values.get("layer_norm_epsilon", LAYER_NORM_EPSILON)
        if type(value) is not float or not 0.0 < value < 1.0:
            raise self.refuse("layer_norm_epsilon", "is not between 0 and 1")
        return value

    def activation(self) -> str:
        """The feed-forward's, by our name."""
        name = self.values.get("activation_function")
        if name not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise self.refuse("activation_function", f"is none of {known}")
        return _ACTIVATIONS[name]
