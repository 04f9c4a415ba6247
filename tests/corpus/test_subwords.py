"""Sampled subwords: SentencePiece's frequencies, the same text, the same batches."""

import io
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain, islice, pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from sentencepiece import (
    SentencePieceProcessor,
    SentencePieceTrainer,
    set_random_generator_seed,
)

from jaxformer.batch import ALL_ROWS, Rows
from jaxformer.config.data import DataConfig
from jaxformer.configs import wmt_base
from jaxformer.corpus import plan as plans
from jaxformer.corpus.mixture import Weighted, make_mixture
from jaxformer.corpus.pipeline import examples_of, updates
from jaxformer.corpus.plan import make_plan
from jaxformer.corpus.preparation import prepare
from jaxformer.corpus.prepared import open_prepared
from jaxformer.corpus.subwords import SubwordDraw
from jaxformer.system.errors import InputError
from jaxformer.text.cleaning import breaks_ratio
from jaxformer.text.lines import normalise
from jaxformer.text.tokenizer import Tokenizer
from jaxformer.text.vocabulary import train_tokenizer
from jaxformer.text.word_sampler import WordSampler, word_samplers
from jaxformer.tokens import SIDES, UNK
from tests.corpus.test_pipeline import assert_equal, pairs_of

STRENGTHS = {"bpe": 0.1, "unigram": 0.2}
FREE = (10**6, 10**6)  # room that no pair exceeds
every_type = pytest.mark.parametrize("model_type", STRENGTHS)
every_layout = pytest.mark.parametrize("layout", ["buckets", "packed"])


def words_of(language: str, count: int) -> list[str]:
    draw = random.Random(language)
    letters = draw.sample("abcdefghijklmnopqrstuvwxyzäöüß", 14)
    return ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(count)]


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


@pytest.fixture(scope="module")
def prepared_as(folder, tmp_path_factory):
    known = {}

    def get(model_type):
        if model_type not in known:
            strength = STRENGTHS[model_type]
            config = config_of(folder, model_type=model_type, subword_sampling=strength)
            known[model_type] = prepare(config, tmp_path_factory.mktemp(model_type))
        return known[model_type]

    return get


