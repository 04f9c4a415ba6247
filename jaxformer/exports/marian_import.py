"""Marian checkpoints of Hugging Face, such as OPUS-MT models, as our parameters.

The inverse of `jaxformer.exports.marian`. Published models differ from the paper's in
biases, activation and the layer norm's epsilon, for which `TransformerConfig` has
fields. Models that differ in anything else are refused.

Our vocabulary is PAD, UNK, BOS, EOS, then all other pieces in their order. Published
models start the decoder with their padding piece, so its row of the embedding becomes
the rows of our BOS and PAD. A checkpoint has one vocabulary, vocab.json, or that of
sources and target_vocab.json.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.exports import marian
from jaxformer.exports.parameters import nested
from jaxformer.models.layers import sinusoidal_positions
from jaxformer.models.transformer.config import BIASES
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import entries

Json = dict[str, Any]  # an object of JSON, or fields of a `TransformerConfig`
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}
_ROUNDING = 2**-8  # of sinusoids stored in bfloat16


class MarianCheckpoint(NamedTuple):
    """A model in our layout."""

    model: Json  # TransformerConfig, without dropout and dtype
    params: dict  # nested dicts of float32 arrays
    vocabularies: list[list[str]]  # pieces by our id: of both, or of source and target
    models: list[Path]  # files of SentencePiece, of source and target; not yet read


_MOST = 1 << 24  # of any size in config.json


class _UnsupportedError(Exception):
    """A fault of a checkpoint; `read_marian` adds the folder and what to do."""


def read_marian(folder: Path) -> MarianCheckpoint:
    """Read a checkpoint. Raises InputError if it is incomplete, damaged or unsupported.

    The parameters fit a `Transformer` with the fields `model` and as many ids as the
    vocabularies have.
    """
    try:
        settings = _json(folder / "config.json")
        model = _model(settings)
        found = [_vocabulary(settings, folder, "vocab.json", "vocab_size")]
        if (folder / "target_vocab.json").exists():
            if model["tied_embeddings"] == "all":
                raise _fault(
                    settings, marian.TIE_KEYS[0], "and target_vocab.json exists"
                )
            name = "target_vocab.json"
            found.append(_vocabulary(settings, folder, name, "decoder_vocab_size"))
        params = _parameters(folder, model, found[0][1], found[-1][1])
    except OSError as error:
        raise InputError(
            f"the checkpoint cannot be read ({error}); download it, for example with: "
            "hf download Helsinki-NLP/opus-mt-en-de --local-dir FOLDER"
        ) from None
    except _UnsupportedError as fault:
        raise InputError(
            f"{folder} cannot be imported: {fault}; put back the checkpoint's own "
            "files, or import another model"
        ) from None
    models = [folder / f"{side}.spm" for side in ("source", "target")]
    return MarianCheckpoint(model, params, [pieces for pieces, _ in found], models)


def _model(settings: Json) -> Json:
    for key, (value, missing) in marian.FIXED.items():
        if settings.get(key, missing) != value:
            raise _fault(settings, key, f"not {value!r}")
    model: Json = {"architecture": "transformer", "norm_first": False}
    unused = ("attention_window", "encoder_projected_keys", "encoder_global_positions")
    model |= dict.fromkeys(unused)
    model["positions"] = "sinusoidal"
    ties = tuple(settings.get(key, True) for key in marian.TIE_KEYS)
    names = {values: name for name, values in marian.TIES.items()}
    if not all(type(each) is bool for each in ties) or ties not in names:
        raise _fault(settings, marian.TIE_KEYS[1], "though the embeddings are shared")
    model["tied_embeddings"] = names[ties]
    for key, field in marian.SIZES.items():
        size = _integer(settings, key)
        if model.setdefault(field, size) != size:
            raise _fault(settings, key, f"not the encoder's {model[field]}")
    model["d_k"] = model["d_v"] = model["d_model"] // model["num_heads"]
    if model["d_model"] % 2 or model["d_model"] % model["num_heads"]:
        raise _fault(settings, "d_model", "odd or no multiple of the number of heads")
    model["activation"] = _ACTIVATIONS.get(str(settings.get("activation_function")))
    if model["activation"] is None:
        raise _fault(settings, "activation_function", f"not in {[*_ACTIVATIONS]}")
    # Only a model that was exported from here has this key.
    epsilon = settings.get("layer_norm_epsilon", marian.LAYER_NORM_EPSILON)
    if type(epsilon) is not float or not 0.0 < epsilon < 1.0:
        raise _fault(settings, "layer_norm_epsilon", "not between 0 and 1")
    return {**model, "layer_norm_epsilon": epsilon}


def _fault(settings: Json, key: str, text: str) -> _UnsupportedError:
    return _UnsupportedError(f"config.json has {key}={settings.get(key)!r}, {text}")


def _integer(settings: Json, key: str, least: int = 1, most: int = _MOST) -> int:
    value = settings.get(key)
    if type(value) is not int or not least <= value <= most:
        raise _fault(settings, key, f"not a whole number in [{least}, {most}]")
    return value


def _vocabulary(
    settings: Json, folder: Path, file: str, key: str
) -> tuple[list[str], list[int]]:
    """Return the pieces of a file by our ids, and the row of each in Marian."""
    size, ids = _integer(settings, key), _json(folder / file)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(size))):
        raise _UnsupportedError(
            f"{file} does not name the ids 0 to {size - 1}, one piece each, as {key} "
            "in config.json demands"
        )
    if "<unk>" not in ids:
        raise _UnsupportedError(f"{file} has no piece '<unk>'")
    names, unknown = sorted(ids, key=ids.get), ids["<unk>"]
    pad, start, eos = (
        _integer(settings, f"{name}_token_id", least=0, most=size - 1)
        for name in ("pad", "decoder_start", "eos")
    )

    def new_name(name: str) -> str:
        return new_name(f"<{name}>") if name in ids else name

    reserved = [pad, unknown, start, eos]
    others = [index for index in range(size) if index not in reserved]
    pieces = [names[index] for index in reserved + others]
    if pad in (unknown, eos):
        pieces[0] = new_name("<pad>")
    if reserved.count(start) > 1:
        pieces[2] = new_name("<s>")
    return pieces, reserved + others


def _parameters(
    folder: Path, model: Json, source_rows: list[int], rows: list[int]
) -> dict:
    """Read our nested parameters; set `biases` in `model`.

    The rows are those of source and target ids in Marian's embeddings.
    """
    tensors, size, d_model = _read_tensors(folder), max(rows) + 1, model["d_model"]
    embeddings = marian.EMBEDDINGS[model["tied_embeddings"]]
    for name in [*tensors]:
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            if name in embeddings:
                continue
            matrix = tensors.pop(name)
            same = [*embeddings][-1]  # "all" has one, "target" that of the decoder last
            if not np.array_equal(tensors.setdefault(same, matrix), matrix):
                raise _UnsupportedError(f"{name} is not equal to {same}")
        elif name.endswith("embed_positions.weight"):
            table = tensors.pop(name)
            sinusoids = sinusoidal_positions(len(table), d_model)
            sinusoids = sinusoids[:, marian.sines_first(d_model)]
            if table.shape != sinusoids.shape or not np.allclose(
                table, sinusoids, rtol=0, atol=_ROUNDING
            ):
                raise _UnsupportedError(f"{name} is not the paper's table of sinusoids")
    tensors.setdefault(marian.LOGITS_BIAS, np.zeros((1, size), np.float32))
    expected = {leaf.name: leaf.order.shape for leaf in marian.layer_leaves(model)}
    rows_of = {name: rows for name in embeddings.values()}
    rows_of["source_embedding"] = source_rows
    for name, ours in embeddings.items():
        expected[name] = max(rows_of[ours]) + 1, d_model
    expected[marian.LOGITS_BIAS] = (1, size)
    found = {name: tensor.shape for name, tensor in tensors.items()}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise _UnsupportedError(
                f"the shape of {name} is {found.get(name, 'missing')}, and config.json "
                f"expects {expected.get(name, 'no such tensor')}"
            )
    order = np.argsort(marian.sines_first(d_model))
    params = {
        ours: tensors[name][rows_of[ours]][:, order]  # [V, D]
        for name, ours in embeddings.items()
    }
    has_logits_bias = bool(tensors[marian.LOGITS_BIAS].any())
    if has_logits_bias:
        params["logits_bias"] = tensors[marian.LOGITS_BIAS][0, rows]
    scale = marian.stream_scale(model["layer_norm_epsilon"])
    for leaf in marian.layer_leaves(model):
        ours = np.empty(leaf.shape, np.float32)
        ours.ravel()[leaf.order] = tensors[leaf.name] * scale**-leaf.power
        params[leaf.ours] = ours
    biases = {name for name in params if re.search("_attention/.*/bias", name)}
    has_attention_bias = bool(any(params[name].any() for name in biases))
    names = {which: name for name, which in BIASES.items()}
    model["biases"] = names[has_attention_bias, has_logits_bias]
    kept = params.keys() - ({} if has_attention_bias else biases)
    return nested({name: params[name] for name in sorted(kept)})


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    with packages_of("export"):
        import safetensors.numpy
    files = entries(folder, "model*.safetensors")
    if not files and (folder / "pytorch_model.bin").is_file():
        raise InputError(
            f"{folder} has its parameters in pytorch_model.bin, which can run any "
            "program; convert it once, where Transformers is installed, with: python "
            '-c "from transformers import MarianMTModel as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    tensors: dict[str, np.ndarray] = {}
    for file in files or [folder / "model.safetensors"]:
        try:
            tensors |= safetensors.numpy.load_file(file)
        except (safetensors.SafetensorError, TypeError, KeyError) as error:
            raise InputError(f"{file} is damaged: {error}; download it again") from None
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _json(file: Path) -> Json:
    try:
        values = json.loads(file.read_bytes())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{file} is not a JSON object; download it again")
    return values
