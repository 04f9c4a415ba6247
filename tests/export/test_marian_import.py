"""What was exported comes back as it was, and published models compute the same."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.batch import BOS, EOS, PAD, UNK, Batch
from jaxformer.data.tokenizer import Tokenizer, pack_tokenizer, train_tokenizer
from jaxformer.errors import InputError
from jaxformer.export.marian import export_marian
from jaxformer.export.marian_import import read_marian
from jaxformer.models.architectures import make_model
from jaxformer.models.transformer.config import TransformerConfig
from tests.export.published import make_published
from tests.models.tiny import shapes_of

safetensors = pytest.importorskip("safetensors", reason="not installed: extra `export`")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

SOURCES = [
    "a man in a blue shirt is standing on a ladder .",
    "two dogs are running , “ quickly ” 1½ km … to the man !",
    "the woman sees the dog and the man sees her .",
] * 4
TARGETS = [
    "ein Mann in einem blauen Hemd steht auf einer Leiter .",
    "zwei Hunde laufen , „ schnell “ , über die größte Straße !",
    "die Frau sieht den Hund und der Mann sieht sie .",
] * 4
UNTRAINED = {"dropout": 0.0, "dtype": "float32", "fused_attention": False}


def export(folder, model, params, tokenizer):
    folder.mkdir()
    export_marian(
        model.config, params, tokenizer, folder, source_language="en",
        target_language="de", beam_size=4, alpha=0.6,
    )  # fmt: skip
    return folder


def model_of(checkpoint):
    config = TransformerConfig(**checkpoint.model | UNTRAINED)
    return make_model(config, vocab_size=len(checkpoint.pieces), rematerialise=False)


def tokenizer_of(checkpoint, path):
    packed = pack_tokenizer(
        checkpoint.source_model, checkpoint.target_model, checkpoint.pieces
    )
    path.write_bytes(packed)
    return Tokenizer.load(path)


# --- there and back -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_norm_epsilon": 1e-5},
        {"encoder_layers": 3, "layer_norm_epsilon": 3e-8},
        {"attention_bias": True},
        {"logits_bias": True, "activation": "swish"},
    ],
)
def test_a_round_trip_is_bit_equal(changes, make_model, words, tmp_path):
    model, params = make_model(**changes)
    checkpoint = read_marian(export(tmp_path / "there", model, params, words))
    assert model_of(checkpoint).config == model.config
    assert jax.tree.structure(checkpoint.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, params)
    assert checkpoint.pieces == words.pieces()


def test_the_tokeniser_comes_back_as_it_was(make_model, tmp_path):
    file = tmp_path / "tokenizer.model"
    tokenizer = train_tokenizer(
        SOURCES + TARGETS, file, vocab_size=90, character_coverage=1.0,
        max_sentences=99, seed=0,
    )  # fmt: skip
    model, params = make_model(vocab_size=tokenizer.vocab_size)
    checkpoint = read_marian(export(tmp_path / "there", model, params, tokenizer))
    back = tokenizer_of(checkpoint, tmp_path / "back.model")
    assert (tmp_path / "back.model").read_bytes() == file.read_bytes()
    assert back.hash == tokenizer.hash


# --- published models -----------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="PyTorch is not installed: extra `torch`")
    package = pytest.importorskip(
        "transformers", reason="Transformers is not installed: extra `torch`"
    )
    package.utils.logging.disable_progress_bar()
    return package


@pytest.fixture(scope="module")
def published(transformers, tmp_path_factory):
    """A folder, Transformers' model of it and what we read of it; not to be changed."""
    folder = tmp_path_factory.mktemp("published") / "opus"
    theirs = make_published(folder, SOURCES, TARGETS)
    return folder, theirs, read_marian(folder)


@pytest.fixture(scope="module")
def rows(published):
    """Which of their ids each of ours is: int [V]."""
    folder, _, checkpoint = published
    ids = json.loads((folder / "vocab.json").read_text())
    ids["<s>"] = ids["<pad>"]  # with which the decoder starts
    return np.array([ids[piece] for piece in checkpoint.pieces])


def both_logits(theirs, checkpoint, rows):
    """Ours and theirs of random sentences, for our ids."""
    import torch

    draw = np.random.default_rng(0)
    length, ids = 9, np.arange(EOS + 1, len(rows))
    source, target = draw.choice(ids, (2, 12, length)).astype(np.int32)
    lengths = draw.integers(2, length + 1, (12, 1))
    segments = (np.arange(length)[None] < lengths).astype(np.int32)
    source = np.where(segments, source, PAD)
    batch = Batch(*map(jnp.asarray, (source, target, segments, np.ones_like(target))))
    ours = model_of(checkpoint).logits(checkpoint.params, batch)
    shifted = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(rows[source]),
            attention_mask=torch.tensor(segments).long(),
            decoder_input_ids=torch.tensor(rows[shifted]),
        ).logits.float()
    return np.asarray(ours), expected.numpy()[:, :, rows]