def sentences(draw, pairs):
    """The ids of pairs, by side."""
    gathered = draw.gather(pairs, pairs)
    return [
        [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
        for ids, lengths in gathered
    ]


def without_bounds(prepared):
    """The words of training pairs, of which no pair is too long."""
    config = replace(prepared.subwords.config, max_length=1000, max_ratio=1000.0)
    return replace(prepared.subwords, config=config)


def all_pairs(prepared):
    return np.arange(len(prepared.train.source), dtype=np.int32)


def plan_of(prepared, layout, mixture=None, subwords=True, **changes):
    values = {
        "layout": layout, "row_length": 64, "max_shapes": 6, "row_multiple": 2,
        "tokens_per_microbatch": 512, "tokens_per_update": 1024,
    }  # fmt: skip
    batching = SimpleNamespace(**values | changes)
    given, lengths = None, [side.lengths for side in prepared.train]
    if subwords:
        given = prepared.subwords
        lengths = given.lengths_to_plan(60)
    if mixture:
        mixture = make_mixture(*lengths, mixture)
    return make_plan(*lengths, batching, batching, mixture, given)


def test_a_word_has_as_many_versions_as_the_text_has_it_or_32(prepared_as):
    for side in prepared_as("bpe").subwords.sides:
        found = np.bincount(np.concatenate([*side.words]))
        assert np.diff(side.first).tolist() == [1 + max(32, n) for n in found]


@every_type
def test_plain_versions_are_the_ids_of_the_tokeniser(prepared_as, model_type):
    prepared = prepared_as(model_type)
    draw = SubwordDraw(prepared.subwords, 1, 0, 1.0, FREE)
    found = sentences(draw, all_pairs(prepared))
    for side, ids in zip(prepared.train, found, strict=True):
        assert ids == [each.tolist() for each in side]


@every_type
def test_each_sampled_sentence_is_the_same_text(prepared_as, model_type, folder):
    prepared = prepared_as(model_type)
    decode, pairs = prepared.tokenizer.decode, all_pairs(prepared)
    subwords = without_bounds(prepared)
    texts = [(folder / f"train.{name}").read_text().splitlines() for name in "ab"]
    known = [{*map(normalise, text)} for text in texts]
    plain = sentences(SubwordDraw(subwords, 1, 0, 1.0, FREE), pairs)
    epochs = [
        sentences(SubwordDraw(subwords, 1, epoch, 0.0, FREE), pairs)
        for epoch in range(3)
    ]
    for found in epochs:
        for ids, usual, text in zip(found, plain, known, strict=True):
            decoded = list(map(decode, ids))
            assert decoded == list(map(decode, usual))
            assert {each.removeprefix(">>b<< ") for each in decoded} <= text
    for one, other in zip(*epochs[:2], strict=True):
        assert np.mean([a == b for a, b in zip(one, other, strict=True)]) < 0.2


@every_type
def test_words_are_split_as_often_as_expected(prepared_as, model_type):
    """Frequencies q of three samples of sizes V, N and M: the versions, what is drawn
    of them, and of a unigram model SentencePiece's. Their variances add up to
    q(1-q)(1/V + 1/N + 1/M). The probabilities of BPE-dropout are exact.

    Of less than 200 comparisons none exceeds 5 deviations, which one in 9,000 runs of
    a right program would; the seeds are fixed. Splits that are expected less than 20
    times in the smallest sample are left out: they are not nearly normal.
    """
    prepared, compared = prepared_as(model_type), 0
    pairs, processor = all_pairs(prepared), prepared.tokenizer.sides[0].processor
    draws = [
        SubwordDraw(without_bounds(prepared), 7, each, 0.0, FREE) for each in range(4)
    ]
    chosen = [draw.choose(pairs, pairs) for draw in draws]
    for number, side in enumerate(prepared.subwords.sides):
        words = side.words.gather(pairs)[0]
        for word in np.bincount(words)[2:].argsort()[-6:] + 2:  # neither EOS nor tag
            versions = np.concatenate(
                [each[number][0][words == word] for each in chosen]
            )
            splits = [tuple(side.versions[i].tolist()) for i in versions]
            text = processor.decode([*splits[0]])
            if model_type == "bpe":
                sizes = [side.first[word + 1] - side.first[word] - 1, len(splits)]
                expected = of_bpe_dropout(processor, tuple("▁" + text))
            else:
                sizes = [side.first[word + 1] - side.first[word] - 1, len(splits), 4000]
                set_random_generator_seed(99)
                theirs = processor.encode(
                    [text] * 4000, enable_sampling=True, nbest_size=-1,
                    alpha=STRENGTHS[model_type], num_threads=1,
                )  # fmt: skip
                expected = Counter(map(tuple, theirs))
                expected = {split: n / 4000 for split, n in expected.items()}
            ours = Counter(splits)
            for split in {*ours, *expected}:
                q = expected.get(split, 0.0)
                if min(q, 1 - q) * min(sizes) < 20:
                    continue
                variance = q * (1 - q) * sum(1 / size for size in sizes)
                difference = ours[split] / len(splits) - q
                assert abs(difference) < 5 * variance**0.5, (text, split)
                compared += 1
    assert 20 < compared < 200


def of_bpe_dropout(processor, pieces):
    """Return the probability of each split, in ids, by algorithm 1 of Provilkov et al.

    The k-th best merge is made if it stays and the k - 1 better ones are dropped.
    """
    drop, pairs = STRENGTHS["bpe"], pairwise(pieces)
    ids = [processor.piece_to_id(first + second) for first, second in pairs]
    merges = [at for at, found in enumerate(ids) if found != UNK]
    merges.sort(key=lambda at: -processor.get_score(ids[at]))
    whole = tuple(map(processor.piece_to_id, pieces))
    found = Counter({whole: drop ** len(merges)})
    for better, at in enumerate(merges):
        merged = (*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :])
        for split, chance in of_bpe_dropout(processor, merged).items():
            found[split] += drop**better * (1 - drop) * chance
    return found


