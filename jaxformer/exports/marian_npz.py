"""Marian's own checkpoints, a folder with model.npz and decoder.yml, both ways.

`decoder.yml` names the model and the vocabularies: SentencePiece models, or vocab.yml
beside source.spm and target.spm. The settings are YAML inside model.npz. Names and
layout are those of Marian's `src/models/transformer.h` and `src/rnn/cells.h`. Matrices
are [inputs, outputs] as ours.

Marian's decoder begins with zeros instead of an embedding, and it has no padding. So
our PAD and BOS are additional ids, and a bias of the logits makes them improbable.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports.checkpoint import (
    Checkpoint,
    Fields,
    Json,
    UnsupportedError,
)
from jaxformer.exports.parameters import flat, nested, plain_fields, require_fields
from jaxformer.models.transformer.config import BIASES
from jaxformer.system.errors import InputError, packages_of
from jaxformer.system.files import entries
from jaxformer.tokens import BOS, EOS, PAD, UNK, AnyTokenizer

# What zipfile and NumPy raise.
_DAMAGE = ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error
SETTINGS = "special:model.yml"  # the array of bytes
DECODER = "decoder.yml"
NEVER = -100.0  # the bias of PAD and BOS: their probability is 0 in float32
RESERVED = {"</s>": EOS, "<unk>": UNK}
# What our model fixes, by key; a missing key is the first value.
FIXED: dict[str, tuple] = {
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
TIES = {"all": "tied-embeddings-all", "target": "tied-embeddings", "none": ""}
POSITIONS = "transformer-train-positions", "transformer-train-position-embeddings"
# The names of our embeddings' arrays, for each `model.tied_embeddings`.
EMBEDDINGS = {
    "all": {"Wemb": "embedding"},
    "target": {"encoder_Wemb": "source_embedding", "decoder_Wemb": "embedding"},
}
OUTPUT = "decoder_ff_logit_out"
EMBEDDINGS["none"] = EMBEDDINGS["target"] | {f"{OUTPUT}_Wt": "output_embedding"}


class Leaf(NamedTuple):
    """One parameter of a layer, ours and Marian's; both have the same order."""

    ours: str
    theirs: str
    shape: tuple[int, ...]  # ours
    matrix: tuple[int, int]  # theirs


def leaves(fields: Fields) -> Iterator[Leaf]:
    """Yield each parameter of the layers of a `TransformerConfig` of these fields."""
    d, f = fields["d_model"], fields["d_ff"]
    heads = fields["num_heads"], fields["d_k"]
    pre = "_pre" if fields["norm_first"] else ""
    uses_ssru = fields["decoder_self_attention"] == "ssru"

    def linear(ours: str, theirs: str, *shape: int, inputs: int) -> Iterator[Leaf]:
        first, _, letter = theirs.rpartition("_W")
        columns = int(np.prod(shape)) // inputs
        yield Leaf(f"{ours}/kernel", theirs, shape, (inputs, columns))
        bias = heads if shape[0] == d and len(shape) == 3 else (columns,)
        yield Leaf(f"{ours}/bias", f"{first}_b{letter}", bias, (1, columns))

    def norm(ours: str, theirs: str) -> Iterator[Leaf]:
        yield Leaf(f"{ours}/scale", theirs.format("scale"), (d,), (1, d))
        yield Leaf(f"{ours}/bias", theirs.format("bias"), (d,), (1, d))

    for stack in ("encoder", "decoder"):
        for n in range(fields[f"{stack}_layers"]):
            our, own = f"{stack}/layer_{n}", f"{stack}_l{n + 1}"
            kinds = {"self_attention": "self", "cross_attention": "context"}
            if stack == "encoder":
                del kinds["cross_attention"]
            elif uses_ssru:
                del kinds["self_attention"]
                square = (d, d), (d, d)
                yield Leaf(f"{our}/ssru/value/kernel", f"{own}_rnn_W", *square)
                yield from linear(f"{our}/ssru/forget", f"{own}_rnn_Wf", d, d, inputs=d)
                name = f"{own}_rnn{'' if pre else '_ffn'}_ln_{{}}{pre}"
                yield from norm(f"{our}/ssru_sublayer/norm", name)
            for kind, letter in kinds.items():
                for part in ("query", "key", "value"):
                    name = f"{own}_{letter}_W{part[0]}"
                    yield from linear(f"{our}/{kind}/{part}", name, d, *heads, inputs=d)
                name = f"{own}_{letter}_Wo"
                yield from linear(f"{our}/{kind}/output", name, *heads, d, inputs=d)
                yield from norm(f"{our}/{kind}_sublayer/norm", f"{name}_ln_{{}}{pre}")
            name = f"{own}_ffn"
            ours = f"{our}/feed_forward"
            yield from linear(f"{ours}/hidden", f"{name}_W1", d, f, inputs=d)
            yield from linear(f"{ours}/output", f"{name}_W2", f, d, inputs=f)
            name = f"{name}_ffn_ln_{{}}{pre}"
            yield from norm(f"{our}/feed_forward_sublayer/norm", name)
        if fields["norm_first"]:
            yield from norm(f"{stack}/norm", f"{stack}_top_ln_{{}}")


