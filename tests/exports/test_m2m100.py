"""M2M-100 and NLLB compute the same here, and come back as they were."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks.models import one_device
from jaxformer.batch import shift_right
from jaxformer.decoding.options import TranslateOptions
from jaxformer.decoding.translator import Translator
from jaxformer.exports.checkpoint import read_checkpoint
from jaxformer.exports.m2m100 import export_m2m100, tag_of_language
from jaxformer.system.errors import InputError
from jaxformer.text.tokenizer import Tokenizer, pack_tokenizer
from jaxformer.tokens import BOS, EOS, PAD, UNK
from jaxformer.training.sharding import batch_sharding
from tests.exports.conftest import (
    OPTIONS,
    log_probabilities,
    make_batch,
    run_config,
)
from tests.exports.test_marian_import import SOURCES, TARGETS, model_of, spoil

safetensors = pytest.importorskip("safetensors.numpy", reason="extra `export`")

KINDS = {"m2m100": (">>en<<", ">>de<<"), "nllb": (">>eng_Latn<<", ">>deu_Latn<<")}
CODES = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn")}


@pytest.fixture(scope="module", params=KINDS)
def published(request, transformers, tmp_path_factory):
    """A checkpoint and what is read of it; not to be changed.

    `rows` int [V] are their ids by ours.
    """
    folder = tmp_path_factory.mktemp(request.param) / "model"
    text = [*SOURCES, *TARGETS] * 4
    transformers("make_m2m100", folder, text, is_nllb=request.param == "nllb")
    ours = read_checkpoint(folder)
    source, target = KINDS[request.param]
    models = [file.read_bytes() for file in ours.models]
    others = {file.name: file.read_bytes() for file in ours.files}
    packed = pack_tokenizer(*models, *ours.vocabularies, others=others)
    file = folder.parent / "tokenizer.model"
    file.write_bytes(packed)
    return SimpleNamespace(
        folder=folder, ours=ours, kind=request.param, source=source, target=target,
        rows=np.array([1, 3, 0, 2, *range(4, len(ours.vocabularies[0]))]),
        tokenizer=Tokenizer.load(file).for_target(target), model=model_of(ours),
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
    source, target = CODES[published.kind]
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


def test_the_same_beam_search(published, transformers):
    """Scores and translations, for powers of the length."""
    options = TranslateOptions(
        beam_size=4, alpha=0.5, length_penalty="power", extra_length=50,
        no_repeat_ngram=2, batch_tokens=4096, tag=published.source, target_tag=published.target,
    )  # fmt: skip
    translator = Translator(
        [published.model], [published.ours.params], published.tokenizer,
        language="en", options=options, rows=batch_sharding(one_device()),
        searches=1, choose=None, needs_tag=True,
    )  # fmt: skip
    text = [" ".join(words.split()[:n]) for words in SOURCES for n in (1, 3, 5, 8)]
    ours = translator.translate(text)
    ids = published.tokenizer.pieces().index(published.target)
    how = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never"}
    how["no_repeat_ngram_size"] = 2
    bad, lengths = [[1], [3], [0]], []
    for line, (best, *_) in zip(text, ours, strict=True):
        limit = len(published.tokenizer.encode([f"{published.source} {line}"])[0]) + 50
        found, score = transformers(
            "best", published.folder, line, CODES[published.kind][0],
            forced_bos_token_id=ids, max_new_tokens=limit, bad_words_ids=bad, **how,
        )  # fmt: skip
        pieces = [published.tokenizer.pieces().index(piece) for piece in best.pieces]
        assert published.rows[pieces].tolist() == found[1:]
        np.testing.assert_allclose(best.score, score, atol=1e-4)
        lengths.append(len(pieces))
    assert np.ptp(lengths) > 3
