"""Marian's own models compute the same here, and Marian takes them back.

`marian/` has two models that Marian 1.12.42 trained on the built-in corpus, 6,000 pairs
of which those below 60 characters, for 4,000 updates: `tests/exports/marian_models.py`
says how. `attention` has pre-split text and vocab.yml, `ssru` a joint vocab.spm.
"""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.models import one_device
from jaxformer.configs.student import get_config
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.exports.marian_npz import SETTINGS, export_npz
from jaxformer.exports.reading import read_checkpoint
from jaxformer.system.errors import InputError
from jaxformer.text.tokenizer import Tokenizer, pack_tokenizer, pair_of
from jaxformer.text.vocabulary import train_tokenizer
from jaxformer.tokens import BOS, PAD
from jaxformer.training.sharding import batch_sharding
from tests.exports import marian_models
from tests.exports.conftest import run_config
from tests.exports.test_marian import CONFIG, TEXT
from tests.exports.test_marian_import import model_of, packed_tokenizer

yaml = pytest.importorskip("yaml", reason="extra `export`")

MODELS = Path(__file__).parent / "marian"
SEARCH = TranslateOptions(
    beam_size=4, alpha=0.6, length_penalty="power", extra_length=100, batch_tokens=4096
)
GREEDY = {"beam_size": 1, "alpha": 0.0}


