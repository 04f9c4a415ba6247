"""Train SentencePiece vocabularies on a sample of the text (section 5.1)."""

import io
import logging
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

from sentencepiece import SentencePieceTrainer

from jaxformer.data.sources import Pair
from jaxformer.data.text import normalise
from jaxformer.data.tokenizer import Tokenizer, pair_of
from jaxformer.data_config import DataConfig
from jaxformer.errors import InputError
from jaxformer.progress import progress
from jaxformer.tokens import BOS, EOS, PAD, UNK

log = logging.getLogger(__name__)


class Sample:
    """At most `size` of the texts that are added, each with equal chance.

    A function of the texts, their order and the seed (Vitter's algorithm R). Blank
    texts do not count.
    """

    def __init__(self, size: int, seed: int) -> None:
        # SentencePiece's own sample differs from process to process.
        self._size, self._random, self._count = size, Random(seed).random, 0
        self.texts: list[str] = []  # normalised

    def add(self, text: str) -> None:
        """Add a text; the sample keeps it, or not."""
        if not (text := normalise(text)):
            return
        if self._count < self._size:
            self.texts.append(text)
        elif (replaced := int(self._random() * (self._count + 1))) < self._size:
            self.texts[replaced] = text
        self._count += 1


class VocabularySamples:
    """The sentences that the tokeniser of a config is trained on."""

    def __init__(self, config: DataConfig) -> None:
        count = 1 if config.shared_vocabulary else 2
        size = config.vocab_sentences, config.seed
        self._config, self._samples = config, [Sample(*size) for _ in range(count)]

    def add(self, pairs: Iterable[Pair], tag: str) -> None:
        """Add pairs of sentences, of which the sources begin with a tag, or with ""."""
        for source, target in pairs:
            self._samples[0].add(source.removeprefix(tag))
            self._samples[-1].add(target)

    def train(self) -> Tokenizer:
        """Train the tokeniser. Raises InputError as `train_tokenizer` does."""
        source, *others = (sample.texts for sample in self._samples)
        tokenizer = _train(source, self._config, self._config.tags)
        for target in others:
            other = _train(target, self._config, [])
            tokenizer = pair_of(tokenizer.content, other.content)
        return tokenizer


def train_tokenizer(sentences: Iterable[str], config: DataConfig) -> Tokenizer:
    """Train a vocabulary of `model_type` on sentences of both languages, or of one.

    The same sentences in the same order give the same bytes. Uses at most
    `vocab_sentences` of them, drawn with `seed`: 200 bytes of memory each. Raises
    InputError if there is no text or its characters alone exceed `vocab_size`.
    """
    sample = Sample(config.vocab_sentences, config.seed)
    for sentence in sentences:
        sample.add(sentence)
    return _train(sample.texts, config, config.tags)


def _train(texts: list[str], config: DataConfig, tags: list[str]) -> Tokenizer:
    vocab_size = config.vocab_size
    if not texts:
        raise InputError("the training text has no sentence to learn a vocabulary of")
    model = io.BytesIO()
    # In a thread, because the main thread handles signals only outside of C++, where an
    # exception of a handler becomes a RuntimeError.
    train = partial(ThreadPoolExecutor(1).submit, SentencePieceTrainer.train)
    try:
        training = train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            user_defined_symbols=[*tags, *config.user_defined_symbols],
            normalization_rule_name="identity",
            num_threads=8,  # in the model's bytes: the same hash on every machine
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,  # errors only
        )
        with progress("training the vocabulary"):
            training.result()
    except RuntimeError as error:
        too_small = re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error))
        raise InputError(
            f"vocab_size {vocab_size} is too small: the characters of the training "
            f"text and the reserved ids alone need {too_small[1]}; raise it or lower "
            "character_coverage."
            if too_small
            else f"SentencePiece cannot build {vocab_size} vocabulary ids: {error}."
        ) from None
    tokenizer = Tokenizer(model.getvalue())
    if tokenizer.vocab_size < vocab_size:
        more = "vocab_size %d is more than the text supports: the vocabulary has %d ids"
        log.warning(more, vocab_size, tokenizer.vocab_size)
    return tokenizer