def test_versions_are_chosen_evenly_and_independently(prepared_as):
    """Of one word and the next, of two epochs, seeds, slots and sides; in 8 x 8 cells.

    Chi-squared with 63 degrees of freedom exceeds 63 + 5 sqrt(126) once in 50,000.
    """
    prepared = prepared_as("bpe")
    subwords, pairs = without_bounds(prepared), all_pairs(prepared)

    def eighths(seed=1, epoch=0, slots=pairs, side=0):
        """The eighth of the versions that each word's is of, [words]."""
        draw = SubwordDraw(subwords, seed, epoch, 0.0, FREE)
        versions, _ = draw.choose(pairs, slots)[side]
        words, _ = subwords.sides[side].words.gather(pairs)
        first = subwords.sides[side].first
        number, count = versions - first[words] - 1, np.diff(first)[words] - 1
        return np.where(count > 31, number * 8 // count, -1)

    base = eighths()
    others = {
        "next word": np.append(base[1:], -1),
        "epoch": eighths(epoch=1),
        "seed": eighths(seed=2),
        "slots": eighths(slots=pairs + len(pairs)),
    }
    # A source has a tag more than words of the target; its last place is EOS.
    ends = np.cumsum(np.diff(subwords.sides[0].words.offsets)) - 1
    pairings = {name: (base, other) for name, other in others.items()}
    pairings["side"] = np.delete(base, ends), eighths(side=1)
    for name, (mine, other) in pairings.items():
        table = np.zeros((8, 8))
        both = (mine >= 0) & (other >= 0)
        np.add.at(table, (mine[both], other[both]), 1)
        expected = both.sum() / 64
        assert expected > 100
        # Counts of 32 to 4096 versions are in eighths of nearly the same size.
        assert ((table - expected) ** 2).sum() / expected < 63 + 5 * 126**0.5, name


@every_type
def test_no_sampled_pair_exceeds_a_bound(prepared_as, model_type):
    """max_length, max_ratio and room; a pair that would is split as without."""
    prepared = prepared_as(model_type)
    pairs = all_pairs(prepared)
    plain = [side.lengths for side in prepared.train]
    room = int(plain[0].max()) + 1, int(plain[1].max()) + 2
    config = replace(prepared.subwords.config, max_length=room[1] - 1, max_ratio=1.0)
    pairs = pairs[~breaks_ratio(np.array(plain), True, 1.0)]
    subwords = replace(prepared.subwords, config=config)
    for epoch in range(3):
        draw = SubwordDraw(subwords, 1, epoch, 0.0, room)
        free = SubwordDraw(without_bounds(prepared), 1, epoch, 0.0, FREE)
        found, others = (each.lengths(pairs, pairs) for each in (draw, free))
        assert found[0].max() <= room[0]
        assert found[1].max() <= config.max_length
        assert not breaks_ratio(np.array(found), True, 1.0).any()
        is_plain = breaks_ratio(np.array(others), True, 1.0)
        is_plain |= np.max(others, axis=0) > config.max_length
        is_plain |= others[0] > room[0]
        assert 0.001 < is_plain.mean() < 0.9
        for side, lengths, other in zip(plain, found, others, strict=True):
            expected = np.where(is_plain, side[pairs], other)
            np.testing.assert_array_equal(lengths, expected)


MIXTURES = None, [Weighted(0, 700, 2.25), Weighted(700, 1500, 0.5)]


@every_layout
@pytest.mark.parametrize("mixture", MIXTURES, ids=["one corpus", "mixture"])
def test_batches_hold_the_epochs_pairs_from_any_start(prepared_as, layout, mixture):
    """And lose nothing by rows that are full: each pair is the whole text."""
    prepared = prepared_as("bpe")
    plan = plan_of(prepared, layout, mixture)
    size, decode = plan.updates_per_epoch, prepared.tokenizer.decode
    read = {"seed": 1, "executor": "python"}
    stream = updates([prepared.train], plan, start=0, **read)
    whole = list(islice(stream, 2 * size + 1))
    texts = [[decode(ids.tolist()) for ids in side] for side in prepared.train]
    epochs = []
    for number, update in enumerate(whole):
        assert all(batch.source_segments.any() for batch in update)
        found = [tuple(map(decode, pair)) for pair in pairs_of(update)]
        examples = examples_of(plan, 1, number)
        assert found == [tuple(side[i] for side in texts) for i in examples]
        epochs.append(examples)
    first, second = (np.concatenate(epochs[i : i + size]) for i in (0, size))
    expected = np.bincount(first, minlength=1500) if mixture else np.ones(1500)
    assert len(first) == len(second) == expected.sum()
    np.testing.assert_array_equal(np.bincount(first, minlength=1500), expected)
    assert sum(pair in set(pairs_of(whole[size])) for pair in pairs_of(whole[0])) < 9
    for start in (1, size - 1, size + 3):
        later = updates([prepared.train], plan, start=start, **read)
        assert_equal(chain(*islice(later, len(whole) - start)), chain(*whole[start:]))


@every_layout
def test_batches_do_not_depend_on_the_processes(prepared_as, layout):
    prepared = prepared_as("unigram")
    plan = plan_of(prepared, layout)

    def read(rows):
        stream = updates(
            prepared.train, plan, seed=3, start=2, executor="python", rows=rows
        )
        return [*chain(*islice(stream, 4))]

    whole = read(ALL_ROWS)
    for blocks in ((0,), (1,)):
        halves = [[np.split(each, 2)[blocks[0]] for each in batch] for batch in whole]
        assert_equal(read(Rows(blocks, 2)), halves)


def test_a_pair_is_split_anew_where_an_epoch_repeats_it(prepared_as):
    prepared = prepared_as("bpe")
    plan = plan_of(prepared, "packed", [Weighted(0, 1500, 3.0)])
    stream = updates([prepared.train], plan, seed=1, start=0, executor="python")
    decode, found = prepared.tokenizer.decode, {}
    for pair in pairs_of(chain(*islice(stream, plan.updates_per_epoch))):
        found.setdefault(tuple(map(decode, pair)), set()).add(pair)
    assert len(found) == 1500
    assert np.mean([len(versions) for versions in found.values()]) > 2.7


@every_layout
@pytest.mark.parametrize("refused", range(5))
def test_an_epoch_that_does_not_fit_has_more_plain_pairs(prepared_as, layout, refused):
    prepared = prepared_as("bpe")
    plan = plan_of(prepared, layout)
    arrange, left = plan.sampling.arrange, [None] * refused

    def stub(*lengths):
        return left.pop() if left else arrange(*lengths)

    sampling = plan.sampling._replace(arrange=stub)
    epoch = replace(plan, sampling=sampling).epoch(1, 0)
    assert epoch.draw.share == (*plans._PLAIN_SHARES, 1.0)[refused]
    assert sorted(epoch.examples) == [*range(1500)]
    pairs = all_pairs(prepared)
    found = epoch.draw.lengths(pairs, pairs)
    free = replace(epoch.draw, share=0.0).lengths(pairs, pairs)
    if refused == 4:
        plain = [side.lengths for side in prepared.train]
        np.testing.assert_array_equal(found, plain)
    changed = np.any(np.array(found) != free, axis=0).mean()
    assert 0.5 * epoch.draw.share <= changed <= epoch.draw.share + 0.03
    for index in range(plan.microbatches_per_epoch):
        (_, *widths), examples, rows = epoch.microbatch(index)
        for side, width in zip(found, widths, strict=True):
            assert np.bincount(rows, side[examples]).max() <= width


@every_layout
def test_sampling_costs_little_padding(prepared_as, layout):
    """Beside the same lengths, planned as if all epochs had them."""
    prepared = prepared_as("bpe")
    sampled = plan_of(prepared, layout, tokens_per_microbatch=256)
    pairs, epoch = all_pairs(prepared), sampled.epoch(1, 5)
    lengths = epoch.draw.lengths(pairs, pairs)
    positions = sum(
        sampled.shapes[shape].rows * sum(sampled.shapes[shape][1:])
        for shape in epoch.shape_of
    )
    real = np.sum(lengths) / positions
    assert real == pytest.approx(sampled.real_token_share, rel=0.01)
    batching = SimpleNamespace(
        layout=layout, row_length=64, max_shapes=6, row_multiple=2,
        tokens_per_microbatch=256, tokens_per_update=1024,
    )  # fmt: skip
    exact = make_plan(*lengths, batching, batching).real_token_share
    assert 0.93 * exact < real <= exact * 1.001


def test_without_the_key_a_workdir_and_its_batches_are_as_before(
    folder, prepared_as, tmp_path
):
    sampled, plain = prepared_as("bpe"), prepare(config_of(folder), tmp_path)
    assert plain.subwords is None
    assert not (tmp_path / "corpus" / "versions").exists()
    assert len([*(tmp_path / "corpus" / "train").iterdir()]) == 5
    assert plain.tokenizer.hash == sampled.tokenizer.hash
    for side, other in zip(plain.train, sampled.train, strict=True):
        np.testing.assert_array_equal(side.tokens, other.tokens)
    assert plan_of(plain, "packed", subwords=False).epoch(1, 0).draw is None


def trained(**options):
    """A tokeniser of other words."""
    values = {"vocab_size": 60, "character_coverage": 1.0, "vocab_sentences": 999}
    values |= {"seed": 0, "tags": [], "user_defined_symbols": (), "model_type": "bpe"}
    return train_tokenizer(words_of("b", 60), SimpleNamespace(**values | options))


def spanning_spaces():
    """A tokeniser that has the piece "▁a▁b"."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 50), model_writer=model, model_type="bpe",
        vocab_size=10, split_by_whitespace=False, pad_id=0, unk_id=1, bos_id=2,
        eos_id=3, normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    return Tokenizer(model.getvalue())


@pytest.mark.parametrize("versions", [None, 2])
def test_a_tokeniser_with_pieces_of_several_words_is_refused(
    folder, tmp_path, versions
):
    changes = {"tag": "", "user_defined_symbols": (), "versions": versions}
    config = config_of(folder, subword_sampling=0.1, **changes)
    complaint = "needs pieces within words; the tokeniser has '▁a▁"
    with pytest.raises(InputError, match=complaint):
        prepare(config, tmp_path, tokenizer=spanning_spaces())
    assert [*tmp_path.iterdir()] == []


OF_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tests.corpus.test_subwords import config_of, prepare

config = config_of(sys.argv[1], model_type="unigram", subword_sampling=0.2)
prepare(config, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_another_process_prepares_the_same(folder, prepared_as, tmp_path):
    """SentencePiece's own samples differ from process to process."""
    script = [sys.executable, "-c", OF_ANOTHER_PROCESS, folder, tmp_path]
    subprocess.run(script, check=True, timeout=120)
    other = open_prepared(tmp_path).subwords
    for side, same in zip(
        prepared_as("unigram").subwords.sides, other.sides, strict=True
    ):
        np.testing.assert_array_equal(side.versions.tokens, same.versions.tokens)
        np.testing.assert_array_equal(side.versions.offsets, same.versions.offsets)


def test_unknown_characters_stay_unknown(folder, tmp_path):
    """The text has letters and digits that the tokeniser lacks."""
    config = config_of(folder, subword_sampling=0.3, tag="", user_defined_symbols=())
    prepared = prepare(config, tmp_path, tokenizer=trained())
    pairs = all_pairs(prepared)
    for share, epoch in product((0.0, 1.0), (0, 1)):
        draw = SubwordDraw(prepared.subwords, 1, epoch, share, FREE)
        for side, ids in zip(prepared.train, sentences(draw, pairs), strict=True):
            for plain, found in zip(side, ids, strict=True):
                decode = prepared.tokenizer.decode
                assert share < 1 or found == plain.tolist()
                assert decode(found).replace("⁇", "").replace(" ", "") == decode(
                    plain
                ).replace("⁇", "").replace(" ", "")


def test_neighbouring_unknown_characters_are_one_piece():
    """As SentencePiece has it."""
    word = words_of("b", 1)[0] + "日本"
    for sampler in word_samplers(trained(), ()):
        versions = sampler.versions(word, 50, 0.5, random.Random(0))
        assert {ids.count(UNK) for ids in versions} == {1}
        assert len({*map(tuple, versions)}) > 1


def test_a_damaged_version_is_found(folder, tmp_path):
    config = config_of(folder, subword_sampling=0.1)
    prepare(config, tmp_path)
    file = tmp_path / "corpus" / "versions" / f"00000.{SIDES[0]}.npy"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"versions/00000.source.npy does not have"):
        prepare(config, tmp_path)


