"""Prepared versions of a text: other pieces, one version for each epoch in turn."""

import io
import random
from collections import deque
from dataclasses import replace
from itertools import chain, islice
from types import SimpleNamespace

import numpy as np
import pytest
from sentencepiece import SentencePieceTrainer

from jaxformer.batch import ALL_ROWS, Rows
from jaxformer.config.data import NO_NOISE, VERSIONS, DataConfig
from jaxformer.configs import wmt_base
from jaxformer.corpus import prepared as opening
from jaxformer.corpus.mixture import Weighted, make_mixture
from jaxformer.corpus.pipeline import examples_of, updates
from jaxformer.corpus.plan import make_plan
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.prepared import open_prepared
from jaxformer.system.errors import InputError
from jaxformer.text.cleaning import breaks_ratio
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.tokens import UNK
from tests.corpus.test_pipeline import assert_equal, pairs_of
from tests.damage import damaged, flip_bit
from tests.text.test_word_sampler import STRENGTHS, words_of

K = 3
MIXTURES = None, [Weighted(0, 700, 2.25), Weighted(700, 1500, 0.5)]
every_layout = pytest.mark.parametrize("layout", ["buckets", "packed"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1500 pairs; some words are frequent, a symbol is part of a word."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    words = {language: [*words_of(language, 60), "x__NUM__,"] for language in "ab"}
    weights = [1 / (1 + rank) for rank in range(61)]
    for split, count in {"train": 1500, "dev": 2}.items():
        sizes = [draw.randint(3, 12) for _ in range(count)]
        for language, known in words.items():
            lines = (" ".join(draw.choices(known, weights, k=n)) for n in sizes)
            text = "".join(f"{line} {n}\n" for n, line in enumerate(lines))
            (folder / f"{split}.{language}").write_text(text)
    return folder


def config_of(folder, **changes):
    values = wmt_base.get_config().data.to_dict() | {
        "corpus": "directory", "directory": str(folder), "train": "train", "dev": "dev",
        "source_language": "a", "target_language": "b", "vocab_size": 140,
        "character_coverage": 1.0, "max_length": 60, "tag": ">>b<<", "target_tag": "",
        "user_defined_symbols": ("__NUM__",),
    }  # fmt: skip
    return DataConfig(**values | changes)


def ids_of(corpus):
    return [[tuple(ids.tolist()) for ids in side] for side in corpus]


@pytest.fixture(scope="module")
def config(folder):
    return config_of(folder, subword_sampling=0.1, versions=K)


@pytest.fixture(scope="module")
def prepared(config, tmp_path_factory):
    return prepare(config, tmp_path_factory.mktemp("versions"))


def plan_of(prepared, layout, mixture=None):
    batching = SimpleNamespace(
        layout=layout, row_length=64, max_shapes=6, row_multiple=2,
        tokens_per_microbatch=512, tokens_per_update=1024,
    )  # fmt: skip
    versions = [[side.lengths for side in each] for each in prepared.versions]
    first, *later = [
        (*own, mixture and make_mixture(*own, mixture)) for own in versions
    ]
    return make_plan(*first[:2], batching, batching, first[2], later)


def updates_of(prepared, plan, start, rows=ALL_ROWS):
    return updates(
        prepared.versions, plan, seed=1, start=start, executor="python", rows=rows,
    )  # fmt: skip


@pytest.mark.parametrize("kind", STRENGTHS)
def test_each_version_is_the_same_text_in_other_pieces(
    prepared, config, kind, tmp_path
):
    if kind == "unigram":
        changes = {"model_type": kind, "subword_sampling": STRENGTHS[kind]}
        prepared = prepare(replace(config, **changes), tmp_path)
    decode = prepared.tokenizer.decode
    versions = [ids_of(version) for version in prepared.versions]
    assert len(versions) == K
    tag = prepared.tokenizer.source_pieces().index(">>b<<")
    symbol = prepared.tokenizer.pieces().index("__NUM__")
    for side in (0, 1):
        first, *others = [version[side] for version in versions]
        texts, ends = [*map(decode, first)], {ids[-1] for ids in first}
        assert len(texts) > 1400
        assert ends == {3}
        for other in others:
            assert [*map(decode, other)] == texts
            assert np.mean([a == b for a, b in zip(first, other, strict=True)]) < 0.2
            found = [ids.count(symbol) for ids in other]
            assert found == [text.count("__NUM__") for text in texts]
            assert side or {ids[0] for ids in other} == {tag}


def test_a_pair_that_would_exceed_a_bound_keeps_its_usual_pieces(config, tmp_path):
    tight = {"max_length": 25, "max_ratio": 1.0}
    never = {"subword_sampling": None, "versions": None}
    sampled, usual, free = (
        prepare(replace(config, **changes), tmp_path / str(number))
        for number, changes in enumerate([tight, tight | never, {"max_ratio": 1000.0}])
    )
    assert sampled.report["train"]["dropped"] == usual.report["train"]["dropped"]
    assert sampled.tokenizer.hash == usual.tokenizer.hash
    assert ids_of(sampled.dev[""].pairs) == ids_of(usual.dev[""].pairs)
    decode, exceeded = usual.tokenizer.decode, 0
    kept = [*zip(*ids_of(usual.train), strict=True)]
    for version, others in zip(sampled.versions, free.versions, strict=True):
        pairs = zip(*ids_of(others), strict=True)
        drawn = {tuple(map(decode, pair)): pair for pair in pairs}
        for pair, own in zip(zip(*ids_of(version), strict=True), kept, strict=True):
            other = drawn[tuple(map(decode, own))]
            sizes = np.array([[len(ids)] for ids in other])
            exceeds = sizes.max() > 25 or breaks_ratio(sizes, True, 1.0).any()
            assert pair == (own if exceeds else other)
            exceeded += exceeds
    assert 50 < exceeded < K * len(kept) - 50


@every_layout
@pytest.mark.parametrize("mixture", MIXTURES, ids=["one corpus", "mixture"])
def test_epoch_e_reads_version_e_mod_k_from_any_start(prepared, layout, mixture):
    """In the rows of one plan; an epoch of a mixture has a pair several times."""
    plan = plan_of(prepared, layout, mixture)
    size, versions = plan.updates_per_epoch, [*map(ids_of, prepared.versions)]
    whole = [*islice(updates_of(prepared, plan, 0), (K + 1) * size)]
    for number, update in enumerate(whole):
        source, target = versions[number // size % K]
        found = [(source[i], target[i]) for i in examples_of(plan, 1, number)]
        assert [*pairs_of(update)] == found
    epochs = [sorted(pairs_of(chain(*whole[n : n + size]))) for n in (0, K * size)]
    assert mixture or epochs[0] == epochs[1]
    shapes = {(*each.source.shape, each.target.shape[1]) for each in chain(*whole)}
    assert shapes == {*plan.shapes}
    for start in (1, size - 1, size + size // 2, 2 * size, K * size + 1):
        later = islice(updates_of(prepared, plan, start), len(whole) - start)
        assert_equal(chain(*later), chain(*whole[start:]))


@every_layout
def test_versions_cost_little_padding(prepared, layout):
    """Beside a plan of one version alone."""
    plan = plan_of(prepared, layout)
    shares = [
        plan_of(prepared._replace(train=each, later_versions=()), layout)
        for each in prepared.versions
    ]
    alone = np.mean([each.real_token_share for each in shares])
    assert 0.95 * alone < plan.real_token_share <= 1.001 * alone
    tokens = [[len(side.tokens) for side in each] for each in prepared.versions]
    assert plan.tokens == pytest.approx(np.mean(tokens, axis=0))


@every_layout
def test_processes_have_their_rows_of_the_same_batches(prepared, layout):
    plan = plan_of(prepared, layout)

    def read(rows):
        start = plan.updates_per_epoch - 2  # crosses into the next epoch
        return [*chain(*islice(updates_of(prepared, plan, start, rows), 4))]

    whole = read(ALL_ROWS)
    for block in (0, 1):
        halves = [[np.split(each, 2)[block] for each in batch] for batch in whole]
        assert_equal(read(Rows((block,), 2)), halves)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", ["1.npy", "2.lengths.npy"])
def test_a_damaged_version_is_found(config, prepared, tmp_path, name, side):
    prepare(config, tmp_path)
    file = tmp_path / "corpus" / "train" / f"00000.{side}.{name}"
    for kind in ("flipped", "truncated", "deleted"):
        complaint = pytest.raises(InputError, match=rf"train/00000\.{side}\.{name} ")
        with damaged(file, kind), complaint:
            open_prepared(tmp_path)
    assert ids_of(open_prepared(tmp_path).versions[-1]) == ids_of(prepared.versions[-1])


def test_a_large_version_is_verified_when_its_epoch_begins(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(opening, "VERIFIED_AT_ONCE", 10)
    prepare(config, tmp_path)
    file = tmp_path / "corpus" / "train" / "00000.target.2.npy"
    flip_bit(file, 8 * file.stat().st_size - 1)
    opened = open_prepared(tmp_path)
    plan = plan_of(opened, "packed")
    whole = updates_of(opened, plan, 0)
    deque(islice(whole, plan.updates_per_epoch), maxlen=0)
    with pytest.raises(InputError, match=r"damaged: train/00000\.target\.2\.npy "):
        deque(whole, maxlen=0)


def test_another_number_of_versions_is_refused(config, tmp_path):
    prepare(config, tmp_path)
    for versions in (K + 1, None):  # which is 16
        refusal = rf"data\.versions was 3 and is now {versions}"
        with pytest.raises(InputError, match=refusal):
            prepare(replace(config, versions=versions), tmp_path)
    before = {k: v for k, v in vars(config).items() if k not in ("versions", "parts")}
    assert DataConfig.of(before).version_count == VERSIONS


def test_a_tokeniser_with_pieces_of_several_words_is_refused(folder, tmp_path):
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 50), model_writer=model, model_type="bpe",
        vocab_size=10, split_by_whitespace=False, pad_id=0, unk_id=1, bos_id=2,
        eos_id=3, normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    changes = {"tag": "", "user_defined_symbols": ()}
    config = config_of(folder, subword_sampling=0.1, **changes)
    complaint = "needs pieces within words; the tokeniser has '▁a▁"
    with pytest.raises(InputError, match=complaint):
        prepare(config, tmp_path, tokenizer=Tokenizer(model.getvalue()))
    assert [*tmp_path.iterdir()] == []


def test_targets_of_a_vocabulary_of_their_own_have_no_tags(folder, tmp_path):
    changes = {"shared_vocabulary": False, "vocab_size": 60, "versions": 2}
    config = config_of(folder, subword_sampling=0.5, **changes)
    prepared = prepare(config, tmp_path)
    decode, encode = prepared.tokenizer.decode, prepared.tokenizer.encode
    ((tag, *_),) = encode([">>b<< a"])
    source, target = ids_of(prepared.train)
    assert {ids[0] for ids in source} == {tag}
    assert {*map(decode, target)} <= {*(folder / "train.b").read_text().splitlines()}


@pytest.mark.parametrize("bytes_", [False, True])
def test_noise_spares_tags_and_copies_only_what_the_vocabulary_has(
    folder, tmp_path, bytes_
):
    config = config_of(
        folder, versions=2, noise=NO_NOISE | {"copy": 0.5, "upper_case": 0.5},
        byte_fallback=bytes_, vocab_size=400 if bytes_ else 140, max_length=500,
    )  # fmt: skip
    prepared = prepare(config, tmp_path)
    decode = prepared.tokenizer.decode
    tag = prepared.tokenizer.source_pieces().index(">>b<<")
    texts = []
    for version in prepared.versions:
        source, target = ids_of(version)
        assert {ids[0] for ids in source} == {tag}
        assert not any(UNK in ids for ids in source + target)
        texts.append([*map(decode, target)])
    plain = {*(folder / "train.b").read_text().splitlines()}
    kept = np.mean([text in plain for text in texts[0]])
    assert kept < 0.02 if bytes_ else 0.3 < kept < 0.99
    same = np.mean([a == b for a, b in zip(*texts, strict=True)])  # in capitals twice
    assert abs(same - 0.25) < 0.06 if bytes_ else same < 0.99
    dev = [*map(decode, ids_of(prepared.dev[""].pairs)[1])]
    assert dev == (folder / "dev.b").read_text().splitlines()
