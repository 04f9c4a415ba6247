"""The parameters of encoder-decoder Transformers in Hugging Face's layout, both ways.

Marian, M2M-100 and NLLB share the names of layers (those of BART). Linear maps are
stored as [outputs, inputs], the transpose of ours. `jaxformer.exports.marian` says why
Marian's columns have another order and why some parameters are scaled.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.exports.checkpoint import Json, UnsupportedError
from jaxformer.exports.parameters import flat, nested
from jaxformer.models.positions import position_table
from jaxformer.models.transformer.config import BIASES, TransformerConfig
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import entries

LAYER_NORM_EPSILON = 1e-5  # PyTorch's, of every model
# Our embeddings [V, D] by Hugging Face's names, for each `model.tied_embeddings`.
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
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}
UNUSED = "attention_window", "encoder_projected_keys", "encoder_global_positions"
_ROUNDING = 2**-8  # of sinusoids stored in bfloat16
_MOST = 1 << 24  # of any size in config.json


# --- layout ---------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A parameter besides embeddings, and the tensor that holds it."""

    path: str  # "encoder/layer_0/self_attention/query/kernel"
    name: str  # "model.encoder.layers.0.self_attn.q_proj.weight"
    shape: list[int]  # of the parameter
    matrix: list[int]  # the parameter as [inputs, outputs], or one axis
    wide: list[int]  # axes of `matrix` that are d_model
    power: int  # of c, by which Marian's tensor is multiplied

    def to_tensor(self, x: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return the tensor [outputs, inputs] of a parameter; `order` is `columns`."""
        x = x.reshape(self.matrix)
        for axis in self.wide:
            x = x.take(order, axis)
        return np.ascontiguousarray(x.T)

    def from_tensor(self, x: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return the parameter of a tensor; the inverse of `to_tensor`."""
        x = x.T
        for axis in self.wide:
            x = x.take(np.argsort(order), axis)
        return np.ascontiguousarray(x).reshape(self.shape)


# Of each layer: our name and Hugging Face's, the axes of our kernel (inputs, then
# outputs) or scale, and the power of c.
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


def leaves(fields: Json) -> Iterator[Leaf]:
    """Yield each parameter, besides embeddings, that a Transformer of these fields has.

    Biases of attention are among them, whether the model has them or not.
    """
    for stack in ("encoder", "decoder"):
        layers = fields[f"{stack}_layers"]
        for index, (part, name, axes, power) in product(range(layers), _LAYER):
            if stack == "encoder" and part.startswith("cross_attention"):
                continue
            # The embedding, which the first layer reads, and the output of a stack,
            # which the last norm writes, are not scaled.
            is_first, is_last = index == 0, index == layers - 1
            ends = ("self_attention/",) * is_first + ("feed_forward_sub",) * is_last
            power = 0 if part.startswith(ends) else power
            path = f"{stack}/layer_{index}/{part}"
            name = f"model.{stack}.layers.{index}.{name}"
            yield from leaves_of_map(path, name, axes, power, fields)
        if fields["norm_first"]:
            names = f"{stack}/norm", f"model.{stack}.layer_norm"
            yield from leaves_of_map(*names, "D", 0, fields)


def leaves_of_map(
    path: str, name: str, axes: str, power: int, fields: Json
) -> Iterator[Leaf]:
    """Yield kernel and bias of a linear map, or scale and bias of a norm."""
    for kind, suffix, letters, exponent in (
        ("kernel" if " " in axes else "scale", "weight", axes, power),
        ("bias", "bias", axes.split()[-1], max(power, 0)),
    ):
        groups = letters.split()
        sizes = [[fields[_AXES[letter]] for letter in group] for group in groups]
        yield Leaf(
            f"{path}/{kind}",
            f"{name}.{suffix}",
            shape=[size for group in sizes for size in group],
            matrix=[*map(math.prod, sizes)],
            wide=[axis for axis, group in enumerate(groups) if group == "D"],
            power=exponent,
        )


def columns(fields: Json) -> np.ndarray:
    """Return which of our columns each column of Hugging Face's is: int [D].

    Marian's sinusoids have all sines first; in the paper sines and cosines alternate.
    """
    order = np.arange(fields["d_model"])
    if fields["positions"] == "sinusoidal":
        return np.concatenate([order[::2], order[1::2]])
    return order


def stream_scale(fields: Json) -> np.float32:
    """Return c of `jaxformer.exports.marian`; without it, 1."""
    ratio = LAYER_NORM_EPSILON / fields["layer_norm_epsilon"]
    return np.float32(2.0 ** round(math.log2(ratio) / 2))


def to_tensors(
    config: TransformerConfig, params: dict, rows: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """Return all parameters as Hugging Face's tensors by name; missing biases are 0.

    `rows` are, for each embedding, our ids in Hugging Face's order.
    """
    left, fields = flat(params), vars(config)
    scale, order = stream_scale(fields), columns(fields)
    tensors = {}
    for name, path in EMBEDDINGS[config.tied_embeddings].items():
        tensors[name] = left.pop(path)[rows[path]].take(order, 1)
    bias = left.pop("logits_bias", None)
    if bias is not None:
        tensors[LOGITS_BIAS] = bias[rows["embedding"]][None]
    for leaf in leaves(fields):
        own = left.pop(leaf.path, np.zeros(leaf.shape, np.float32))
        tensors[leaf.name] = leaf.to_tensor(own * scale**leaf.power, order)
    assert not left, left  # the formats' own checks have refused what would be
    return tensors


def from_tensors(
    tensors: dict[str, np.ndarray], model: Json, rows: Mapping[str, Sequence[int]]
) -> dict:
    """Return our nested parameters; set `biases` in `model`.

    Biases of attention are left out if all are zero, unless `model` says that it has
    them. `rows` are, for each embedding, Hugging Face's ids in our order.
    """
    d_model, size = model["d_model"], max(rows["embedding"]) + 1
    embeddings = EMBEDDINGS[model["tied_embeddings"]]
    for name in [*tensors]:
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            if name in embeddings:
                continue
            matrix = tensors.pop(name)
            same = [*embeddings][-1]  # "all" has one, "target" that of the decoder last
            if not np.array_equal(tensors.setdefault(same, matrix), matrix):
                raise UnsupportedError(f"{name} is not equal to {same}")
        elif name.endswith(("embed_positions.weight", "embed_positions.weights")):
            table = tensors.pop(name)
            if model["positions"] == "fairseq" and table.ndim == 2:
                table = table[2:]  # the rows of its positions; row 1 is that of <pad>
            length = len(table) if table.ndim == 2 else 0
            sinusoids = position_table(model["positions"], length, d_model)
            sinusoids = sinusoids[:, columns(model)]
            if table.shape != sinusoids.shape or not np.allclose(
                table, sinusoids, rtol=0, atol=_ROUNDING
            ):
                raise UnsupportedError(f"{name} is not the table of sinusoids")
    tensors.setdefault(LOGITS_BIAS, np.zeros((1, size), np.float32))
    expected = {leaf.name: (*leaf.matrix[::-1],) for leaf in leaves(model)}
    for name, path in embeddings.items():
        expected[name] = max(rows[path]) + 1, d_model
    expected[LOGITS_BIAS] = (1, size)
    require_shapes(tensors, expected, "config.json")
    order = columns(model)
    params = {
        path: tensors[name][rows[path]].take(np.argsort(order), 1)  # [V, D]
        for name, path in embeddings.items()
    }
    has_logits_bias = bool(tensors[LOGITS_BIAS].any())
    if has_logits_bias:
        params["logits_bias"] = tensors[LOGITS_BIAS][0, rows["embedding"]]
    scale = stream_scale(model)
    for leaf in leaves(model):
        tensor = tensors.pop(leaf.name) * scale**-leaf.power
        params[leaf.path] = leaf.from_tensor(tensor, order)
    biases = {name for name in params if re.search("_attention/.*/bias", name)}
    has_attention_bias, _ = BIASES[model.get("biases", "none")]
    has_attention_bias |= bool(any(params[name].any() for name in biases))
    names = {which: name for name, which in BIASES.items()}
    model["biases"] = names[has_attention_bias, has_logits_bias]
    kept = params.keys() - ({} if has_attention_bias else biases)
    return nested({name: params[name] for name in sorted(kept)})


def require_shapes(
    found: Mapping[str, np.ndarray], expected: Mapping[str, tuple], source: str
) -> None:
    """Raise UnsupportedError unless arrays have the names and shapes of `source`."""
    for name in sorted(found.keys() | expected.keys()):
        shape = found[name].shape if name in found else "missing"
        if shape != expected.get(name):
            raise UnsupportedError(
                f"the shape of {name} is {shape}, and {source} expects "
                f"{expected.get(name, 'no such tensor')}"
            )


# --- files ----------------------------------------------------------------------------


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read all tensors of a folder as float32: safetensors or PyTorch's, also parts.

    Raises InputError if a file is damaged or a package missing.
    """
    tensors: dict[str, np.ndarray] = {}
    files = entries(folder, "model*.safetensors")
    if not files and (files := entries(folder, "pytorch_model*.bin")):
        with packages_of("torch"):
            import torch
        for file in files:
            try:
                # Without `weights_only` a file could run any program.
                found = torch.load(file, "cpu", weights_only=True)
                tensors |= {name: each.float().numpy() for name, each in found.items()}
            except Exception as error:  # of zipfile, pickle and PyTorch
                reason = str(error).partition("\n")[0]
                raise InputError(
                    f"{file} is damaged: {reason}; download it again"
                ) from None
        return tensors
    with packages_of("export"):
        import safetensors.numpy
    for file in files or [folder / "model.safetensors"]:
        try:
            tensors |= safetensors.numpy.load_file(file)
        except (safetensors.SafetensorError, TypeError, KeyError) as error:
            raise InputError(f"{file} is damaged: {error}; download it again") from None
    if wrong := [name for name, each in tensors.items() if each.dtype.kind in "biu"]:
        raise UnsupportedError(f"{wrong[0]} has the type {tensors[wrong[0]].dtype}")
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def read_json(file: Path) -> Json:
    """Read an object. Raises InputError for anything else, OSError without a file."""
    try:
        values = json.loads(file.read_bytes())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{file} is not a JSON object; download it again")
    return values


def write_json(file: Path, values: Json) -> None:
    """Write an object that people can read."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")


def fields_of(settings: Json, fixed: Mapping[str, tuple], chosen: Json) -> Json:
    """Return the fields of a `TransformerConfig` that config.json sets.

    `fixed` are keys whose value may not differ: the value, and that of a missing key.
    `chosen` are fields that the kind of model sets. Raises UnsupportedError.
    """
    for key, (value, missing) in fixed.items():
        if settings.get(key, missing) != value:
            raise fault(settings, key, f"not {value!r}")
    model: Json = {
        "architecture": "transformer", "decoder_self_attention": "attention",
        **dict.fromkeys(UNUSED), **chosen,
    }  # fmt: skip
    for key, field in SIZES.items():
        most = 1000 if key.endswith("_layers") else _MOST
        size = integer(settings, key, most=most)
        if model.setdefault(field, size) != size:
            raise fault(settings, key, f"not the encoder's {model[field]}")
    model["d_k"] = model["d_v"] = model["d_model"] // model["num_heads"]
    if model["d_model"] % 2 or model["d_model"] % model["num_heads"]:
        raise fault(settings, "d_model", "odd or no multiple of the number of heads")
    model["activation"] = _ACTIVATIONS.get(str(settings.get("activation_function")))
    if model["activation"] is None:
        raise fault(settings, "activation_function", f"not in {[*_ACTIVATIONS]}")
    # Only a model that was exported from here has this key.
    epsilon = settings.get("layer_norm_epsilon", LAYER_NORM_EPSILON)
    if type(epsilon) is not float or not 0.0 < epsilon < 1.0:
        raise fault(settings, "layer_norm_epsilon", "not between 0 and 1")
    return {**model, "layer_norm_epsilon": epsilon}


def fault(settings: Json, key: str, text: str) -> UnsupportedError:
    """Say what is wrong with a key of a model's settings."""
    return UnsupportedError(f"it has {key}={settings.get(key)!r}, {text}")


def integer(settings: Json, key: str, least: int = 1, most: int = _MOST) -> int:
    """Return a whole number of the settings. Raises UnsupportedError for others."""
    value = settings.get(key)
    if type(value) is not int or not least <= value <= most:
        raise fault(settings, key, f"not a whole number in [{least}, {most}]")
    return value