# --- read -----------------------------------------------------------------------------


def read_npz(folder: Path) -> Checkpoint:
    """Read a folder; raises what `jaxformer.exports.reading` makes messages of."""
    with packages_of("export"):
        import yaml
    (file,) = entries(folder, f"*{DECODER}")[:1]
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
    vocabularies, models = _vocabularies(yaml, folder, paths[1])
    if (len(vocabularies) == 1) < (model["tied_embeddings"] == "all"):
        raise UnsupportedError("its embeddings are tied and its vocabularies differ")
    params = _parameters(arrays, model, [rows for _, rows in vocabularies])
    return Checkpoint(model, params, [pieces for pieces, _ in vocabularies], models)


def _arrays(file: Path) -> dict[str, np.ndarray]:
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
    except (yaml.YAMLError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise UnsupportedError(f"{name} is no YAML of keys")
    return values


def _model(settings: Json, arrays: Mapping[str, np.ndarray]) -> Json:
    """Return the fields of a `TransformerConfig`, without biases."""
    for key, values in FIXED.items():
        if settings.get(key, values[0]) not in values:
            allowed = " or ".join(map(repr, values))
            raise UnsupportedError(f"it has {key}={settings[key]!r}, not {allowed}")
    keys = "preprocess", "postprocess", "postprocess-top"
    norms = (str(settings.get(f"transformer-{key}") or "") for key in keys)
    norms = tuple(each.replace("d", "") for each in norms)
    if norms not in NORMS:
        raise UnsupportedError(
            f"it has transformer-{', -'.join(keys)} {', '.join(map(repr, norms))} "
            "besides dropout; '', 'an', '' (post-norm) or 'n', 'a', 'n' (pre-norm) can "
            "be imported"
        )
    ties = [name for name, key in TIES.items() if not key or settings.get(key)]
    sizes = {
        "encoder_layers": "enc-depth", "decoder_layers": "dec-depth",
        "d_model": "dim-emb", "num_heads": "transformer-heads",
        "d_ff": "transformer-dim-ffn",
    }  # fmt: skip
    model: Json = {field: settings.get(key) for field, key in sizes.items()}
    for field, key in sizes.items():
        most = 1000 if field.endswith("_layers") else 2**20
        if type(model[field]) is not int or not 1 <= model[field] <= most:
            raise UnsupportedError(f"it has {key}={model[field]!r}, no size")
    if settings.get("transformer-decoder-dim-ffn", 0) not in (0, model["d_ff"]):
        raise UnsupportedError(
            "its decoder has another transformer-decoder-dim-ffn than the encoder"
        )
    is_rnn = settings.get("transformer-decoder-autoreg") == "rnn"
    if is_rnn and settings.get("dec-cell") != "ssru":
        raise UnsupportedError(f"it has dec-cell={settings.get('dec-cell')}, not ssru")
    is_trained = "Wpos" in arrays  # Marian 1.12 has the key, and no such array
    unused = "attention_window", "encoder_projected_keys", "encoder_global_positions"
    size = model["d_model"] // model["num_heads"]
    return {
        "architecture": "transformer",
        **dict.fromkeys(unused),
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


def _vocabularies(
    yaml: ModuleType, folder: Path, paths: Sequence[Path]
) -> tuple[list[tuple[list[str], list[int]]], list[Path]]:
    """Return of each vocabulary the pieces by our ids, and their ids of ours.

    PAD and BOS have none: -1. Also returns the files of SentencePiece.
    """
    from jaxformer.text.tokenizer import SentencePieceModel

    models = [folder / f"{side}.spm" for side in ("source", "target")]
    names = []
    for path in dict.fromkeys(paths):
        if path.suffix == ".spm":
            names.append(SentencePieceModel(path.read_bytes()).pieces)
            models = [*paths]
            continue
        # As text, since "yes" and "1" are pieces.
        ids = _yaml(yaml, path.read_bytes(), path.name, "BaseLoader")
        places = {str(index): piece for piece, index in ids.items()}
        order = [*map(str, range(len(ids)))]
        if {*places} != {*order}:
            raise UnsupportedError(f"{path.name} does not name its ids, one piece each")
        names.append([places[index] for index in order])
    found = []
    for own in names:
        if missing := RESERVED.keys() - {*own}:
            raise UnsupportedError(f"its vocabulary has no piece {missing.pop()!r}")
        others = [index for index, name in enumerate(own) if name not in RESERVED]
        rows = [-1, own.index("<unk>"), -1, own.index("</s>"), *others]
        pieces = [own[index] if index >= 0 else "" for index in rows]
        for token, name in ((PAD, "<pad>"), (BOS, "<s>")):
            while name in own:
                name = f"<{name}>"
            pieces[token] = name
        found.append((pieces, rows))
    return found, models


def _parameters(
    arrays: dict[str, np.ndarray], model: Json, rows: Sequence[Sequence[int]]
) -> dict:
    """Return our nested parameters; set `biases` in `model`."""
    names = EMBEDDINGS[model["tied_embeddings"]]
    if f"{OUTPUT}_W" in arrays:  # of models that did not transpose it
        arrays[f"{OUTPUT}_Wt"] = arrays.pop(f"{OUTPUT}_W").T
    rows_of = {"source_embedding": rows[0]}
    d, size = model["d_model"], max(rows[-1]) + 1
    expected = {leaf.theirs: leaf.matrix for leaf in leaves(model)}
    for name, ours in names.items():
        expected[name] = max(rows_of.get(ours, rows[-1])) + 1, d
    if model["positions"] == "learned_unscaled":
        expected["Wpos"] = model["max_positions"], d
    arrays.setdefault(f"{OUTPUT}_b", np.zeros((1, size), np.float32))
    expected[f"{OUTPUT}_b"] = 1, size
    for name in sorted(arrays.keys() | expected.keys()):
        found = arrays[name].shape if name in arrays else "missing"
        if found != expected.get(name):
            raise UnsupportedError(
                f"the shape of {name} is {found}, and its settings expect "
                f"{expected.get(name, 'no such array')}"
            )
        if arrays[name].dtype.kind != "f":
            raise UnsupportedError(f"{name} has the type {arrays[name].dtype}")
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    params = {
        leaf.ours: arrays[leaf.theirs].reshape(leaf.shape) for leaf in leaves(model)
    }
    for name, ours in names.items():
        own = np.array(rows_of.get(ours, rows[-1]))
        params[ours] = np.where(own[:, None] < 0, np.float32(0), arrays[name][own])
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
    sides = _sides(tokenizer)
    left, fields = flat(params), vars(model)
    rows_of = {"source_embedding": sides[0].rows}
    arrays = {
        name: left.pop(ours)[rows_of.get(ours, sides[-1].rows)]
        for name, ours in EMBEDDINGS[model.tied_embeddings].items()
    }
    arrays[f"{OUTPUT}_b"] = left.pop("logits_bias")[sides[-1].rows][None]
    if "position_embedding" in left:
        arrays["Wpos"] = left.pop("position_embedding")
    for leaf in leaves(fields):
        arrays[leaf.theirs] = left.pop(leaf.ours).reshape(leaf.matrix)
    assert not left, left  # `require_fields` has refused what would be
    norms = next(norms for norms, first in NORMS.items() if first == model.norm_first)
    settings = {
        **{key: values[0] for key, values in FIXED.items()},
        "enc-depth": model.encoder_layers,
        "dec-depth": model.decoder_layers,
        "dim-emb": model.d_model,
        "dim-vocabs": [len(sides[0].rows), len(sides[-1].rows)],
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-activation": model.activation,
        "transformer-preprocess": norms[0],
        "transformer-postprocess": f"d{norms[1]}",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": norms[2],
        **dict.fromkeys(POSITIONS, model.positions == "learned_unscaled"),
        **{key: key == TIES[model.tied_embeddings] for key in TIES.values() if key},
        "version": "jaxformer",
    }
    if model.decoder_self_attention == "ssru":
        settings |= {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
        settings |= {"dec-cell-base-depth": 2, "dec-cell-high-depth": 1}
    text = yaml.safe_dump(settings, sort_keys=True) + "\0"
    arrays[SETTINGS] = np.frombuffer(text.encode(), np.int8)
    np.savez(folder / "model.npz", **arrays)
    for name, content in {**sides[0].files, **sides[-1].files}.items():
        (folder / name).write_bytes(content)
    decoder = {
        "relative-paths": True,
        "models": ["model.npz"],
        "vocabs": [sides[0].vocabulary, sides[-1].vocabulary],
        "beam-size": options.beam_size,
        "normalize": options.alpha,
    }
    (folder / DECODER).write_text(yaml.safe_dump(decoder, sort_keys=False))


class Side(NamedTuple):
    """A vocabulary in Marian's form."""

    rows: list[int]  # our ids by Marian's
    vocabulary: str  # the name of its file
    files: dict[str, bytes]


def _sides(tokenizer: AnyTokenizer) -> list[Side]:
    """Return the vocabularies of source and target; one, if they share it."""
    import yaml

    from jaxformer.text.tokenizer import SentencePieceModel

    names = tokenizer.source_pieces(), tokenizer.pieces()
    models = tokenizer.source_model, tokenizer.target_model
    found = []
    for side, pieces, content in zip(("source", "target"), names, models, strict=True):
        files = {f"{side}.spm": content}
        own = SentencePieceModel(content).pieces
        ids = {piece: index for index, piece in enumerate(pieces)} | RESERVED
        if {*own} == {*pieces[EOS:], pieces[UNK]}:
            found.append(Side([ids[piece] for piece in own], f"{side}.spm", files))
            continue
        order = [EOS, UNK, *range(EOS + 1, len(pieces))]
        listed = {pieces[token]: index for index, token in enumerate(order)}
        text = yaml.safe_dump(listed, allow_unicode=True, sort_keys=False)
        name = "vocab.yml" if names[0] == names[1] else f"{side}.yml"
        found.append(Side(order, name, files | {name: text.encode()}))
    if found[0].rows == found[1].rows and models[0] == models[1]:
        return [found[0]]
    return found
