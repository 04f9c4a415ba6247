"""Words split at random: SentencePiece's frequencies, the same text."""

import io
import random
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from sentencepiece import (
    SentencePieceProcessor,
    SentencePieceTrainer,
    set_random_generator_seed,
)

from jaxformer.text.vocabulary import train_tokenizer
from jaxformer.text.word_sampler import WordSampler, word_samplers
from jaxformer.tokens import UNK

STRENGTHS = {"bpe": 0.1, "unigram": 0.2}
SAMPLES = 4000


def words_of(language: str, count: int) -> list[str]:
    draw = random.Random(language)
    letters = draw.sample("abcdefghijklmnopqrstuvwxyzäöüß", 14)
    return ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(count)]


def trained(texts=(), **options):
    values = {"vocab_size": 60, "character_coverage": 1.0, "vocab_sentences": 999}
    values |= {"seed": 0, "tags": [], "user_defined_symbols": (), "model_type": "bpe"}
    values["byte_fallback"] = False
    texts = texts or words_of("b", 60)
    return train_tokenizer(texts, SimpleNamespace(**values | options))


@pytest.mark.parametrize("model_type", STRENGTHS)
def test_words_are_split_as_often_as_expected(model_type):
    """Frequencies q of two samples of size N: ours, and of a unigram model
    SentencePiece's. Their variances add up to 2q(1-q)/N. The probabilities of
    BPE-dropout are exact.

    Of less than 200 comparisons none exceeds 5 deviations, which one in 9,000 runs of
    a right program would; the seeds are fixed. Splits that are expected less than 20
    times are left out: they are not nearly normal.
    """
    words = words_of("a", 60)
    weights = [1 / (1 + rank) for rank in range(60)]
    texts = random.Random(0).choices(words, weights, k=6000)
    tokenizer = trained(texts, vocab_size=140, model_type=model_type)
    (sampler, _), compared = word_samplers(tokenizer, ()), 0
    processor, strength = tokenizer.sides[0].processor, STRENGTHS[model_type]
    for word in sorted({*words}, key=lambda word: (len(word), word))[30:42]:
        draw = random.Random(word)
        splits = [sampler.sample(word, strength, draw) for _ in range(SAMPLES)]
        if model_type == "bpe":
            expected, sizes = of_bpe_dropout(processor, tuple("▁" + word)), 1
        else:
            set_random_generator_seed(99)
            theirs = processor.encode(
                [word] * SAMPLES, enable_sampling=True, nbest_size=-1, alpha=strength,
                num_threads=1,
            )  # fmt: skip
            counts, sizes = Counter(map(tuple, theirs)), 2
            expected = {split: n / SAMPLES for split, n in counts.items()}
        ours = Counter(map(tuple, splits))
        for split in {*ours, *expected}:
            assert processor.decode([*split]) == word
            q = expected.get(split, 0.0)
            if min(q, 1 - q) * SAMPLES < 20:
                continue
            difference = ours[split] / SAMPLES - q
            assert abs(difference) < 5 * (sizes * q * (1 - q) / SAMPLES) ** 0.5
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


@pytest.mark.parametrize("model_type", STRENGTHS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_unknown_characters_are_bytes_or_one_piece(model_type, byte_fallback):
    """As SentencePiece has it; without bytes neighbours are one piece."""
    word, known = words_of("b", 1)[0] + "日本", {"vocab_size": 330}
    tokenizer = trained(model_type=model_type, byte_fallback=byte_fallback, **known)
    usual = tokenizer.encode([word])[0][:-1]
    for sampler in word_samplers(tokenizer, ()):
        draw = random.Random(0)
        samples = [sampler.sample(word, 0.5, draw) for _ in range(50)]
        assert {ids.count(UNK) for ids in samples} == {0 if byte_fallback else 1}
        assert {*map(tokenizer.decode, samples)} == {tokenizer.decode(usual)}
        assert len({*map(tuple, samples)}) > 1
        assert not byte_fallback or all(ids[-6:] == usual[-6:] for ids in samples)


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
    draw = random.Random("seed")
    versions = [sampler.sample("ab__N__ba", 0.1, draw) for _ in range(50)]
    assert all(ids["__N__"] in version for version in versions)
    assert len({*map(tuple, versions)}) > 1
