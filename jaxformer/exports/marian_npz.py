"""Marian's own checkpoints, a folder with model.npz and decoder.yml, both ways.

decoder.yml names the model and the vocabularies: SentencePiece models, or vocab.yml
beside source.spm and target.spm. The settings are YAML inside model.npz. Names and
layout are those of Marian's `src/models/transformer.h` and `src/rnn/cells.h`. Matrices
are [inputs, outputs] as ours.

Marian's decoder begins with zeros instead of an embedding, and it has no padding. So
our PAD and BOS are additional ids, and a bias of the logits makes them improbable.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import huggingface
from jaxformer.exports.checkpoint import Checkpoint, Json, UnsupportedError
from jaxformer.exports.huggingface import Leaf, fault, integer
from jaxformer.exports.parameters import flat, nested, plain_fields, require_fields
from jaxformer.models.transformer.config import BIASES
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import entries
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import BOS, EOS, PAD, UNK, AnyTokenizer

# What zipfile and NumPy raise.
_DAMAGE = ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error
# What PyYAML raises besides its own errors, as of "!!int ''" and "!!timestamp x".
_WRONG_YAML = ValueError, LookupError, AttributeError, RecursionError
SETTINGS = "special:model.yml"  # the array of bytes
# Files that name the model and its vocabularies: those of an earlier pattern alone.
DECODERS = "*decoder.yml", "config.yml", "config.*.yml"
NEVER = -100.0  # the bias of PAD and BOS: their probability is about 1e-44
_RESERVED = {"</s>": EOS, "<unk>": UNK}
# What our model fixes, by key; a missing key is the first value.
_ALLOWED: dict[str, tuple] = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "transformer-tied-layers": ([],),
    "transformer-disable-position-embeddings": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-alibi-trainable": (False,),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu"),
    "layer-normalization": (False,),
    "lemma-dim-emb": (0,),
    "tied-embeddings-src": (False,),
    "ulr": (False,),
    "right-left": (False,),
    "input-types": ([],),
}
# Dropout aside, what happens before and after a sub-layer and after a stack: post-norm
# as in the paper, or pre-norm.
NORMS = {("", "an", ""): False, ("n", "a", "n"): True}
_TIES = {"all": "tied-embeddings-all", "target": "tied-embeddings", "none": ""}
POSITIONS = "transformer-train-positions", "transformer-train-position-embeddings"
# Marian's names of our embeddings, for each `model.tied_embeddings`.
_EMBEDDINGS = {
    "all": {"Wemb": "embedding"},
    "target": {"encoder_Wemb": "source_embedding", "decoder_Wemb": "embedding"},
}
OUTPUT = "decoder_ff_logit_out"
_EMBEDDINGS["none"] = _EMBEDDINGS["target"] | {f"{OUTPUT}_Wt": "output_embedding"}
# Marian's names of the matrices and norms of a layer, after "encoder_l1_".
_LAYER = {
    f"{kind}_attention/{part}": f"{name}_W{part[0]}"
    for kind, name in (("self", "self"), ("cross", "context"))
    for part in ("query", "key", "value", "output")
} | {
    "self_attention_sublayer/norm": "self_Wo_ln",
    "cross_attention_sublayer/norm": "context_Wo_ln",
    "feed_forward/hidden": "ffn_W1",
    "feed_forward/output": "ffn_W2",
    "feed_forward_sublayer/norm": "ffn_ffn_ln",
    "ssru/value": "rnn_W",
    "ssru/forget": "rnn_Wf",
    "ssru_sublayer/norm": "rnn_ffn_ln",
}
_SSRU = {"ssru/value": "D D", "ssru/forget": "D D", "ssru_sublayer/norm": "D"}


def _leaves(fields: Json) -> Iterator[Leaf]:
    """Yield each parameter of the layers, with the name and the axes of its array."""
    found = [*huggingface.leaves(fields)]
    if fields["decoder_self_attention"] == "ssru":
        found = [x for x in found if not re.match("decoder/.*/self_attention", x.path)]
        for n, (part, axes) in product(range(fields["decoder_layers"]), _SSRU.items()):
            names = f"decoder/layer_{n}/{part}", ""
            found += huggingface.leaves_of_map(*names, axes, 0, fields)
    for leaf in found:
        stack, layer, *part, kind = leaf.path.split("/")
        name = f"{stack}_top_ln_{kind}"
        if part:
            own = _LAYER["/".join(part)]
            if own == "rnn_W" and kind == "bias":  # of the value, which has none
                continue
            if own.endswith("_ln"):
                own += f"_{kind}"
                if fields["norm_first"]:
                    own = own.replace("rnn_ffn", "rnn") + "_pre"
            elif kind == "bias":
                own = own.replace("_W", "_b")
            name = f"{stack}_l{int(layer[6:]) + 1}_{own}"
        yield leaf._replace(name=name, matrix=[1, *leaf.matrix][-2:])


# --- read -----------------------------------------------------------------------------


def decoder_files(folder: Path) -> list[Path]:
    """Return the files that `DECODERS` describes; [] in a folder without any."""
    return next(filter(None, (entries(folder, each) for each in DECODERS)), [])


def read_npz(folder: Path) -> Checkpoint:
    """Read a folder; raises what `jaxformer.exports.reading` makes messages of."""
    with packages_of("export"):
        import yaml
    file, *others = decoder_files(folder)
    if others:
        names = ", ".join(each.name for each in [file, *others])
        raise InputError(f"{folder} has {names}; keep only that of the model to import")
    decoder = _yaml(yaml, file.read_bytes(), file.name)
    names = [decoder.get(key) for key in ("models", "vocabs")]
    if not all(isinstance(each, list) and each for each in names):
        raise UnsupportedError(f"{file.name} does not name models and vocabs")
    paths = [[folder / Path(str(name)).name for name in each] for each in names]
    if "\0" in "".join(map(str, paths[0] + paths[1])):
        raise UnsupportedError(f"{file.name} has a name with a null character")
    if len(paths[0]) > 1 or len(paths[1]) != 2:
        raise UnsupportedError(f"{file.name} names other than 1 model and 2 vocabs")
    arrays = _arrays(paths[0][0])
    settings = _yaml(yaml, arrays.pop(SETTINGS, np.zeros(0)).tobytes(), SETTINGS)
    model = _model(settings, arrays)
    vocabularies = [_vocabulary(yaml, path) for path in dict.fromkeys(paths[1])]
    if vocabularies[0] == vocabularies[-1]:
        del vocabularies[1:]
    elif model["tied_embeddings"] == "all":
        raise UnsupportedError("its embeddings are tied and its vocabularies differ")
    params = _parameters(arrays, model, [rows for _, rows in vocabularies])
    models = [
        path if path.suffix == ".spm" else folder / f"{side}.spm"
        for path, side in zip(paths[1], ("source", "target"), strict=True)
    ]
    return Checkpoint(model, params, [pieces for pieces, _ in vocabularies], models)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    if file.suffix == ".bin":
        raise InputError(
            f"{file} is quantised for decoding and cannot be trained; import the "
            "model.npz that it was made from"
        )
    try:
        with file.open("rb") as opened, zipfile.ZipFile(opened):
            opened.seek(0)
            return dict(np.load(opened))
    except _DAMAGE as error:
        raise InputError(f"{file} is damaged: {error}; download it again") from None


def _yaml(
    yaml: ModuleType, content: bytes, name: str, loader: str = "SafeLoader"
) -> Json:
    """Read an object; with "BaseLoader" all its keys and values are text."""
    try:
        text, own = content.decode().rstrip("\0"), getattr(yaml, loader)
        values = yaml.load(text, getattr(yaml, f"C{loader}", own))
    except (yaml.YAMLError, *_WRONG_YAML):
        values = None
    if not isinstance(values, dict):
        raise UnsupportedError(f"{name} is no YAML of keys")
    return values


def _model(settings: Json, arrays: Mapping[str, np.ndarray]) -> Json:
    """Return the fields of a `TransformerConfig`, without biases."""
    for key, values in _ALLOWED.items():
        if settings.get(key, values[0]) not in values:
            raise fault(settings, key, f"not {' or '.join(map(repr, values))}")
    keys = "preprocess", "postprocess", "postprocess-top"
    norms = (str(settings.get(f"transformer-{key}") or "") for key in keys)
    norms = tuple(each.replace("d", "") for each in norms)
    if norms not in NORMS:
        raise UnsupportedError(
            f"it has transformer-{', -'.join(keys)} {', '.join(map(repr, norms))} "
            "besides dropout; '', 'an', '' (post-norm) or 'n', 'a', 'n' (pre-norm) can "
            "be imported"
        )
    ties = [name for name, key in _TIES.items() if not key or settings.get(key)]
    sizes = {
        "encoder_layers": "enc-depth", "decoder_layers": "dec-depth",
        "d_model": "dim-emb", "num_heads": "transformer-heads",
        "d_ff": "transformer-dim-ffn",
    }  # fmt: skip
    model: Json = {
        field: integer(settings, key, most=1000 if "layers" in field else 2**20)
        for field, key in sizes.items()
    }
    if settings.get("transformer-decoder-dim-ffn", 0) not in (0, model["d_ff"]):
        raise UnsupportedError(
            "its decoder has another transformer-decoder-dim-ffn than the encoder"
        )
    is_rnn = settings.get("transformer-decoder-autoreg") == "rnn"
    if is_rnn and settings.get("dec-cell") != "ssru":
        raise fault(settings, "dec-cell", "not ssru")
    is_trained = "Wpos" in arrays  # Marian 1.12 has the key, and no such array
    size = model["d_model"] // model["num_heads"]
    return {
        "architecture": "transformer",
        **dict.fromkeys(huggingface.UNUSED),
        **model,
        "d_k": size,
        "d_v": size,
        "norm_first": NORMS[norms],
        "decoder_self_attention": "ssru" if is_rnn else "attention",
        "first_input": "zeros",
        "positions": "learned_unscaled" if is_trained else "tensor2tensor",
        "max_positions": (*np.shape(arrays.get("Wpos", range(1024))), 1)[0],
        "tied_embeddings": ties[0],
        "activation": settings.get("transformer-ffn-activation", "swish"),
        "layer_norm_epsilon": 1e-6,
    }


def _vocabulary(yaml: ModuleType, path: Path) -> tuple[list[str], list[int]]:
    """Return the pieces of a file in the order of our ids, and Marian's id of each.

    Marian has no PAD and BOS: their id is -1.
    """
    if path.suffix == ".spm":
        own = Tokenizer.load(path).source_pieces()
    else:  # as text, since "yes" and "1" are pieces
        ids = _yaml(yaml, path.read_bytes(), path.name, "BaseLoader")
        places = {str(index): piece for piece, index in ids.items()}
        order = [*map(str, range(len(ids)))]
        if {*places} != {*order}:
            raise UnsupportedError(f"{path.name} does not name its ids, one piece each")
        own = [places[index] for index in order]
    if missing := _RESERVED.keys() - {*own}:
        raise UnsupportedError(f"its vocabulary has no piece {missing.pop()!r}")
    others = [index for index, name in enumerate(own) if name not in _RESERVED]
    rows = [-1, own.index("<unk>"), -1, own.index("</s>"), *others]
    pieces = [own[index] if index >= 0 else "" for index in rows]
    for token, name in ((PAD, "<pad>"), (BOS, "<s>")):
        while name in own:
            name = f"<{name}>"
        pieces[token] = name
    return pieces, rows


def _parameters(
    arrays: dict[str, np.ndarray], model: Json, rows: Sequence[Sequence[int]]
) -> dict:
    """Return our nested parameters; set `biases` in `model`."""
    embeddings = _EMBEDDINGS[model["tied_embeddings"]]
    if f"{OUTPUT}_W" in arrays:  # of models that did not transpose it
        arrays[f"{OUTPUT}_Wt"] = arrays.pop(f"{OUTPUT}_W").T
    rows_of = {"source_embedding": rows[0]}
    d, size = model["d_model"], max(rows[-1]) + 1
    expected = {leaf.name: (*leaf.matrix,) for leaf in _leaves(model)}
    for name, path in embeddings.items():
        expected[name] = max(rows_of.get(path, rows[-1])) + 1, d
    if model["positions"] == "learned_unscaled":
        expected["Wpos"] = model["max_positions"], d
    arrays.setdefault(f"{OUTPUT}_b", np.zeros((1, size), np.float32))
    expected[f"{OUTPUT}_b"] = 1, size
    huggingface.require_shapes(arrays, expected, SETTINGS)
    if wrong := [name for name, each in arrays.items() if each.dtype.kind != "f"]:
        raise UnsupportedError(f"{wrong[0]} has the type {arrays[wrong[0]].dtype}")
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    params = {
        leaf.path: arrays[leaf.name].reshape(leaf.shape) for leaf in _leaves(model)
    }
    for name, path in embeddings.items():
        own = np.array(rows_of.get(path, rows[-1]))
        params[path] = np.where(own[:, None] < 0, np.float32(0), arrays[name][own])
    if "Wpos" in expected:
        params["position_embedding"] = arrays["Wpos"]
    own, bias = np.array(rows[-1]), arrays[f"{OUTPUT}_b"][0]
    params["logits_bias"] = np.where(own < 0, np.float32(NEVER), bias[own])
    model["biases"] = {which: name for name, which in BIASES.items()}[True, True]
    return nested(params)


# --- written --------------------------------------------------------------------------


def export_npz(
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: AnyTokenizer,
    options: TranslateOptions,
) -> None:
    """Write model.npz, decoder.yml and the vocabularies into an existing folder.

    `params` are nested dicts of arrays. Raises InputError, before it writes, for a
    model that Marian cannot hold.
    """
    with packages_of("export"):
        import yaml
    model = config.model
    require_fields("Marian", model, {
        **plain_fields(model),
        "decoder_self_attention": ("attention", "ssru"),
        "first_input": ("zeros",),
        "positions": ("tensor2tensor", "learned_unscaled"),
        "biases": ("all",),
        "layer_norm_epsilon": (1e-6,),
    })  # fmt: skip
    source, target = _sides(yaml, tokenizer)
    left = flat(params)
    rows_of = {"source_embedding": source.rows}
    arrays = {
        name: left.pop(path)[rows_of.get(path, target.rows)]
        for name, path in _EMBEDDINGS[model.tied_embeddings].items()
    }
    arrays[f"{OUTPUT}_b"] = left.pop("logits_bias")[target.rows][None]
    if "position_embedding" in left:
        arrays["Wpos"] = left.pop("position_embedding")
    for leaf in _leaves(vars(model)):
        arrays[leaf.name] = left.pop(leaf.path).reshape(leaf.matrix)
    assert not left, left  # `require_fields` has refused what would be
    norms = next(norms for norms, first in NORMS.items() if first == model.norm_first)
    settings = {
        **{key: values[0] for key, values in _ALLOWED.items()},
        "enc-depth": model.encoder_layers,
        "dec-depth": model.decoder_layers,
        "dim-emb": model.d_model,
        "dim-vocabs": [len(source.rows), len(target.rows)],
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-activation": model.activation,
        "transformer-preprocess": norms[0],
        "transformer-postprocess": f"d{norms[1]}",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": norms[2],
        **dict.fromkeys(POSITIONS, model.positions == "learned_unscaled"),
        **{key: key == _TIES[model.tied_embeddings] for key in _TIES.values() if key},
        "version": "jaxformer",
    }
    if model.decoder_self_attention == "ssru":
        settings |= {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
        settings |= {"dec-cell-base-depth": 2, "dec-cell-high-depth": 1}
    text = yaml.safe_dump(settings, sort_keys=True) + "\0"
    arrays[SETTINGS] = np.frombuffer(text.encode(), np.int8)
    np.savez(folder / "model.npz", **arrays)
    for name, content in (source.files | target.files).items():
        (folder / name).write_bytes(content)
    decoder = {
        "relative-paths": True,
        "models": ["model.npz"],
        "vocabs": [source.vocabulary, target.vocabulary],
        "beam-size": options.beam_size,
        "normalize": options.alpha,
    }
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder, sort_keys=False))


class Side(NamedTuple):
    """A vocabulary in Marian's form."""

    rows: list[int]  # our ids by Marian's
    vocabulary: str  # the name of its file
    files: dict[str, bytes]


def _sides(yaml: ModuleType, tokenizer: AnyTokenizer) -> list[Side]:
    """Return the vocabularies of source and target."""
    names = tokenizer.source_pieces(), tokenizer.pieces()
    models = tokenizer.source_model, tokenizer.target_model
    found = []
    for side, pieces, content in zip(("source", "target"), names, models, strict=True):
        own = Tokenizer(content).source_pieces()
        ids = {piece: index for index, piece in enumerate(pieces)} | _RESERVED
        if {*own} == {*pieces[EOS:], pieces[UNK]}:
            name = "source.spm" if content == models[0] else "target.spm"
            rows = [ids[piece] for piece in own]
            found.append(Side(rows, name, {name: content}))
            continue
        order = [EOS, UNK, *range(EOS + 1, len(pieces))]
        listed = {pieces[token]: index for index, token in enumerate(order)}
        text = yaml.safe_dump(listed, allow_unicode=True, sort_keys=False)
        name = "vocab.yml" if names[0] == names[1] else f"{side}.yml"
        files = {f"{side}.spm": content, name: text.encode()}
        found.append(Side(order, name, files))
    return found
