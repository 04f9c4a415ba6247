"""CTranslate2 computes what we compute, from what the export wrote."""

import json
from unittest import mock

import jax
import numpy as np
import pytest
import sentencepiece

from jaxformer.exports.ctranslate2 import write_ctranslate2
from jaxformer.system.errors import InputError
from jaxformer.tokens import EOS
from tests.exports.conftest import (
    OPTIONS,
    UNTIED,
    log_probabilities,
    run_config,
    sources_of,
    tokenizer_of,
)

ctranslate2 = pytest.importorskip("ctranslate2", reason="not installed: extra `export`")
VARIANTS = {
    "paper": {},
    "learned positions, small heads": {"positions": "learned", "d_k": 4, "d_v": 4},
    "pre-norm, deep encoder": {"norm_first": True, "encoder_layers": 3},
    "small values": {"d_v": 3},
    "fairseq": {"norm_first": True, "positions": "fairseq", "first_input": "eos"},
    "Marian": {"positions": "tensor2tensor", "first_input": "zeros"},
    "published, small keys": {
        "biases": "all", "activation": "swish",
        "layer_norm_epsilon": 1e-3, "d_k": 3,
    },
}  # fmt: skip


@pytest.fixture
def export(tmp_path, words):
    """Write a model; returns the folder."""

    def write(model, params, *, quantization="float32", tokenizer=words):
        folder = tmp_path / quantization
        folder.mkdir()
        arguments = run_config(model), params, tokenizer, OPTIONS
        write_ctranslate2(folder, *arguments, quantization=quantization)
        return folder

    return write


def both_log_probabilities(model, params, batch, folder):
    """Of every piece of the targets, EOS included, ours and CTranslate2's."""
    target = np.asarray(batch.target)
    ours = log_probabilities(model, params, batch)
    ours = np.take_along_axis(ours, target[..., None], axis=-1)[..., 0]
    files = sorted(folder.glob("*_vocabulary.json"))
    pieces = [json.loads(file.read_text()) for file in files] * 2
    sides = [  # to both of which CTranslate2 adds EOS
        [[own[i] for i in row if i > EOS] for row in side.tolist()]
        for own, side in zip(pieces, (batch.source, batch.target), strict=False)
    ]
    found = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(*sides)
    return ours[target != 0], np.concatenate([row.log_probs for row in found])


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_probabilities_are_equal(make_model, export, batch, variant):
    model, params = make_model(**VARIANTS[variant])
    ours, theirs = both_log_probabilities(model, params, batch, export(model, params))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert np.std(ours) > 1  # so that errors would show


@pytest.mark.parametrize("changes", UNTIED)
def test_untied_embeddings_and_two_vocabularies(make_model, export, batch, changes):
    model, params = make_model(**changes)
    folder = export(model, params, tokenizer=tokenizer_of(model))
    is_separate = changes["source_vocab_size"] != model.vocab_size
    assert (folder / "source_vocabulary.json").exists() == is_separate
    batch = sources_of(model, batch)
    ours, theirs = both_log_probabilities(model, params, batch, folder)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    readme = (folder / "README.md").read_text()
    assert ("`target_vocabulary.json`" in readme) == is_separate
    program = (folder / "translate.py").read_text()
    assert ('FOLDER / "source_vocabulary.json"' in program) == is_separate


@pytest.mark.parametrize(
    ("quantization", "tolerance"), [("float16", 0.01), ("int16", 0.6), ("int8", 0.6)]
)
def test_quantized_models_are_near(make_model, export, batch, quantization, tolerance):
    """They load on a CPU and are smaller, and the run's parameters stay unchanged.

    So small and sharp a model suffers more from few bits than a trained one. Many CPUs
    run int16 as int8.
    """
    model, params = make_model()
    before = jax.tree.map(np.copy, params)
    folders = export(model, params), export(model, params, quantization=quantization)
    jax.tree.map(np.testing.assert_array_equal, params, before)
    large, small = ((folder / "model.bin").stat().st_size for folder in folders)
    assert small < large
    assert f"with {quantization} weights" in (folders[1] / "README.md").read_text()
    ours, theirs = both_log_probabilities(model, params, batch, folders[1])
    assert np.mean(np.abs(ours - theirs)) < tolerance


def test_what_cannot_be_expressed_is_refused(make_model, export, tmp_path):
    model, params = make_model()
    damaged = {**params, "gate": {"kernel": np.array([1, np.inf])}}
    ssru = {"decoder_self_attention": "ssru"}
    unscaled = {"positions": "learned_unscaled"}
    for kind, exported, said in [
        ("float32", make_model(attention_window=9), r"window=9, only with None; exp"),
        ("float16", make_model(positions="rotary"), r"positions=rotary, only with"),
        ("bfloat16", make_model(**unscaled), r"positions=learned_unscaled, only with"),
        ("int8", make_model(**ssru), r"attention=ssru, only with attention; export"),
        ("int4", (model, params), r"cannot write int4 weights here .* float16"),
        ("int16", (model, damaged), r"parameter gate/kernel is not finite"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            export(*exported, quantization=kind)
    assert not any(list(folder.iterdir()) for folder in tmp_path.iterdir())


def test_multilingual_models_and_two_tokenisers(make_model, export, words, monkeypatch):
    """The program passes on a language of the vocabulary, and only that."""

    class Published(type(words)):
        source_model, target_model = b"of the source", b"of the target"

        def pieces(self):
            return [*super().pieces()[:-1], ">>fra<<"]

    folder = export(*make_model(), tokenizer=Published(40))
    assert (folder / "source.spm").read_bytes() == b"of the source"
    assert (folder / "target.spm").read_bytes() == b"of the target"
    assert "`source.spm` and `target.spm`" in (folder / "README.md").read_text()
    program = (folder / "translate.py").read_text()
    assert 'SentencePieceProcessor(str(FOLDER / "target.spm"))' in program
    tokenizer = mock.Mock(encode=lambda text, out_type: list(text))
    names = {"source_tokenizer": tokenizer, "FOLDER": folder}
    exec("import json, re, unicodedata", names)
    exec(program[program.index("PIECES =") : program.index("def best")], names)
    assert names["encode"](" >>fra<<  a") == [">>fra<<", "a"]
    assert names["encode"](">>deu<< a") == list(">>deu<< a")  # as any other word
    assert names["encode"](">>fra<< ") == []
    names["TAG"] = ">>fra<<"
    assert names["encode"]("a") == [">>fra<<", "a"] == names["encode"](">>fra<<a")
    assert names["encode"](" ") == []


def test_the_program_cuts_sources_and_translations_at_the_last_position(
    make_model, export, monkeypatch, capsys
):
    """One long line does not end the translation of the others."""
    model, params = make_model(positions="learned", max_positions=16, biases="logits")
    params["logits_bias"][EOS] = -50.0  # no translation ends by itself
    folder = export(model, params)
    side = mock.Mock(
        encode=lambda text, out_type: text.split(),
        decode=lambda pieces: " ".join(pieces),
    )
    monkeypatch.setattr(sentencepiece, "SentencePieceProcessor", lambda _: side)
    file = folder / "translate.py"
    exec(file.read_text(), names := {"__file__": file, "__name__": "program"})
    texts = names["translate"](["5 6 7 8 9 10 11 12 13 14", "5 " * 40, "7"])
    assert [len(text.split()) for text in texts[:2]] == [15, 15]
    said = "line 2 has 40 pieces: only the first 15 are translated\n"
    assert capsys.readouterr().err == said