def test_targets_of_a_vocabulary_of_their_own_have_no_tags(folder, tmp_path):
    sampled = {"shared_vocabulary": False, "subword_sampling": 0.5, "vocab_size": 60}
    prepared = prepare(config_of(folder, **sampled), tmp_path)
    pairs = all_pairs(prepared)
    plain = sentences(SubwordDraw(prepared.subwords, 1, 0, 1.0, FREE), pairs)
    for side, found in zip(prepared.train, plain, strict=True):
        assert found == [side[index].tolist() for index in pairs]
    tag = prepared.tokenizer.source_pieces().index(">>b<<")
    assert {source[0] for source in plain[0]} == {tag}


def test_symbols_of_a_users_unigram_model_are_never_split():
    model, known = io.BytesIO(), ["__N__"]
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a _ N b __N__ abab NN __"] * 9), model_writer=model,
        model_type="unigram", vocab_size=16, hard_vocab_limit=False, minloglevel=2,
        user_defined_symbols=known, normalization_rule_name="identity",
    )  # fmt: skip
    processor = SentencePieceProcessor(model_proto=model.getvalue())
    ids = {processor.id_to_piece(i): i for i in range(len(processor))}
    sampler = WordSampler(model.getvalue(), ids, [])
    versions = sampler.versions("ab__N__ba", 50, 0.1, random.Random("seed"))
    assert all(ids["__N__"] in version for version in versions)
    assert len({*map(tuple, versions)}) > 1
