"""M2M-100 and NLLB compute the same here, and come back as they were."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks.models import one_device
from jaxformer.batch import shift_right
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.exports.ctranslate2 import write_ctranslate2
from jaxformer.exports.m2m100 import export_m2m100, tag_of_language
from jaxformer.exports.reading import read_checkpoint
from jaxformer.system.errors import InputError
from jaxformer.tokens import BOS, EOS, UNK
from jaxformer.training.sharding import batch_sharding
from tests.exports.conftest import OPTIONS, log_probabilities, make_batch, run_config
from tests.exports.test_marian_import import (
    SINUSOIDS,
    SOURCES,
    TARGETS,
    model_of,
    packed_tokenizer,
    spoil,
)

safetensors = pytest.importorskip("safetensors.numpy", reason="extra `export`")

KINDS = {"m2m100": (">>en<<", ">>de<<"), "nllb": (">>eng_Latn<<", ">>deu_Latn<<")}
INTEGERS, NAN = np.ones((2, 2), np.int32), np.full(24, np.nan, np.float32)


@pytest.fixture(scope="module", params=KINDS)
def published(request, transformers, tmp_path_factory):
    """A checkpoint and what is read of it; not to be changed.

    `rows` int [V] are Hugging Face's ids by ours.
    """
    folder = tmp_path_factory.mktemp(request.param) / "model"
    text = [*SOURCES, *TARGETS] * 4
    transformers("make_m2m100", folder, text, is_nllb=request.param == "nllb")
    ours = read_checkpoint(folder)
    source, target = KINDS[request.param]
    return SimpleNamespace(
        folder=folder, ours=ours, kind=request.param, source=source, target=target,
        rows=np.array([1, 3, 0, 2, *range(4, len(ours.vocabularies[0]))]),
        tokenizer=packed_tokenizer(ours).for_target(target), model=model_of(ours),
    )  # fmt: skip


def test_logits_are_equal(published, transformers):
    """Of random sentences, for our ids."""
    draw, rows = np.random.default_rng(0), published.rows
    pieces = np.arange(EOS + 1, len(rows))
    sides = [[draw.choice(pieces, n) for n in draw.integers(2, 40, 12)] for _ in "ST"]
    batch = make_batch(*sides)
    target = np.array(shift_right(batch.target, batch.target_segments))
    source, target = rows[batch.source], rows[np.where(target == BOS, EOS, target)]
    segments = np.asarray(batch.source_segments)
    given = published.folder, source, segments, target, rows
    found = transformers("log_probabilities", *given)
    ours = log_probabilities(published.model, published.ours.params, batch)
    real = np.asarray(batch.target_segments) != 0
    assert np.ptp(ours[real], axis=-1).min() > 4  # so that errors would show
    np.testing.assert_allclose(found[real], ours[real], atol=1e-4)


def test_ids_are_equal(published, transformers):
    tokenizer, rows = published.tokenizer, published.rows
    text = [*SOURCES, *TARGETS, "Two  dogs，the ﬁrst Ω man…", "größ und klein"]  # noqa: RUF001
    source, target = published.source[2:-2], published.target[2:-2]
    ours = tokenizer.encode([f"{published.source} {line}" for line in text])
    theirs = transformers("encode", published.folder, text, language=source)
    assert [rows[ids].tolist() for ids in ours] == theirs
    ours = tokenizer.encode_target(text)
    theirs = transformers("encode", published.folder, text, language=target)
    assert [rows[ids].tolist() for ids in ours] == theirs
    for ids in ours[:6]:
        assert UNK not in ids
        decoded = transformers("decode", published.folder, rows[ids].tolist())
        assert tokenizer.decode(ids) == decoded


SEARCH = TranslateOptions(
    beam_size=4, alpha=0.5, length_penalty="power", extra_length=50,
    no_repeat_ngram=2, batch_tokens=4096,
)  # fmt: skip


def translator_of(published, options):
    return Translator(
        [published.model], [published.ours.params], published.tokenizer,
        language="en", options=options, rows=batch_sharding(one_device()),
        searches=1, choose=None, needs_tag=True,
    )  # fmt: skip


def test_the_same_beam_search(published, transformers):
    """Scores and translations, for powers of the length."""
    tags = {"tag": published.source, "target_tag": published.target}
    translator = translator_of(published, dataclasses.replace(SEARCH, **tags))
    text = [" ".join(words.split()[:n]) for words in SOURCES for n in (1, 3, 5, 8)]
    ours = translator.translate(text)
    ids = published.tokenizer.pieces().index(published.target)
    how = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never"}
    how["no_repeat_ngram_size"] = 2
    bad, lengths = [[1], [3], [0]], []
    for line, (best, *_) in zip(text, ours, strict=True):
        limit = len(published.tokenizer.encode([f"{published.source} {line}"])[0]) + 50
        found, score = transformers(
            "best", published.folder, line, published.source[2:-2],
            forced_bos_token_id=ids, max_new_tokens=limit, bad_words_ids=bad, **how,
        )  # fmt: skip
        pieces = [published.tokenizer.pieces().index(piece) for piece in best.pieces]
        assert published.rows[pieces].tolist() == found[1:]
        np.testing.assert_allclose(best.score, score, atol=1e-4)
        lengths.append(len(pieces))
    assert np.ptp(lengths) > 3


def test_ctranslate2_translates_alike(published, tmp_path):
    """Its scores leave out the target's tag, as ours do, and not a prefix behind it."""
    pytest.importorskip("ctranslate2", reason="extra `export`")
    config = run_config(published.model)
    config.data.only_tag = published.source
    config.data.only_target_tag = published.target
    given = config, published.ours.params, published.tokenizer, OPTIONS
    write_ctranslate2(tmp_path, *given, quantization="float32")
    tags = {"tag": published.source, "target_tag": published.target}
    options = dataclasses.replace(SEARCH, alpha=0.0, no_repeat_ngram=0, **tags)
    ours = translator_of(published, options)
    how = {"language": "en", "options": options, "rows": batch_sharding(one_device())}
    theirs = Translator([published.model], [], ours.tokenizer, **how, export=tmp_path)
    lines = SOURCES[2:] * 2
    prefixes = [["", line.split()[-1]][n % 2] for n, line in enumerate(lines)]
    found = (each.translate(lines, prefixes=prefixes) for each in (ours, theirs))
    for (own, *_), (other, *_) in zip(*found, strict=True):
        assert (own.pieces, own.tokens) == (other.pieces, len(own.pieces) - 1)
        # It normalises probabilities without what is suppressed.
        assert -1e-4 < other.log_probability - own.log_probability < 0.1


