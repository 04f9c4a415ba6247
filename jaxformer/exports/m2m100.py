"""M2M-100 and NLLB-200 of Hugging Face as our parameters, and back, bit by bit.

These are fairseq's pre-norm Transformers: biases everywhere but in the logits, one
embedding, sinusoids of fairseq, and a decoder that begins with EOS. Their tokeniser
names a language by a piece. It begins a source, and it is the first piece of a
translation. Here it is a tag: M2M-100's "__en__" is ">>en<<", NLLB's "eng_Latn" is
">>eng_Latn<<".

Hugging Face's ids 0 to 3 are <s>, <pad>, </s> and <unk>. Other ids are equal in both.
The files of the tokeniser are kept in the run as they are and exported again.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxformer.config.data import TAG
from jaxformer.config.languages import matching_codes
from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import huggingface
from jaxformer.exports.checkpoint import Checkpoint, Json, UnsupportedError
from jaxformer.exports.parameters import plain_fields, require_fields
from jaxformer.system.errors import InputError, did_you_mean, packages_of
from jaxformer.tokens import AnyTokenizer

MODEL = "sentencepiece.bpe.model"
# Beside it M2M-100 has vocab.json, NLLB tokenizer.json.
TOKENIZER_FILES = (
    "vocab.json", "added_tokens.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json",
)  # fmt: skip
IDS = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
RESERVED = ["<s>", "<pad>", "</s>", "<unk>"]
_ORDER = [IDS[name] for name in ("pad", "unk", "bos", "eos")]  # of our first ids
# Keys of config.json that our model fixes: the value, and that of a missing key.
_FIXED = {
    "model_type": ("m2m_100", None),
    "scale_embedding": (True, True),
    "tie_word_embeddings": (True, True),
    **{f"{name}_token_id": (IDS[name], IDS[name]) for name in ("bos", "pad", "eos")},
    "decoder_start_token_id": (IDS["eos"], IDS["eos"]),
}
FIELDS = {
    "norm_first": True,
    "positions": "fairseq",
    "first_input": "eos",
    "tied_embeddings": "all",
    "biases": "attention",
}
_LANGUAGE = re.compile(r"__(\w+)__|([a-z]{3}_[A-Z][a-z]{3})")


def read_m2m100(folder: Path) -> Checkpoint:
    """Read a checkpoint; raises what `jaxformer.exports.reading` makes messages of."""
    if not (folder / MODEL).is_file():
        raise InputError(
            f"{folder} lacks {MODEL}, which Transformers 5 does not save for NLLB; "
            "copy it from the published checkpoint"
        )
    settings = huggingface.read_json(folder / "config.json")
    model = huggingface.fields_of(settings, _FIXED, FIELDS)
    size = huggingface.integer(settings, "vocab_size")
    pieces = _pieces(folder, size)
    rows = {"embedding": [*_ORDER, *range(4, size)]}
    tensors = huggingface.read_tensors(folder)
    params = huggingface.from_tensors(tensors, model, rows)
    kept = (folder / name for name in TOKENIZER_FILES if (folder / name).is_file())
    tags = (piece for piece in pieces if re.fullmatch(TAG, piece))
    models = [folder / MODEL] * 2
    return Checkpoint(model, params, [pieces], models, tuple(kept), tuple(tags))


def _pieces(folder: Path, size: int) -> list[str]:
    """Return the piece of each of our ids; tags are those of languages."""
    if (folder / "vocab.json").is_file():
        ids = huggingface.read_json(folder / "vocab.json")
        added = _added_tokens(folder, len(ids))
    else:
        made = huggingface.read_json(folder / "tokenizer.json")
        settings = _read_any(folder / "tokenizer_config.json")
        if settings.get("legacy_behaviour"):  # a source ends with its language
            raise huggingface.fault(
                settings, "legacy_behaviour", "not False, in tokenizer_config.json"
            )
        try:
            ids = dict(made["model"]["vocab"])
            added = {str(each["content"]): each["id"] for each in made["added_tokens"]}
        except (LookupError, TypeError, ValueError):
            raise UnsupportedError("tokenizer.json has no vocabulary") from None
    ids |= added
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise UnsupportedError(
            f"its tokeniser's files do not name the ids 0 to {len(ids) - 1}, one each"
        )
    names = sorted(ids, key=ids.get)
    if names[:4] != RESERVED:
        raise UnsupportedError(f"its pieces begin with {names[:4]}, not {RESERVED}")
    if len(names) > size:
        raise UnsupportedError(f"it has {len(names)} pieces, and vocab_size is {size}")
    names += [f"<unused {n}>" for n in range(len(names), size)]
    codes = {name: _LANGUAGE.fullmatch(name) for name in added}
    tags = {name: f">>{code[1] or code[2]}<<" for name, code in codes.items() if code}
    if not tags:
        raise UnsupportedError("its tokeniser's files name no language")
    if others := sorted(added.keys() - {*tags, *RESERVED, "<mask>"}):
        raise UnsupportedError(f"its tokeniser adds {others[0]!r}, no language")
    names = [tags.get(name, name) for name in names]
    return [*(names[index] for index in _ORDER), *names[4:]]


def _added_tokens(folder: Path, size: int) -> Json:
    """Return the ids of M2M-100's languages, besides `size` pieces of vocab.json."""
    if ids := _read_any(folder / "added_tokens.json"):
        return ids
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = _read_any(folder / name)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            found = settings.get(key)
            if isinstance(found, list) and found:
                return {str(each): size + n for n, each in enumerate(found)}
    return {}


