"""Train SentencePiece vocabularies on a sample of the text (section 5.1)."""

import io
import logging
import math
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import compress

import numpy as np
from sentencepiece import SentencePieceTrainer

from jaxformer.config.data import DataConfig
from jaxformer.system.errors import InputError
from jaxformer.system.progress import progress
from jaxformer.text.hashing import mix
from jaxformer.text.lines import normalise
from jaxformer.text.sources import Pair
from jaxformer.text.tokenizer import Tokenizer, pair_of
from jaxformer.tokens import BOS, EOS, PAD, UNK

POLL = 0.2  # seconds between two looks for a request to stop
LONGEST = 4192  # bytes of a sentence that SentencePiece trains on by default
RESERVED = "<pad>", "<unk>", "<s>", "</s>"  # its pieces of the reserved ids

log = logging.getLogger(__name__)


class Sample:
    """At most `size` of the texts that are added, each with equal chance.

    A text is drawn by a random number that depends on the seed and the text's place
    alone. So the sample does not depend on the order of calls, and samples of parts can
    be added. Blank texts do not count.
    """

    def __init__(self, size: int, seed: int, limit: int = 2**64 - 1) -> None:
        """Make a sample of the texts whose numbers are at most `limit`."""
        # SentencePiece's own sample differs from process to process.
        self._size, self._limit = size, np.uint64(limit)
        self._key = mix(np.array([seed], np.uint64))
        # Millions of tuples would keep the garbage collector busy.
        self._numbers, self._places = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        self._texts: list[str] = []  # normalised

    def add(self, places: np.ndarray, texts: Sequence[str]) -> None:
        """Add texts with their places in all text, uint64 [n]."""
        numbers = mix(places + self._key)
        own = np.flatnonzero(numbers <= self._limit)
        found = [normalise(texts[index]) for index in own.tolist()]
        own = own[np.fromiter(map(bool, found), bool, len(found))]
        self._extend(numbers[own], places[own], filter(None, found))

    @property
    def drawn(self) -> list[tuple[int, int, str]]:
        """The number, the place and the text of each that is drawn so far."""
        numbers, places = map(np.concatenate, (self._numbers, self._places))
        return [*zip(numbers.tolist(), places.tolist(), self._texts, strict=True)]

    def add_drawn(self, drawn: Sequence[tuple[int, int, str]]) -> None:
        """Add what the sample of another part has drawn."""
        if drawn:
            numbers, places, texts = zip(*drawn, strict=True)
            self._extend(*np.array([numbers, places], np.uint64), texts)

    def _extend(
        self, numbers: np.ndarray, places: np.ndarray, texts: Iterable[str]
    ) -> None:
        self._numbers.append(numbers)
        self._places.append(places)
        self._texts += texts
        self._cut(2 * self._size)

    def _cut(self, most: int) -> None:
        """Drop what is not of the sample, if more texts than `most` are in memory."""
        if len(self._texts) > most:
            numbers, places = map(np.concatenate, (self._numbers, self._places))
            self._limit = np.partition(numbers, self._size - 1)[self._size - 1]
            kept = numbers <= self._limit
            self._numbers, self._places = [numbers[kept]], [places[kept]]
            self._texts = [*compress(self._texts, kept.tolist())]

    @property
    def texts(self) -> list[str]:
        """The sample in the text's order."""
        self._cut(self._size)
        order = np.argsort(np.concatenate(self._places))
        return [self._texts[index] for index in order.tolist()]