# --- what is written and read ---------------------------------------------------------


def exported(published, folder, tokenizer):
    folder.mkdir(exist_ok=True)
    config = run_config(published.model)
    config.data.only_target_tag = published.target
    export_m2m100(folder, config, published.ours.params, tokenizer, OPTIONS)
    return folder


def test_a_round_trip_is_bit_equal(published, transformers, tmp_path):
    folder = exported(published, tmp_path, published.tokenizer)
    first, second = (
        safetensors.load_file(each / "model.safetensors")
        for each in (published.folder, folder)
    )
    jax.tree.map(np.testing.assert_array_equal, first, second)
    again = read_checkpoint(folder)
    assert again.model == published.ours.model
    jax.tree.map(np.testing.assert_array_equal, again.params, published.ours.params)
    for file in published.ours.files:
        assert (folder / file.name).read_bytes() == file.read_bytes()
    text = " ".join(SOURCES)
    before, after = (
        transformers("encode", each, [text], language=published.source[2:-2])
        for each in (published.folder, folder)
    )
    assert before == after
    settings = transformers("generation_config", folder)
    target = published.tokenizer.pieces().index(published.target)
    assert settings["forced_bos_token_id"] == target


def test_files_of_pytorch_in_parts(published, transformers, tmp_path):
    """In bfloat16."""
    for file in published.folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    transformers("save_with_torch", published.folder, tmp_path)
    assert len(list(tmp_path.glob("pytorch_model-*.bin"))) == 2
    params = read_checkpoint(tmp_path).params
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2.0**-7),
        params, published.ours.params,
    )  # fmt: skip
    (tmp_path / "pytorch_model-2.bin").write_bytes(b"spoilt")
    with pytest.raises(InputError, match=r"pytorch_model-2\.bin is damaged: "):
        read_checkpoint(tmp_path)


def test_stored_sinusoids_are_compared(published, transformers, tmp_path):
    shutil.copytree(published.folder, tmp_path, dirs_exist_ok=True)
    table = transformers("sinusoids", published.folder)
    name = "model.encoder.embed_positions.weights"
    spoil(tmp_path, "model.safetensors", {name: table})
    found = read_checkpoint(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, found.params, published.ours.params)
    spoil(tmp_path, "model.safetensors", {name: np.roll(table, 1, axis=0)})
    with pytest.raises(InputError, match="weights is not the table of sinusoids"):
        read_checkpoint(tmp_path)


def test_biases_stay_if_all_of_them_are_zero(published, tmp_path):
    shutil.copytree(published.folder, tmp_path, dirs_exist_ok=True)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    zero = {
        name: np.zeros_like(each)
        for name, each in tensors.items()
        if "attn." in name and name.endswith("bias")
    }
    spoil(tmp_path, "model.safetensors", zero)
    found = read_checkpoint(tmp_path)
    shapes = [jax.tree.map(np.shape, x.params) for x in (found, published.ours)]
    assert shapes[0] == shapes[1]
    assert found.model == published.ours.model