def _read_any(file: Path) -> Json:
    """Read an object of JSON; {} without a file."""
    return huggingface.read_json(file) if file.is_file() else {}


def export_m2m100(
    folder: Path,
    config: Config,
    params: dict,
    tokenizer: AnyTokenizer,
    options: TranslateOptions,
) -> None:
    """Write model, tokeniser and search settings into an existing folder.

    `params` are nested dicts of arrays, and the tokeniser is that of an import. Raises
    InputError, before it writes, for a model that this layout cannot hold.
    """
    with packages_of("export"):
        import safetensors.numpy
    model, pieces = config.model, tokenizer.pieces()
    require_fields("M2M-100's layout", model, {
        **plain_fields(model),
        **{field: (value,) for field, value in FIELDS.items()},
        "layer_norm_epsilon": (huggingface.LAYER_NORM_EPSILON,),
    })  # fmt: skip
    rows = {"embedding": np.argsort([*_ORDER, *range(4, len(pieces))])}
    tensors = huggingface.to_tensors(model, params, rows)
    content = safetensors.numpy.save(tensors, {"format": "pt"})
    (folder / "model.safetensors").write_bytes(content)
    (folder / MODEL).write_bytes(tokenizer.source_model)
    for name in TOKENIZER_FILES:  # a damaged run may have files of other names
        if name in tokenizer.files:
            (folder / name).write_bytes(tokenizer.files[name])
    fixed = {key: value for key, (value, _) in _FIXED.items()}
    huggingface.write_json(folder / "config.json", {
        "architectures": ["M2M100ForConditionalGeneration"],
        "is_encoder_decoder": True,
        **fixed,
        **{key: getattr(model, field) for key, field in huggingface.SIZES.items()},
        "vocab_size": len(pieces),
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    })  # fmt: skip
    tag = config.data.only_target_tag
    forced = {"forced_bos_token_id": pieces.index(tag)} if tag else {}
    huggingface.write_json(folder / "generation_config.json", {
        **{key: value for key, value in fixed.items() if key.endswith("_token_id")},
        **forced,
        "bad_words_ids": [[IDS[name]] for name in ("pad", "unk", "bos")],
        "length_penalty": options.alpha,
        "no_repeat_ngram_size": options.no_repeat_ngram,
        "max_length": model.max_positions,
        "num_beams": options.beam_size,
    })  # fmt: skip


def tag_of_language(tags: Sequence[str], code: str, key: str) -> str:
    """Return the tag of a language, such as ">>deu_Latn<<" of "de".

    Raises InputError, which names `key`, if there is none or more than one.
    """
    names = {tag[2:-2]: tag for tag in tags}
    if code in names:
        return names[code]
    found = [names[each] for each in matching_codes(code, names)]
    if len(found) != 1:
        which = "several of its" if found else "none of its"
        near = did_you_mean(code, names, f"such as {next(iter(names))}")
        raise InputError(
            f"{key}={code} is {which} languages, which are written as in its tokeniser"
            f"{near}"
        )
    return found[0]
