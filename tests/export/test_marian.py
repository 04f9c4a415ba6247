"""Hugging Face's MarianMTModel computes what we compute, from what the export wrote."""

import json
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import BOS, EOS, PAD, UNK, Batch, shift_right
from jaxformer.data.tokenizer import train_tokenizer
from jaxformer.errors import InputError
from jaxformer.export.marian import export_marian, marian_tensors
from jaxformer.export.marian_layout import places, stream_scale

pytest.importorskip("safetensors", reason="not installed: extra `export`")

VARIANTS = {
    "paper": {},
    "no scale": {"layer_norm_epsilon": 1e-5},
    "small epsilon": {"layer_norm_epsilon": 1e-8},
    "one layer": {"encoder_layers": 1},
    "odd head": {"d_model": 18, "num_heads": 2, "d_k": 9, "d_v": 9},
    "published": {
        "attention_bias": True, "logits_bias": True, "activation": "swish",
        "layer_norm_epsilon": 1e-5,
    },
}  # fmt: skip
TEXT = [
    "A man in a blue shirt is standing on a ladder .",
    "Zwei Hunde laufen über die größte Straße; „schnell“.",
    "p < q > k / x@@y ½ … H₂O",
    "of <s> and </s> and <pad> and <unk>, all text",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    return train_tokenizer(
        TEXT, path, vocab_size=120, character_coverage=1.0, max_sentences=99, seed=0
    )


@pytest.fixture
def export(tmp_path, words):
    """Write a model; returns the folder."""

    def write(model, params, tokenizer=words):
        folder = tmp_path / "exported"
        folder.mkdir()
        export_marian(
            model.config, params, tokenizer, folder, source_language="en",
            target_language="de", beam_size=4, alpha=0.6,
        )  # fmt: skip
        return folder

    return write


@pytest.fixture
def load():
    """Load a folder as Transformers does, and nothing may be missing or left over."""
    pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")
    transformers = pytest.importorskip(
        "transformers", reason="Transformers is not installed: extra `torch`"
    )

    def read(folder):
        model, report = transformers.MarianMTModel.from_pretrained(
            folder, output_loading_info=True
        )
        assert not any(report.values()), report
        return model.eval()

    return read


@pytest.fixture
def load_tokenizer():
    transformers = pytest.importorskip(
        "transformers", reason="Transformers is not installed: extra `torch`"
    )
    return transformers.AutoTokenizer.from_pretrained


@pytest.fixture
def batch(words, sentences):
    """Sentences and, as their translations, the same ones in reverse order."""
    ids = words.encode(sentences)
    length = max(map(len, ids))
    rows = np.array([row + [PAD] * (length - len(row)) for row in ids], np.int32)
    segments = (rows != PAD).astype(np.int32)
    sides = (rows, rows[::-1], segments, segments[::-1])
    return Batch(*map(jnp.asarray, sides))


def logits_of(theirs, batch):
    """Of a whole target, by Transformers."""
    import torch

    source, segments, target = (
        torch.tensor(np.asarray(array)).long()
        for array in (
            batch.source,
            batch.source_segments,
            shift_right(batch.target, batch.target_segments),
        )
    )
    with torch.no_grad():
        return theirs(
            input_ids=source, attention_mask=segments, decoder_input_ids=target
        ).logits.numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_ours(variant, make_model, export, load, batch):
    model, params = make_model(**VARIANTS[variant])
    expected = np.asarray(model.logits(params, batch))
    logits = logits_of(load(export(model, params)), batch)
    real = np.asarray(batch.target_segments) != 0
    assert np.ptp(expected[real], axis=-1).min() > 5  # so that there is what can differ
    np.testing.assert_allclose(logits[real], expected[real], atol=1e-4)


def test_greedy_search_finds_what_ours_would(make_model, export, load, batch):
    """And never a reserved piece: logits of those may be as high as they like."""
    model, params = make_model(logits_bias=True)
    params["logits_bias"][[PAD, UNK, BOS]] = 99.0
    theirs = load(export(model, params))
    source = np.asarray(batch.source)[:8]
    segments = (source != PAD).astype(np.int32)
    steps = 12
    score = jax.jit(lambda rows: model.logits(params, rows))
    expected = np.full((8, steps), PAD, np.int32)
    is_open = np.ones(8, bool)
    for step in range(steps):
        rows = Batch(source, expected, segments, np.ones_like(expected))
        logits = np.array(score(rows))[:, step]
        logits[:, [PAD, UNK, BOS]] = -np.inf
        expected[:, step] = np.where(is_open, logits.argmax(-1), PAD)
        is_open &= expected[:, step] != EOS

    import torch

    found = theirs.generate(
        input_ids=torch.tensor(source).long(),
        attention_mask=torch.tensor(segments).long(),
        num_beams=1,
        max_length=1 + steps,
        forced_eos_token_id=None,
    ).numpy()
    assert (found[:, 0] == BOS).all()
    np.testing.assert_array_equal(found[:, 1:], expected[:, : found.shape[1] - 1])
    assert (expected[:, found.shape[1] - 1 :] == PAD).all()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_ids_and_text_are_ours(tokenizer, make_model, export, load_tokenizer):
    model, params = make_model(vocab_size=tokenizer.vocab_size)
    theirs = load_tokenizer(export(model, params, tokenizer))
    assert type(theirs).__name__ == "MarianTokenizer"
    text = [*TEXT, "Ω man Ωψ", "", "größte man"]
    ids = tokenizer.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs(text_target=text)["input_ids"] == ids
    for row, sentence in zip(tokenizer.encode(TEXT), TEXT, strict=True):
        assert theirs.decode(row, skip_special_tokens=True) == sentence
        answer = [BOS, *row, PAD, PAD]
        assert theirs.decode(answer, skip_special_tokens=True) == sentence
    names = ("pad", "unk", "bos", "eos")
    found = tuple(getattr(theirs, f"{name}_token_id") for name in names)
    assert found == (PAD, UNK, BOS, EOS)


def test_the_search_is_set_up_as_ours(make_model, export):
    folder = export(*make_model())
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings["num_beams"] == 4
    assert settings["length_penalty"] == 0.6
    assert settings["decoder_start_token_id"] == BOS
    assert settings["bad_words_ids"] == [[PAD], [UNK], [BOS]]
    config = json.loads((folder / "config.json").read_text())
    assert (config["pad_token_id"], config["eos_token_id"]) == (PAD, EOS)


@pytest.mark.parametrize(
    ("epsilon", "scale"), [(1e-5, 1), (1e-6, 4), (2.5e-6, 2), (1e-8, 32), (1e-3, 1 / 8)]
)
def test_the_scale_is_a_power_of_two_near_the_one_wanted(epsilon, scale):
    assert stream_scale(epsilon) == scale
    assert 0.5 <= 1e-5 / scale**2 / epsilon <= 2


def test_a_scaled_stream_is_undone_by_what_reads_it(make_model):
    """Whatever the scale, the functions between norms get what they got."""
    model, params = make_model()
    tensors = marian_tensors(model.config, params)
    layer = params["encoder"]["layer_0"]
    first, order = "model.encoder.layers.0", np.r_[0:16:2, 1:16:2]
    norm, hidden, output = (
        tensors[f"{first}.{name}.weight"]
        for name in ("self_attn_layer_norm", "fc1", "fc2")
    )
    ours = layer["feed_forward"]
    norm_scale = layer["self_attention_sublayer"]["norm"]["scale"]
    np.testing.assert_array_equal(norm, 4 * norm_scale[order])
    np.testing.assert_array_equal(hidden, ours["hidden"]["kernel"][order].T / 4)
    np.testing.assert_array_equal(output, 4 * ours["output"]["kernel"].T[order])


def test_every_parameter_has_one_place(make_model):
    _, params = make_model(attention_bias=True, encoder_layers=3)
    layers = {"encoder": 3, "decoder": 2}
    paths = [place.path for place in places(layers)]
    names = {place.name for place in places(layers)}
    assert len(paths) == len(names) == len(set(paths))
    flat = {
        (stack, layer, module, part, kind)
        for stack in ("encoder", "decoder")
        for layer, modules in params[stack].items()
        for module, parts in modules.items()
        for part, kinds in parts.items()
        for kind in kinds
    }
    assert flat == set(paths)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": "learned"}, r"model\.positions='learned'"),
        ({"norm_first": True}, r"model\.norm_first=True"),
        ({"d_k": 4}, r"model\.d_k=4 and model\.d_v=8 instead of .* = 8"),
        ({"d_k": 4, "d_v": 4}, r"d_model / num_heads = 8 for both"),
        ({"attention_window": 9}, r"model\.attention_window=9 instead of None"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused(
    changes, said, make_model, words, tmp_path
):
    model, params = make_model(**changes)
    with pytest.raises(InputError, match=said) as refusal:
        export_marian(
            model.config, params, words, tmp_path, source_language="en",
            target_language="de", beam_size=4, alpha=0.6,
        )  # fmt: skip
    assert "--format" in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_one_sentence(make_model, export):
    hidden = {"safetensors": None, "safetensors.numpy": None}
    with (
        mock.patch.dict(sys.modules, hidden),
        pytest.raises(InputError, match=r"pip install 'jaxformer\[export\]'"),
    ):
        export(*make_model())