def test_an_export_writes_its_own_files_alone(published, tmp_path):
    """Whatever names the files of a damaged run have."""
    damaged = packed_tokenizer(published.ours)
    damaged.files = {"../outside": b"1", "vocab.json": b"{}"}
    folder = exported(published, tmp_path / "export", damaged)
    assert (folder / "vocab.json").read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", {"scale_embedding": False}, "scale_embedding=False, not True"),
        ("config.json", {"encoder_layers": 1_000_000}, "not a whole number in [1, 10"),
        ("model.safetensors", {SINUSOIDS: np.ones(())}, "is not the table of sinu"),
        ("model.safetensors", {"model.shared.weight": INTEGERS}, "has the type int32"),
        ("model.safetensors", {"model.encoder.layers.0.fc1.bias": NAN}, "not finite"),
        ("config.json", {"vocab_size": 9}, "pieces, and vocab_size is 9"),
        ("config.json", {"decoder_start_token_id": 0}, "decoder_start_token_id=0, not"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(published, tmp_path, file, change, said):
    assert_refused(published, tmp_path, file, change, said)


def test_a_missing_tokeniser_is_named(published, tmp_path):
    shutil.copytree(published.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    with pytest.raises(InputError, match=r"lacks sentencepiece\.bpe\.model, .*; copy"):
        read_checkpoint(tmp_path)


def assert_refused(published, folder, file, change, said):
    shutil.copytree(published.folder, folder, dirs_exist_ok=True)
    spoil(folder, file, change)
    with pytest.raises(InputError) as error:
        read_checkpoint(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


OTHER_ORDER = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
SWAPPED, NO_TOKENS = {"model": {"vocab": OTHER_ORDER}}, {"added_tokens": []}
DOGS = {"additional_special_tokens": ["__en__", "dogs"]}
ADDED = [{"content": "dogs", "id": 121}, {"content": "eng_Latn", "id": 122}]
TOKENISERS = {
    "m2m100": [
        ("tokenizer_config.json", None, "name no language"),
        ("vocab.json", OTHER_ORDER, "begin with ['<pad>', '<s>',"),
        ("vocab.json", {"<s>": 9}, "do not name the ids 0 to"),
        ("tokenizer_config.json", DOGS, "adds 'dogs', no language"),
    ],
    "nllb": [
        ("tokenizer.json", NO_TOKENS, "name no language"),
        ("tokenizer.json", {"model": {}}, "has no vocabulary"),
        ("tokenizer.json", SWAPPED | NO_TOKENS, "begin with ['<pad>', '<s>',"),
        ("tokenizer.json", {"model": {"vocab": {"<s>": 9}}}, "do not name the ids 0"),
        ("tokenizer.json", {"added_tokens": ADDED}, "adds 'dogs', no language"),
        ("tokenizer_config.json", {"legacy_behaviour": True}, "behaviour=True, not Fa"),
    ],
}


def test_other_tokenisers_are_refused(published, tmp_path):
    for number, case in enumerate(TOKENISERS[published.kind]):
        assert_refused(published, tmp_path / str(number), *case)


def test_a_language_that_was_added_has_its_own_id(published, transformers, tmp_path):
    """And the others keep theirs, though tokenizer_config.json lists it alone."""
    shutil.copytree(published.folder, tmp_path, dirs_exist_ok=True)
    forms = {"m2m100": ("xx", "__{}__"), "nllb": ("xxx_Latn", "{}")}
    code, form = forms[published.kind]
    add = "add_language", published.folder, tmp_path, form.format(code)
    ids = transformers(*add)
    found = read_checkpoint(tmp_path)
    for tag in (f">>{code}<<", published.source, published.target):
        assert tag in found.tags
        assert found.vocabularies[0].index(tag) == ids[form.format(tag[2:-2])]


def test_only_added_tokens_are_languages(published, tmp_path):
    shutil.copytree(published.folder, tmp_path, dirs_exist_ok=True)
    is_nllb = published.kind == "nllb"
    file = tmp_path / ("tokenizer.json" if is_nllb else "vocab.json")
    values = json.loads(file.read_text())
    pieces = values["model"]["vocab"] if is_nllb else values
    pieces["_____"] = pieces.pop([*pieces][-1])
    file.write_text(json.dumps(values))
    assert "_____" in read_checkpoint(tmp_path).vocabularies[0]


def test_tags_of_languages():
    tags = [">>eng_Latn<<", ">>zho_Hans<<", ">>zho_Hant<<", ">>de<<", ">>arb_Arab<<"]
    for code, tag in (
        ("en", 0), ("eng", 0), ("eng_Latn", 0), ("zh", 1), ("zh-TW", 2), ("deu", 3),
        ("ar", 4), ("zh_CN", 1), ("zho_Hant", 2),
    ):  # fmt: skip
        assert tag_of_language(tags, code, "data.source_language") == tags[tag]
    with pytest.raises(InputError, match=r"target_language=fr is none of its lang"):
        tag_of_language(tags, "fr", "data.target_language")