class Imported:
    """A checkpoint, what is read of it, and a translator of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ours = folder, read_checkpoint(folder)
        self.tokenizer, self.model = packed_tokenizer(self.ours), model_of(self.ours)

    def translator(self, options=SEARCH):
        return Translator(
            [self.model], [self.ours.params], self.tokenizer, language="en",
            options=options, rows=batch_sharding(one_device()), searches=1, choose=None,
            needs_tag=False,
        )  # fmt: skip

    def export(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        given = run_config(self.model), self.ours.params, self.tokenizer, SEARCH
        export_npz(folder, *given)
        return folder


@pytest.fixture(scope="module", params=["attention", "ssru"])
def imported(request):
    return Imported(MODELS / request.param)


def settings_of(content: np.ndarray) -> dict:
    return yaml.safe_load(content.tobytes().rstrip(b"\0"))


def assert_alike(imported: Imported, marian: dict) -> None:
    """Compare scores, greedy translations and those of a beam with Marian's.

    Marian narrows its beam as hypotheses end, so ours may find others.
    """
    translator = imported.translator()
    scores = translator.score(marian["source"], marian["target"])
    ours = [each.log_probability for each in scores]
    np.testing.assert_allclose(ours, marian["scores"], atol=1e-4)
    assert np.std(ours) > 1
    found = translator.translate(marian["source"])
    beams = zip(marian["beam"], marian["beam_scores"], strict=True)
    same = []
    for (best, *_), (text, score) in zip(found, beams, strict=True):
        same.append(best.text == text)
        assert not same[-1] or abs(best.score - score) < 1e-4
    assert np.mean(same) > 0.95
    greedy = imported.translator(TranslateOptions(**{**vars(SEARCH), **GREEDY}))
    pairs = zip(greedy(marian["source"]), marian["greedy"], strict=True)
    alike = [one[:60] == other[:60] for one, other in pairs]
    assert np.mean(alike) > 0.99  # but for ties; what never ends is cut elsewhere


def test_scores_and_translations_are_equal(imported):
    marian = json.loads((imported.folder / "marian.json").read_text())
    assert_alike(imported, marian)


@pytest.mark.nightly
@pytest.mark.parametrize("name", marian_models.MODELS)
def test_what_marian_trains_now_and_takes_back(name, tmp_path):
    """500 sentences of each of five models, by Marian and here; then of our export."""
    if shutil.which(marian_models.COMMAND) is None:
        pytest.skip("pymarian is not installed")
    folder = marian_models.make(tmp_path, name)
    imported, pairs = Imported(folder), marian_models.pairs_of("test", 1200)[:500]
    theirs = marian_models.computed(folder, tmp_path / "text", pairs)
    assert_alike(imported, theirs)
    back = imported.export(tmp_path / "back")
    assert marian_models.computed(back, tmp_path / "text", pairs) == theirs


def test_a_round_trip_is_bit_equal(imported, tmp_path):
    folder = imported.export(tmp_path)
    before, after = (
        dict(np.load(each / "model.npz")) for each in (imported.folder, folder)
    )
    settings = [settings_of(each.pop(SETTINGS)) for each in (before, after)]
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    for key in settings[1].keys() & settings[0].keys() - {"version"}:
        assert settings[1][key] == settings[0][key], key
    again = Imported(folder)
    assert again.model.config == imported.model.config
    assert again.tokenizer.content == imported.tokenizer.content
    jax.tree.map(np.testing.assert_array_equal, again.ours.params, imported.ours.params)


NPZ = (MODELS / "attention" / "model.npz").read_bytes()
SPM = (MODELS / "ssru" / "vocab.spm").read_bytes()


@pytest.mark.parametrize("kind", ["shared", "two", "vocab.yml and .spm"])
def test_a_model_of_a_tokeniser_trained_here_comes_back(kind, make_model, tmp_path):
    """But for PAD and BOS, which Marian does not have."""
    first, second = (train_tokenizer(TEXT[::step], CONFIG) for step in (1, -2))
    pieces = first.pieces(), *read_checkpoint(MODELS / "ssru").vocabularies
    tokenizer = {
        "shared": first,
        "two": pair_of(first.content, second.content),
        "vocab.yml and .spm": Tokenizer(pack_tokenizer(first.content, SPM, *pieces)),
    }[kind]
    student, sizes = get_config().model, ("layers", "d_", "heads", "dropout", "dtype")
    model, params = make_model(
        **{key: student[key] for key in student if not any(s in key for s in sizes)}
        | {"tied_embeddings": "all" if kind == "shared" else "target"},
        vocab_size=tokenizer.vocab_size, source_vocab_size=tokenizer.source_vocab_size,
    )  # fmt: skip
    assert model.config.decoder_self_attention == "ssru"
    export_npz(tmp_path, run_config(model), params, tokenizer, SEARCH)
    again = Imported(tmp_path)
    assert again.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)
    assert again.tokenizer.encode_target(TEXT) == tokenizer.encode_target(TEXT)
    for name in ("embedding", "source_embedding", "logits_bias"):
        for each in (params, again.ours.params):
            if name in each:
                each[name] = np.delete(each[name], [PAD, BOS], axis=0)
    jax.tree.map(np.testing.assert_array_equal, again.ours.params, params)


def test_a_shared_vocabulary_may_be_two_equal_files(imported, tmp_path):
    folder = shutil.copytree(imported.folder, tmp_path / "model")
    decoder = yaml.safe_load((folder / "decoder.yml").read_text())
    name = decoder["vocabs"][0]
    shutil.copy(folder / name, folder / f"copy_{name}")
    decoder["vocabs"][1] = f"copy_{name}"
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    assert read_checkpoint(folder).vocabularies == imported.ours.vocabularies


def test_the_file_of_the_vocabularies_may_be_config_yml(tmp_path):
    """As in Bergamot's folders, beside that of a quantised model."""
    folder = shutil.copytree(MODELS / "ssru", tmp_path / "model")
    config = (folder / "decoder.yml").rename(folder / "config.yml").read_text()
    quantised = folder / "config.intgemm8bitalpha.yml"
    quantised.write_text(config.replace("model.npz", "model.alphas.bin"))
    assert read_checkpoint(folder).model["decoder_self_attention"] == "ssru"
    (folder / "config.yml").unlink()
    with pytest.raises(InputError, match=r"alphas\.bin is quantised .* model\.npz"):
        read_checkpoint(folder)
    for name in ("model.npz.best-bleu.npz.decoder.yml", "model.npz.decoder.yml"):
        (folder / name).write_text(config)
    with pytest.raises(InputError, match=r"best-bleu\.npz\.decoder\.yml, model.* keep"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "s2s"}, "it has type='s2s', not 'transformer'"),
        ({"transformer-decoder-autoreg": "average-attention"}, "-attention', not"),
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"}, "cell='gru', not"),
        ({"transformer-postprocess": "dhn"}, "'', 'hn', '' besides dropout"),
        ({"transformer-preprocess": "n"}, "'n', 'an', ''"),
        ({"tied-embeddings-src": True}, "tied-embeddings-src=True, not False"),
        ({"transformer-decoder-dim-ffn": 8}, "another transformer-decoder-dim-ffn"),
        ({"enc-depth": 2}, "the shape of encoder_l2_ffn_W1 is missing"),
        ({"dim-emb": 1.5}, "dim-emb=1.5, not a whole"),
        ({"enc-depth": 1_000_000}, "not a whole number in [1, 1000]"),
        (None, "special:model.yml is no YAML of keys"),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_name(tmp_path, settings, said):
    folder = shutil.copytree(MODELS / "attention", tmp_path / "model")
    arrays = dict(np.load(folder / "model.npz"))
    old = settings_of(arrays.pop(SETTINGS))
    if settings:
        text = yaml.safe_dump(old | settings).encode() + b"\0"
        arrays[SETTINGS] = np.frombuffer(text, np.int8)
    np.savez(folder / "model.npz", **arrays)
    with pytest.raises(InputError) as error:
        read_checkpoint(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.npz", b"spoilt", "model.npz is damaged"),
        ("model.npz", np.lib.format.magic(1, 0), "model.npz is damaged"),
        ("model.npz", NPZ[:4000] + bytes(99) + NPZ[4099:], "model.npz is damaged"),
        ("decoder.yml", b"models: [model.npz]", "does not name models and vocabs"),
        ("decoder.yml", b'models: [model.npz]\nvocabs: ["\\0", "a"]', "null character"),
        *(
            ("decoder.yml", f"a: !!{text}".encode(), "decoder.yml is no YAML of keys")
            for text in ("int ''", "bool foo", "timestamp foo")
        ),
        ("vocab.yml", b"a: 0\nb: 2\n", "does not name its ids"),
        ("vocab.yml", b"a: 0\nb: 1\n", "has no piece '"),
        ("vocab.spm", b"", "vocab.spm is damaged or not a SentencePiece model"),
        ("vocab.spm", SPM[:-1], "vocab.spm is damaged or not a SentencePiece model"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, content, said):
    name = "ssru" if file == "vocab.spm" else "attention"
    folder = shutil.copytree(MODELS / name, tmp_path / "model")
    (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("Wpos", np.float32(1), "the shape of Wpos is"),
        ("encoder_l1_ffn_W1", np.full((16, 32), np.nan, np.float32), "not finite"),
    ],
)
def test_arrays_that_are_wrong_are_refused(tmp_path, name, value, said):
    folder = shutil.copytree(MODELS / "attention", tmp_path / "model")
    arrays = dict(np.load(folder / "model.npz"))
    np.savez(folder / "model.npz", **{**arrays, name: value})
    with pytest.raises(InputError, match=said):
        read_checkpoint(folder)


def test_pieces_that_yaml_takes_for_other_types_are_text(tmp_path):
    folder = shutil.copytree(MODELS / "attention", tmp_path / "model")
    lines = (folder / "vocab.yml").read_text().splitlines()
    names = ["yes", "1", "null", "1.0", "0x1", "2026-11-28"]
    ids = [line.rpartition(": ")[2] for line in lines[-len(names) :]]
    lines[-len(names) :] = map("{}: {}".format, names, ids)
    (folder / "vocab.yml").write_text("\n".join(lines))
    assert {*names} <= {*read_checkpoint(folder).vocabularies[0]}
