"""Marian checkpoints of Hugging Face, such as OPUS-MT models, as our parameters.

The inverse of `jaxformer.exports.marian`. Published models differ from the paper's in
biases, activation and the layer norm's epsilon, for which `TransformerConfig` has
fields. Models that differ in anything else are refused.

Our vocabulary is PAD, UNK, BOS, EOS, then all other pieces in their order. Published
models start the decoder with their padding piece, so its row of the embedding becomes
the rows of our BOS and PAD. A checkpoint has one vocabulary, vocab.json, or that of
sources and target_vocab.json.
"""

from pathlib import Path

from jaxformer.exports import huggingface, marian
from jaxformer.exports.checkpoint import Checkpoint, Json, UnsupportedError
from jaxformer.exports.huggingface import fault
from jaxformer.models.embeddings import NAMES


def read_marian(folder: Path) -> Checkpoint:
    """Read a checkpoint; raises what `jaxformer.exports.reading` makes messages of.

    The parameters fit a `Transformer` with the fields `model` and as many ids as the
    vocabularies have.
    """
    settings = huggingface.read_json(folder / "config.json")
    model = _model(settings)
    found = [_vocabulary(settings, folder, "vocab.json", "vocab_size")]
    if (folder / "target_vocab.json").exists():
        if model["tied_embeddings"] == "all":
            raise fault(settings, marian.TIE_KEYS[0], "and target_vocab.json exists")
        name = "target_vocab.json"
        found.append(_vocabulary(settings, folder, name, "decoder_vocab_size"))
    rows = dict.fromkeys(NAMES, found[-1][1]) | {"source_embedding": found[0][1]}
    params = huggingface.from_tensors(huggingface.read_tensors(folder), model, rows)
    models = [folder / f"{side}.spm" for side in ("source", "target")]
    return Checkpoint(model, params, [pieces for pieces, _ in found], models)


def _model(settings: Json) -> Json:
    ties = tuple(settings.get(key, True) for key in marian.TIE_KEYS)
    names = {values: name for name, values in marian.TIES.items()}
    if not all(type(each) is bool for each in ties) or ties not in names:
        raise fault(settings, marian.TIE_KEYS[1], "though the embeddings are shared")
    chosen = {"norm_first": False, "positions": "sinusoidal", "first_input": "bos"}
    chosen["tied_embeddings"] = names[ties]
    return huggingface.fields_of(settings, marian.FIXED, chosen)


def _vocabulary(
    settings: Json, folder: Path, file: str, key: str
) -> tuple[list[str], list[int]]:
    """Return the pieces of a file by our ids, and the row of each in Marian."""
    size, ids = huggingface.integer(settings, key), huggingface.read_json(folder / file)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(size))):
        raise UnsupportedError(
            f"{file} does not name the ids 0 to {size - 1}, one piece each, as {key} "
            "in config.json demands"
        )
    if "<unk>" not in ids:
        raise UnsupportedError(f"{file} has no piece '<unk>'")
    names, unknown = sorted(ids, key=ids.get), ids["<unk>"]
    pad, start, eos = (
        huggingface.integer(settings, f"{name}_token_id", least=0, most=size - 1)
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