def test_logits_are_theirs(published, rows):
    _, theirs, checkpoint = published
    ours, expected = both_logits(theirs, checkpoint, rows)
    assert np.ptp(expected, axis=-1).min() > 5
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_the_model_is_what_the_checkpoint_says(published):
    _, _, checkpoint = published
    assert checkpoint.model == {
        "architecture": "transformer", "encoder_layers": 2, "decoder_layers": 2,
        "d_model": 16, "d_ff": 24, "num_heads": 2, "d_k": 8, "d_v": 8,
        "positions": "sinusoidal", "max_positions": 64, "norm_first": False,
        "attention_bias": True, "activation": "swish", "logits_bias": True,
        "layer_norm_epsilon": 1e-5, "attention_window": None,
    }  # fmt: skip
    init = shapes_of(model_of(checkpoint))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), checkpoint.params)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_ids_are_theirs(published, rows, transformers, tmp_path):
    folder, _, checkpoint = published
    tokenizer = tokenizer_of(checkpoint, tmp_path / "tokenizer.model")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert checkpoint.pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.vocab_size == len(rows) == len(theirs) + 1
    text = [
        *SOURCES[:3], *TARGETS[:3], "Two  dogs，the ﬁrst Ω man…", "", "  ",  # noqa: RUF001
        ">>deu<< two dogs .", ">>deu<<two dogs", "to >>deu<<", "größ und klein",
    ]  # fmt: skip
    ours = [rows[ids].tolist() for ids in tokenizer.encode(text)]
    assert ours == theirs(text)["input_ids"]
    ours = [rows[ids].tolist() for ids in tokenizer.encode_target(text)]
    assert ours == theirs(text_target=text)["input_ids"]
    assert tokenizer.encode(TARGETS) != tokenizer.encode_target(TARGETS)
    for sentence in TARGETS[:3]:
        ids = tokenizer.encode_target([sentence])[0]
        assert UNK not in ids
        decoded = theirs.decode(rows[ids].tolist(), skip_special_tokens=True)
        assert tokenizer.decode(ids) == decoded


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_other_activations_are_theirs(activation, transformers, tmp_path):
    theirs = make_published(
        tmp_path, SOURCES, TARGETS, activation_function=activation, encoder_layers=1,
        decoder_layers=1,
    )  # fmt: skip
    checkpoint = read_marian(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    ids["<s>"] = ids["<pad>"]
    rows = np.array([ids[piece] for piece in checkpoint.pieces])
    ours, expected = both_logits(theirs, checkpoint, rows)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(dtype, published, transformers, tmp_path):
    import torch

    folder, _, checkpoint = published
    theirs = transformers.MarianMTModel.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    )
    shutil.copytree(folder, tmp_path / dtype)
    theirs.save_pretrained(tmp_path / dtype)
    narrow = read_marian(tmp_path / dtype)
    precision = 2**-7 if dtype == "bfloat16" else 2**-10
    for got, wanted in zip(
        jax.tree.leaves(narrow.params), jax.tree.leaves(checkpoint.params), strict=True
    ):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=precision, atol=1e-6)


def test_a_checkpoint_in_several_files_is_the_same(published, tmp_path):
    folder, theirs, checkpoint = published
    shutil.copytree(folder, tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    jax.tree.map(
        np.testing.assert_array_equal,
        read_marian(tmp_path / "shards").params,
        checkpoint.params,
    )


def test_an_imported_model_can_be_exported_again(published, rows, load_again, tmp_path):
    """Two tokeniser models and two kinds of biases go back the way they came."""
    _, _, checkpoint = published
    tokenizer = tokenizer_of(checkpoint, tmp_path / "tokenizer.model")
    folder = export(
        tmp_path / "again", model_of(checkpoint), checkpoint.params, tokenizer
    )
    again = read_marian(folder)
    assert again.pieces == checkpoint.pieces
    assert again.source_model == checkpoint.source_model
    assert again.target_model == checkpoint.target_model
    jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint.params)
    ours, expected = both_logits(load_again(folder), again, np.arange(len(rows)))
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.fixture
def load_again(transformers):
    return lambda folder: transformers.MarianMTModel.from_pretrained(folder).eval()


# --- what is refused ------------------------------------------------------------------


@pytest.fixture
def exported(make_model, words, tmp_path):
    """A folder of our own, to be spoilt."""
    return export(tmp_path / "exported", *make_model(), words)


def change_config(folder, **changes):
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    kept = {key: value for key, value in values.items() if value != "gone"}
    file.write_text(json.dumps(kept))


