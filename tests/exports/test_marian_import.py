"""What was exported comes back as it was, and published models compute the same."""

import functools
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxformer.exports.marian import FIXED
from jaxformer.exports.reading import read_checkpoint
from jaxformer.system.errors import InputError
from jaxformer.text.tokenizer import Tokenizer, pack_tokenizer
from jaxformer.tokens import BOS, EOS, UNK
from tests.exports.conftest import (
    UNTIED,
    assert_transformers_agrees,
    make_batch,
    tokenizer_of,
)
from tests.models import tiny

safetensors = pytest.importorskip("safetensors.numpy", reason="extra `export`")

SOURCES = [
    "a man in a blue shirt is standing on a ladder .",
    "two dogs are running , “ quickly ” 1½ km … to the man !",
    "the woman sees the dog and the man sees her .",
]
TARGETS = [
    "ein Mann in einem blauen Hemd steht auf einer Leiter .",
    "zwei Hunde laufen , „ schnell “ , über die größte Straße !",
    "die Frau sieht den Hund und der Mann sieht sie .",
]
UNTRAINED = {"dropout": 0.0, "dtype": "float32", "fused_attention": False}


def model_of(checkpoint):
    fields = checkpoint.model | UNTRAINED
    return tiny.model_of(len(checkpoint.vocabularies[-1]), **fields)


def packed_tokenizer(checkpoint):
    """Pack the tokeniser of a checkpoint as `jaxformer import` does."""
    models = [file.read_bytes() for file in checkpoint.models]
    others = {file.name: file.read_bytes() for file in checkpoint.files}
    return Tokenizer(pack_tokenizer(*models, *checkpoint.vocabularies, others=others))


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_layers": 3, "layer_norm_epsilon": 3e-8, "biases": "attention"},
        {"biases": "logits", "activation": "swish", "layer_norm_epsilon": 1e-5},
    ],
)
def test_a_round_trip_is_bit_equal(changes, make_model, words, export_to_marian):
    model, params = make_model(**changes)
    checkpoint = read_checkpoint(export_to_marian(model, params))
    assert model_of(checkpoint).config == model.config
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, params)
    assert checkpoint.vocabularies == [words.pieces()]


@pytest.mark.parametrize("changes", UNTIED)
def test_untied_embeddings_and_two_vocabularies_come_back(
    changes, make_model, export_to_marian
):
    model, params = make_model(**changes)
    tokenizer = tokenizer_of(model)
    checkpoint = read_checkpoint(export_to_marian(model, params, tokenizer))
    assert model_of(checkpoint).config == model.config
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, params)
    pieces = [tokenizer.source_pieces(), tokenizer.pieces()]
    is_separate = pieces[0] != pieces[1]
    assert checkpoint.vocabularies == (pieces if is_separate else pieces[:1])


# --- published models -----------------------------------------------------------------


@pytest.fixture(scope="module")
def published(transformers, tmp_path_factory):
    """A checkpoint and what is read of it; not to be changed.

    `rows` int [V] are their ids by ours.
    """
    folder = tmp_path_factory.mktemp("published") / "opus"
    transformers("make_published", folder, SOURCES * 4, TARGETS * 4)
    ours = read_checkpoint(folder)
    ids = json.loads((folder / "vocab.json").read_text())
    ids["<s>"] = ids["<pad>"]  # with which the decoder starts
    rows = np.array([ids[piece] for piece in ours.vocabularies[0]])
    tokenizer = packed_tokenizer(ours)
    return SimpleNamespace(folder=folder, ours=ours, rows=rows, tokenizer=tokenizer)


def test_logits_are_equal(published, transformers):
    """Of random sentences, for our ids."""
    folder, ours, rows = published.folder, published.ours, published.rows
    draw = np.random.default_rng(0)
    pieces = np.arange(EOS + 1, len(rows))
    sides = [[draw.choice(pieces, n) for n in draw.integers(2, 9, 12)] for _ in "ST"]
    model, batch = model_of(ours), make_batch(*sides)
    assert_transformers_agrees(transformers, folder, model, ours.params, batch, rows)
    fields = ("activation", "max_positions", "layer_norm_epsilon")
    assert [ours.model[key] for key in fields] == ["swish", 64, 1e-5]


