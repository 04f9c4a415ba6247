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

from pathlib import Path

import numpy as np

from jaxformer.config.sections import Config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.exports import huggingface
from jaxformer.exports.parameters import plain_fields, require_fields
from jaxformer.models.embeddings import NAMES
from jaxformer.models.transformer.config import TransformerConfig
from jaxformer.system.errors import packages_of
from jaxformer.tokens import BOS, EOS, PAD, UNK, AnyTokenizer

LONGEST = 512  # pieces that Transformers' search may generate
# Keys of config.json by `model.tied_embeddings`, (True, True) where they are missing.
TIES = {"all": (True, True), "target": (False, True), "none": (False, False)}
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
        **{key: getattr(model, field) for key, field in huggingface.SIZES.items()},
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
        huggingface.write_json(folder / name, values)


def _tensors(config: TransformerConfig, params: dict) -> dict[str, np.ndarray]:
    most = huggingface.LAYER_NORM_EPSILON
    require_fields("Hugging Face's Marian layout", config, {
        **plain_fields(config),
        "positions": ("sinusoidal",),
        "first_input": ("bos",),
        "norm_first": (False,),
        "layer_norm_epsilon": (min(config.layer_norm_epsilon, most),),
    })  # fmt: skip
    rows = dict.fromkeys(NAMES, slice(None))
    tensors = huggingface.to_tensors(config, params, rows)
    no_bias = np.zeros((1, len(params["embedding"])), np.float32)
    return {huggingface.LOGITS_BIAS: no_bias, **tensors}