def change_tensors(folder, **changes):
    file = folder / "model.safetensors"
    tensors = {**safetensors_numpy.load_file(file), **changes}
    kept = {name: value for name, value in tensors.items() if value is not None}
    file.write_bytes(safetensors_numpy.save(kept))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "t5"}, "model_type='t5'.* is not 'marian'"),
        ({"scale_embedding": False}, "scale_embedding=False"),
        ({"scale_embedding": "gone"}, "scale_embedding=None"),
        ({"normalize_before": True}, "normalize_before=True"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm=True"),
        ({"normalize_embedding": True}, "normalize_embedding=True"),
        ({"static_position_embeddings": False}, "static_position_embeddings=False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        (
            {"share_encoder_decoder_embeddings": False},
            "share_encoder_decoder_embeddings=False",
        ),
        ({"activation_function": "gelu"}, "'gelu'.* none of relu, swish, silu"),
        ({"decoder_ffn_dim": 8}, "decoder_ffn_dim=8.* not the encoder's 24"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads=4"),
        (
            {"encoder_attention_heads": 3, "decoder_attention_heads": 3},
            "d_model=16.* heads cannot share evenly",
        ),
        ({"d_model": None}, "d_model=None.* no whole number"),
        ({"eos_token_id": [3]}, r"eos_token_id=\[3\].* no whole number"),
        ({"pad_token_id": 40}, "pad_token_id=40.* above 39"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0"),
        ({"vocab_size": 41}, "does not name the ids 0 to 40"),
        (
            {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8},
            r"of shape .* asks for \(8, 16\)",
        ),
        ({"encoder_layers": 3, "decoder_layers": 3}, r"has no tensor .*layers\.2\."),
        (
            {"encoder_layers": 1, "decoder_layers": 1},
            r"a tensor .*layers\.1\..*no place",
        ),
    ],
)
def test_a_model_that_ours_cannot_be_is_refused(changes, said, exported):
    change_config(exported, **changes)
    with pytest.raises(InputError, match=said) as refusal:
        read_marian(exported)
    assert str(exported) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_tensors_that_do_not_fit_are_refused(exported):
    positions = "model.encoder.embed_positions.weight"
    table = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    for changes, said in (
        ({positions: table}, "not the paper's sinusoids"),
        ({positions: None, "lm_head.weight": np.ones((40, 16), np.float32)},
         r"another matrix lm_head\.weight than model\.shared\.weight"),
        ({"lm_head.weight": None, "model.shared.weight": None},
         r"has no tensor model\.shared\.weight"),
    ):  # fmt: skip
        change_tensors(exported, **changes)
        with pytest.raises(InputError, match=said):
            read_marian(exported)


def test_tensors_that_say_the_same_twice_are_read(exported):
    tensors = safetensors_numpy.load_file(exported / "model.safetensors")
    before = read_marian(exported).params
    angle = np.arange(64)[:, None] / 10000 ** (np.arange(8)[None] / 8)
    change_tensors(
        exported,
        **{
            "lm_head.weight": tensors["model.shared.weight"],
            "model.decoder.embed_positions.weight": np.concatenate(
                [np.sin(angle), np.cos(angle)], axis=1
            ).astype(np.float16),
            "model.shared.weight": None,
            "final_logits_bias": None,
        },
    )
    jax.tree.map(np.testing.assert_array_equal, read_marian(exported).params, before)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "is no folder.* hf download"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be"),
        (lambda folder: (folder / "config.json").write_text("{"), "no JSON object"),
        (lambda folder: (folder / "vocab.json").write_text("[]"), "no JSON object"),
        (lambda folder: (folder / "vocab.json").unlink(), r"vocab\.json cannot be"),
        (lambda folder: (folder / "source.spm").unlink(), r"source\.spm cannot be"),
        (lambda folder: (folder / "target.spm").unlink(), r"target\.spm cannot be"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            r"no model\.safetensors; download",
        ),
        (
            lambda folder: (folder / "model.safetensors").rename(
                folder / "pytorch_model.bin"
            ),
            r"convert it once.*save_pretrained",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(
                (folder / "model.safetensors").read_bytes()[:-1]
            ),
            r"model\.safetensors cannot be read .* download it again",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named(spoil, said, exported):
    spoil(exported)
    with pytest.raises(InputError, match=said) as refusal:
        read_marian(exported)
    assert "\n" not in str(refusal.value)


def test_a_vocabulary_without_unknown_is_refused(exported):
    names = json.loads((exported / "vocab.json").read_text())
    names["<oov>"] = names.pop("<unk>")
    (exported / "vocab.json").write_text(json.dumps(names))
    with pytest.raises(InputError, match="no piece '<unk>'"):
        read_marian(exported)


def test_a_start_that_is_another_piece_too_gets_a_name_of_its_own(exported):
    """Some models start the decoder with EOS."""
    change_config(exported, decoder_start_token_id=EOS)
    checkpoint = read_marian(exported)
    assert checkpoint.pieces[:5] == ["<pad>", "<unk>", "<<s>>", "</s>", "<s>"]
    embedding = checkpoint.params["embedding"]
    np.testing.assert_array_equal(embedding[BOS], embedding[EOS])
    assert len(checkpoint.pieces) == len(embedding) == 41