class VocabularySamples:
    """The sentences that the tokeniser of a config is trained on."""

    def __init__(self, config: DataConfig, texts: tuple[int, int] = (1, 1)) -> None:
        """Make empty samples.

        `texts` are the numbers of sources and of targets that are not blank, if known:
        then samples of a part of them are not much larger than its share. Raises
        InputError as `require_trainable` does.
        """
        require_trainable(config)
        size, counts = config.vocab_sentences, texts
        if config.shared_vocabulary:
            counts = [sum(texts)]
        # The sample is smaller with a probability below 1e-20.
        enough = size + 10 * math.isqrt(size) + 100
        shares = [min(1.0, enough / max(1, count)) for count in counts]
        limits = [min(2**64 - 1, int(share * 2**64)) for share in shares]
        self._config = config
        self.samples = [Sample(size, config.seed, limit) for limit in limits]

    def add(self, first: int, pairs: Sequence[Pair], tag: str) -> None:
        """Add pairs, the first of which is pair `first` of all text.

        Sources begin with a tag, or with "".
        """
        places = np.arange(2 * first, 2 * (first + len(pairs)), 2, np.uint64)
        sources = [source.removeprefix(tag) for source, _ in pairs]
        self.samples[0].add(places, sources)
        self.samples[-1].add(places + np.uint64(1), [target for _, target in pairs])

    def add_drawn(self, drawn: Iterable[list[tuple[int, int, str]]]) -> None:
        """Add what samples of another part of the text have drawn."""
        for sample, own in zip(self.samples, drawn, strict=True):
            sample.add_drawn(own)

    def train(self) -> Tokenizer:
        """Train the tokeniser.

        Raises InputError if there is no text or its characters alone exceed
        `vocab_size`.
        """
        source, *others = (sample.texts for sample in self.samples)
        tokenizer = train_tokenizer(source, self._config)
        for target in others:
            config = replace(self._config, corpora=(), columns=(), tag="")
            other = train_tokenizer(target, config)
            tokenizer = pair_of(tokenizer.content, other.content)
        size, sizes = self._config.vocab_size, {"": tokenizer.vocab_size}
        if others:
            sizes = {"source ": tokenizer.source_vocab_size, "target ": sizes[""]}
        for side, most in sizes.items():
            if most < size:
                log.warning(
                    "data.vocab_size=%d is too large for the %stext, which gets %d "
                    "ids; docs/model_size.md says how many suit it", size, side, most,
                )  # fmt: skip
        return tokenizer


def require_trainable(config: DataConfig) -> None:
    """Raise InputError for keys with which SentencePiece trains no vocabulary."""
    if config.character_coverage < 0.98:
        raise InputError(
            f"data.character_coverage is {config.character_coverage}; a vocabulary is "
            "trained with 0.98 to 1"
        )
    for text in config.user_defined_symbols:
        if not text or re.search(r"[\s\u2581]", text) or text in RESERVED:
            joined, hint = re.sub(r"[\s\u2581]+", "_", text), ""
            if joined != text:
                hint = f", such as {joined!r}, and write them so in the text too"
            raise InputError(
                f"data.user_defined_symbols has {text!r}; use texts without spaces and "
                f"U+2581 that are none of {', '.join(RESERVED)}{hint}"
            )


def _has_long_word(text: str) -> bool:
    """Whether a word has more than LONGEST bytes; SentencePiece may fail on it."""
    if len(text) <= LONGEST // 4:
        return False
    return any(len(word.encode()) > LONGEST for word in text.split())


def train_tokenizer(texts: Sequence[str], config: DataConfig) -> Tokenizer:
    """Train a vocabulary of `model_type` on normalised texts, with all tags.

    The same texts in the same order give the same bytes. Raises InputError as
    `VocabularySamples.train` does.
    """
    texts = [text for text in texts if not _has_long_word(text)]
    if not texts:
        raise InputError("the training text has no sentence to learn a vocabulary of")
    model = io.BytesIO()
    # SentencePiece leaves out longer texts. The number is in the model's bytes.
    longest = max(LONGEST, *(len(text.encode()) for text in texts))
    symbols = [*config.tags, *config.user_defined_symbols]
    # In a thread, because the main thread handles signals only outside of C++, where an
    # exception of a handler becomes a RuntimeError.
    train = partial(ThreadPoolExecutor(1).submit, SentencePieceTrainer.train)
    try:
        training = train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            user_defined_symbols=list(dict.fromkeys(symbols)),
            max_sentence_length=longest,
            normalization_rule_name="identity",
            num_threads=8,  # in the model's bytes: the same hash on every machine
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,  # errors only
        )
        with progress("training the vocabulary") as work:
            while wait([training], POLL).not_done:
                work.update(0)
            training.result()
    except RuntimeError as error:
        too_small = re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error))
        raise InputError(
            f"vocab_size {config.vocab_size} is too small: the characters of the "
            f"training text and the reserved ids alone need {too_small[1]}; raise it "
            "or lower character_coverage."
            if too_small
            else f"SentencePiece cannot build {config.vocab_size} ids: {error}."
        ) from None
    return Tokenizer(model.getvalue())
