"""Hugging Face's MarianMTModel computes what we compute, from what the export wrote."""

import re
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.exports import parameters
from jaxformer.exports.huggingface import stream_scale
from jaxformer.exports.reading import read_checkpoint
from jaxformer.system.errors import InputError
from jaxformer.text.tokenizer import pack_tokenizer, pair_of
from jaxformer.text.vocabulary import train_tokenizer
from jaxformer.tokens import BOS, EOS, PAD, UNK
from tests.exports.conftest import (
    UNTIED,
    assert_transformers_agrees,
    log_probabilities,
    odd_lines,
    sources_of,
    tokenizer_of,
)

pytest.importorskip("safetensors", reason="not installed: extra `export`")

VARIANTS = {
    "paper": {},
    "one layer, small epsilon": {"layers": 1, "layer_norm_epsilon": 1e-8},
    "deep encoder, odd heads": {"encoder_layers": 3, "d_model": 18, "d_k": 9, "d_v": 9},
    "biases, epsilon between": {
        "biases": "all", "activation": "swish", "layer_norm_epsilon": 5.1e-6,
    },
}  # fmt: skip
TEXT = [
    "A man in a blue shirt is standing on a ladder .",
    "Zwei Hunde laufen über die größte Straße; „schnell“.",
    "p < q > k / x@@y ½ … H₂O",
    "of <s> and </s> and <pad> and <unk>, all text",
]


CONFIG = SimpleNamespace(
    tags=[], user_defined_symbols=(), model_type="bpe", vocab_size=120,
    character_coverage=1.0, vocab_sentences=99, seed=0, byte_fallback=False,
)  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_equal(variant, make_model, export_to_marian, transformers, batch):
    model, params = make_model(**VARIANTS[variant])
    folder, ids = export_to_marian(model, params), np.arange(model.vocab_size)
    assert_transformers_agrees(transformers, folder, model, params, batch, ids)


@pytest.mark.parametrize("changes", UNTIED)
def test_untied_embeddings_and_two_vocabularies(
    changes, make_model, export_to_marian, transformers, batch
):
    model, params = make_model(**changes)
    folder = export_to_marian(model, params, tokenizer_of(model))
    batch, ids = sources_of(model, batch), np.arange(model.vocab_size)
    assert_transformers_agrees(transformers, folder, model, params, batch, ids)


def test_its_search_is_as_ours(make_model, export_to_marian, transformers, batch):
    """It takes our most probable pieces, and never a reserved one."""
    model, params = make_model(biases="logits")
    params["logits_bias"][[PAD, UNK, BOS, EOS]] = 99.0, 99.0, 99.0, 5.0
    folder = export_to_marian(model, params)
    source, segments = np.asarray(batch.source), np.asarray(batch.source_segments)
    how = {"num_beams": 1, "max_length": 20, "forced_eos_token_id": None}
    found = transformers("generate", folder, source, segments, **how)
    assert set(found[:, 0]) == {BOS}
    target = found[:, 1:].astype(np.int32)
    real = (target != PAD).astype(np.int32)
    batch = batch._replace(target=target, target_segments=real)
    expected = log_probabilities(model, params, batch)
    expected[..., [PAD, UNK, BOS]] = -np.inf
    np.testing.assert_array_equal(target, expected.argmax(axis=-1) * real)
    assert 3 < np.count_nonzero((target == EOS).any(axis=1)) < len(target)
    settings = transformers("generation_config", folder)
    assert (settings["num_beams"], settings["length_penalty"]) == (4, 0.6)
    assert settings["no_repeat_ngram_size"] == 99
    assert (settings["max_length"], settings["forced_eos_token_id"]) == (64, EOS)


@pytest.mark.parametrize("changes", [{}, {"byte_fallback": True, "vocab_size": 380}])
def test_ids_and_text_are_equal(make_model, export_to_marian, transformers, changes):
    tokenizer = train_tokenizer(TEXT, SimpleNamespace(**vars(CONFIG) | changes))
    model, params = make_model(vocab_size=tokenizer.vocab_size)
    folder = export_to_marian(model, params, tokenizer)
    text = [*TEXT, "😀 of <s>" if changes else "Ω", "Ω man Ωψ", "", "größte man"]
    ids = tokenizer.encode(text)
    assert transformers("encode", folder, text) == ids
    assert transformers("encode", folder, text, side="text_target") == ids
    odd = odd_lines(["man", "größte", " "], 400)
    names = {"re": re, "unicodedata": unicodedata}
    exec(parameters.template("program.txt"), names)
    prepared = [" " + names["normalise"](line) for line in odd]  # as the card does
    assert transformers("encode", folder, prepared) == tokenizer.encode(odd)
    for row, sentence in zip(ids, text[: len(TEXT) + bool(changes)], strict=False):
        answer = [BOS, *row, PAD, PAD]
        assert transformers("decode", folder, answer) == sentence
    facts = transformers("tokenizer_facts", folder)
    assert facts["class"] == "MarianTokenizer"
    assert facts["reserved"] == [PAD, UNK, BOS, EOS]


def test_ids_and_text_of_two_vocabularies_are_equal(
    make_model, export_to_marian, transformers
):
    sides = [train_tokenizer(TEXT[::step], CONFIG).content for step in (1, -2)]
    tokenizer = pair_of(*sides)
    sizes = tokenizer.vocab_size, tokenizer.source_vocab_size
    model, params = make_model(
        vocab_size=sizes[0], source_vocab_size=sizes[1], tied_embeddings="target"
    )
    folder = export_to_marian(model, params, tokenizer)
    text = [*TEXT, "Ω man Ωψ", "", "größte man"]
    encoded = tokenizer.encode(text), tokenizer.encode_target(text)
    assert transformers("encode", folder, text) == encoded[0]
    assert transformers("encode", folder, text, side="text_target") == encoded[1]
    assert encoded[0] != encoded[1]
    decoded = transformers("decode", folder, [BOS, *encoded[1][1], PAD])
    assert decoded == tokenizer.decode(encoded[1][1]) == TEXT[1]
    again = read_checkpoint(folder)
    files = *(file.read_bytes() for file in again.models), *again.vocabularies
    assert pack_tokenizer(*files) == tokenizer.content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": "learned"}, r"model\.positions=learned, only with sinusoidal"),
        ({"positions": "rotary"}, r"model\.positions=rotary, only with sinusoidal"),
        ({"decoder_self_attention": "ssru"}, r"attention=ssru, only with attention"),
        ({"norm_first": True}, r"model\.norm_first=True, only with False"),
        ({"d_v": 4}, r"model\.d_v=4, only with 8"),
        (
            {"d_model": 18, "num_heads": 4},
            "d_k=8, only with 9/2; .*d_v=8, only with 9/2",
        ),
        ({"encoder_projected_keys": 9}, r"encoder_projected_keys=9, only with None"),
        ({"attention_window": 9}, r"model\.attention_window=9, only with None"),
        ({"layer_norm_epsilon": 1.1e-5}, r"epsilon=1\.1e-05, only with 1e-05"),
    ],
)
def test_other_models_are_refused(changes, said, make_model, export_to_marian):
    with pytest.raises(InputError, match=f"{said}; export to another format"):
        export_to_marian(*make_model(**changes))


def test_a_scaled_stream_makes_up_for_the_epsilon_to_a_power_of_two():
    for epsilon in (1e-3, 1e-5, 1e-6, 1e-8):
        scale = float(stream_scale({"layer_norm_epsilon": epsilon}))
        assert 0.5 <= scale**2 * epsilon / 1e-5 <= 2