def test_ids_are_equal(published, transformers):
    folder, tokenizer, rows = published.folder, published.tokenizer, published.rows
    size = transformers("tokenizer_facts", folder)["size"]
    assert published.ours.vocabularies[0][:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.vocab_size == len(rows) == size + 1
    text = [
        *SOURCES, *TARGETS, "Two  dogs，the ﬁrst Ω man…", "", "  ",  # noqa: RUF001
        ">>deu<< two dogs .", ">>deu<<two dogs", "to >>deu<<", "größ und klein",
    ]  # fmt: skip
    encoded = [tokenizer.encode(text), tokenizer.encode_target(text)]
    for ours, side in zip(encoded, ("text", "text_target"), strict=True):
        ours = [rows[ids].tolist() for ids in ours]
        assert ours == transformers("encode", folder, text, side=side)
    assert encoded[0] != encoded[1]
    for ids in encoded[1][3:6]:
        assert UNK not in ids
        decoded = transformers("decode", folder, rows[ids].tolist())
        assert tokenizer.decode(ids) == decoded


def test_half_precision_in_several_files(published, transformers, tmp_path):
    copy = shutil.copytree(published.folder, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    transformers("save_in_half", published.folder, copy, max_shard_size="4KB")
    assert len(list(copy.glob("*.safetensors"))) > 2
    params = read_checkpoint(copy).params
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    close = functools.partial(np.testing.assert_allclose, rtol=2.0**-7, atol=1e-6)
    jax.tree.map(close, params, published.ours.params)


# --- what is refused ------------------------------------------------------------------


def test_both_tokenisers_are_exported_again(published, export_to_marian):
    ours = published.ours
    folder = export_to_marian(model_of(ours), ours.params, published.tokenizer)
    again = read_checkpoint(folder)
    assert (again.model, again.vocabularies) == (ours.model, ours.vocabularies)
    assert again.models[1].read_bytes() == ours.models[1].read_bytes()
    jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)


def spoil(folder, file, change):
    """Remove a file, replace or rename it, or update its keys; `...` removes one."""
    path = folder / file
    if change is None:
        path.unlink()
    elif isinstance(change, str):
        path.rename(folder / change)
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        is_json = path.suffix == ".json"
        old = json.loads(path.read_text()) if is_json else safetensors.load_file(path)
        new = {key: value for key, value in (old | change).items() if value is not ...}
        path.write_bytes(json.dumps(new).encode() if is_json else safetensors.save(new))


@pytest.fixture
def exported(make_model, export_to_marian):
    """A folder of our own, to be changed."""
    return export_to_marian(*make_model())


SINUSOIDS = "model.encoder.embed_positions.weight"
WRONG = {
    "config.json": [
        *[({k: not v}, f"{k}={not v}") for k, (v, _) in FIXED.items() if v in (0, 1)],
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False, though"),
        ({"share_encoder_decoder_embeddings": False}, "is missing, and config.json"),
        ({"model_type": "t5"}, "model_type='t5', not one of marian, m2m_100"),
        ({"scale_embedding": ...}, "scale_embedding=None"),
        ({"activation_function": "gelu"}, "'gelu', not in ['relu', 'swish', 'silu']"),
        ({"decoder_ffn_dim": 8}, "decoder_ffn_dim=8, not the encoder's 24"),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, "d_model=16, "),
        ({"activation_function": ["relu"]}, "['relu'], not in ['relu',"),
        ({"d_model": 10**12}, "d_model=1000000000000, not a whole number in [1, 16"),
        ({"d_model": None}, "d_model=None, not a whole number"),
        ({"pad_token_id": 40}, "pad_token_id=40, not a whole number in [0, 39]"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0, not between 0 and 1"),
        ({"vocab_size": 41}, "does not name the ids 0 to 40"),
        ({"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}, "(24,), and config.json expe"),
        ({"encoder_layers": 3, "decoder_layers": 3}, "is missing, and config.json"),
        ({"encoder_layers": 1, "decoder_layers": 1}, "expects no such tensor"),
        (None, "download it, for example with: hf download"),
        (b"{", "config.json is not a JSON object"),
    ],
    "model.safetensors": [
        ({SINUSOIDS: np.ones((64, 16))}, "is not the table of sinusoids"),
        ({SINUSOIDS: np.ones((64, 8))}, "is not the table of sinusoids"),
        ({"lm_head.weight": np.ones((40, 16))}, "is not equal to model.shared.weight"),
        ({"model.shared.weight": ...}, "model.shared.weight is missing"),
        (None, "model.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin is damaged: "),
        (b"spoilt", "model.safetensors is damaged"),
    ],
    "vocab.json": [
        ({"<unk>": ..., "<oov>": UNK}, "no piece '<unk>'"),
        (b"[]", "vocab.json is not a JSON object"),
        ({"<unk>": [1]}, "does not name the ids 0 to 39"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [(file, *case) for file, cases in WRONG.items() for case in cases],
)
def test_what_is_wrong_is_refused_in_one_line(file, change, said, exported):
    if change == "pytorch_model.bin":
        pytest.importorskip("torch", reason="not installed: extra `torch`")
    spoil(exported, file, change)
    with pytest.raises(InputError) as error:
        read_checkpoint(exported)
    assert said in str(error.value)
    assert str(exported) in str(error.value)
    assert "\n" not in str(error.value)


def test_equivalent_files_are_read_alike(exported):
    """Other names of the embedding and of swish, stored sinusoids, no logits bias."""
    before = read_checkpoint(exported).params
    tensors = safetensors.load_file(exported / "model.safetensors")
    angle = np.arange(64)[:, None] / 10000 ** (np.arange(8)[None] / 8)
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float16)
    spoil(exported, "model.safetensors", {
        "lm_head.weight": tensors["model.shared.weight"], SINUSOIDS: table,
        "model.shared.weight": ..., "final_logits_bias": ...,
    })  # fmt: skip
    spoil(exported, "config.json", {"activation_function": "silu"})
    checkpoint = read_checkpoint(exported)
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, before)
    assert checkpoint.model["activation"] == "swish"


def test_a_start_that_is_another_piece_too_gets_a_name_of_its_own(exported):
    """Some models start the decoder with EOS."""
    spoil(exported, "config.json", {"decoder_start_token_id": EOS})
    checkpoint = read_checkpoint(exported)
    assert checkpoint.vocabularies[0][:5] == ["<pad>", "<unk>", "<<s>>", "</s>", "<s>"]
    embedding = checkpoint.params["embedding"]
    np.testing.assert_array_equal(embedding[BOS], embedding[EOS])
    assert len(checkpoint.vocabularies[0]) == len(embedding) == 41
