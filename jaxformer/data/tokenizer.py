"""Convert sentences to ids and back with a SentencePiece vocabulary.

Source and target share the vocabulary (section 5.1). `MarianTokenizer` is that of an
imported model.

SentencePiece's own NFKC rules are off: they rewrite "½", "H₂O", "…" and full-width
punctuation. If all characters of a text are in the vocabulary, decode(encode(text)) is
normalise(text).

A character outside the vocabulary is UNK. There is no fallback to bytes: its 256 ids
are a tenth of a small vocabulary, and a model that writes bytes can write broken UTF-8.
"""

import hashlib
import io
import json
import logging
import re
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from random import Random

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.data.text import normalise
from jaxformer.data_config import TAG, DataConfig
from jaxformer.errors import InputError
from jaxformer.progress import progress

log = logging.getLogger(__name__)

_RESERVED = 4  # PAD, UNK, BOS, EOS
_ZIP = b"PK\x03\x04"  # first bytes of a zip file, never of a SentencePiece model
_MEMBERS = ("source.spm", "target.spm", "vocabulary.json")
_LANGUAGE = re.compile(f"({TAG})?")


class Tokenizer:
    """A trained vocabulary; implements `jaxformer.batch.Tokenizer`."""

    def __init__(self, model: bytes):
        """Use the bytes of a SentencePiece model; RuntimeError if they are not one."""
        self._processor = SentencePieceProcessor(model_proto=model)
        self.source_model = self.target_model = self.content = model
        self.hash = hashlib.sha256(model).hexdigest()
        self.vocab_size = len(self._processor)
        ids = list(range(self.vocab_size))
        self._pieces: list[str] = self._processor.id_to_piece(ids)

    @staticmethod
    def load(path: Path, sha256: str | None = None) -> "Tokenizer":
        """Read a tokeniser's file. Raises InputError if it is missing or damaged.

        With `sha256` also if it is another file than the one with that hash.
        """
        try:
            content = path.read_bytes()
            found = hashlib.sha256(content).hexdigest()
            if sha256 not in (None, found):
                raise InputError(
                    f"{path} is damaged or not the tokeniser of this run (sha256 "
                    f"{found[:12]} instead of {sha256[:12]}); put the original back"
                )
            is_packed = content.startswith(_ZIP)
            return MarianTokenizer(content) if is_packed else Tokenizer(content)
        except OSError as error:
            raise InputError(f"the tokenizer {path} cannot be read: {error}") from None
        except (RuntimeError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is damaged or not a SentencePiece model ({error})"
            ) from None

    def pieces(self) -> list[str]:
        """Return the piece of every id; "▁" stands for the space before a word."""
        return list(self._pieces)

    def language_code(self, text: str) -> str:
        """Return the tag, a piece such as ">>fra<<", that begins a source, or ""."""
        code = _LANGUAGE.match(text)[0]
        return code if code in self._codes else ""

    @cached_property
    def _codes(self) -> dict[str, int]:
        pieces = enumerate(self._pieces)
        return {piece: i for i, piece in pieces if re.fullmatch(TAG, piece)}

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source sentence, EOS last; [EOS] for a blank one."""
        texts = [normalise(sentence) for sentence in sentences]
        if not self._codes:
            return self._encode_texts(texts)
        codes = list(map(self.language_code, texts))
        found = self._encode_texts(list(map(str.removeprefix, texts, codes)))
        return [
            [self._codes[code], *ids] if code else ids
            for code, ids in zip(codes, found, strict=True)
        ]

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target sentence, EOS last; they have no tags."""
        return self._encode_texts([normalise(sentence) for sentence in sentences])

    def _encode_texts(self, texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:  # a pool of threads takes ten times as long
            return [self._processor.encode(texts[0], add_eos=True)]
        return self._processor.encode(texts, add_eos=True, num_threads=-1)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first EOS, on one line; UNK becomes "⁇"."""
        return normalise(self._processor.decode(_text_ids(ids)))


class MarianTokenizer(Tokenizer):
    """Two SentencePiece models, one a language, with one vocabulary of their pieces.

    A piece outside the vocabulary is UNK. A source sentence may begin with a language
    code of the vocabulary, one piece.
    """

    def __init__(self, packed: bytes):
        """Use what `pack_tokenizer` made; ValueError or KeyError if it is damaged."""
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            source, target, vocabulary = map(archive.read, _MEMBERS)
        super().__init__(source)
        self.target_model, self.content = target, packed
        self.hash = hashlib.sha256(packed).hexdigest()
        self._target = SentencePieceProcessor(model_proto=target)
        self._pieces = json.loads(vocabulary)
        self.vocab_size = len(self._pieces)
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i >= _RESERVED}

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self._encode(self._processor, sentences)

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        return self._encode(self._target, sentences)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self._pieces[token] for token in _text_ids(ids)]
        return normalise(self._target.decode(pieces))

    def _encode(
        self, model: SentencePieceProcessor, sentences: Sequence[str]
    ) -> list[list[int]]:
        texts = [normalise(sentence) for sentence in sentences]
        codes = list(map(self.language_code, texts))
        bare = list(map(str.removeprefix, texts, codes))
        pieces = model.encode(bare, out_type=str, num_threads=-1)
        return [
            [*(self._ids.get(piece, UNK) for piece in (code, *sentence) if piece), EOS]
            for code, sentence in zip(codes, pieces, strict=True)
        ]


def require_symbols(tokenizer: Tokenizer, config: DataConfig) -> None:
    """Raise InputError if a given tokeniser lacks a tag or a symbol of a config."""
    pieces = {*tokenizer.pieces()}
    for symbol in (*config.tags, *config.user_defined_symbols):
        if symbol not in pieces:
            raise InputError(
                f"the tokeniser has no piece {symbol!r}, which data.tag or "
                "data.user_defined_symbols names; leave it out, or begin anew with a "
                "tokeniser that has it"
            )


def require_usable(tokenizer: Tokenizer, path: Path, vocab_size: int) -> None:
    """Raise InputError unless a new model can use the tokeniser of a user's `path`.

    A SentencePiece model needs the reserved ids and must not change any character.
    """
    size, processor = tokenizer.vocab_size, tokenizer._processor
    ids = [getattr(processor, f"{name}_id")() for name in ("pad", "unk", "bos", "eos")]
    text = normalise(" ".join(filter(str.isprintable, map(chr, range(0x110000)))))
    if size > vocab_size:
        fault = f"it has {size} ids, more than data.vocab_size={vocab_size}"
        remedy = f"set data.vocab_size={size}"
    elif ids != [PAD, UNK, BOS, EOS]:
        fault = f"its ids of PAD, UNK, BOS and EOS are {ids}"
        remedy = "train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
    elif processor.normalize(text) != "▁" + text.replace(" ", "▁"):
        fault = "it changes characters or the spaces between words"
        remedy = (
            "train it with --normalization_rule_name=identity --add_dummy_prefix=true"
        )
    else:
        return
    raise InputError(f"{path} cannot be used: {fault}; {remedy}, or remove the file")


def _text_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids before the first EOS, without PAD and BOS."""
    before_eos = takewhile(EOS.__ne__, map(int, ids))
    return [token for token in before_eos if token not in (PAD, BOS)]


def pack_tokenizer(source: bytes, target: bytes, pieces: Sequence[str]) -> bytes:
    """Pack two SentencePiece models and the pieces by id into a tokeniser's file.

    A model of `train_tokenizer` for both is its own file. Raises InputError for what is
    not a SentencePiece model.
    """
    try:
        tokenizer, _ = (Tokenizer(model) for model in (source, target))
    except RuntimeError:
        raise InputError(
            "the checkpoint's source.spm or target.spm is not a SentencePiece model"
        ) from None
    is_ours = tokenizer.pieces() == list(pieces) and tokenizer.encode([""]) == [[EOS]]
    if source == target and is_ours:
        return source
    packed = io.BytesIO()
    vocabulary = json.dumps(list(pieces), ensure_ascii=False).encode()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in zip(_MEMBERS, (source, target, vocabulary), strict=True):
            # Without a date and compression: the same parts are the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def train_tokenizer(sentences: Iterable[str], config: DataConfig) -> Tokenizer:
    """Train a vocabulary of `model_type` on the sentences of both languages.

    The same sentences in the same order give the same bytes. Uses at most
    `vocab_sentences` of them, drawn with `seed`: 200 bytes of memory each. Raises
    InputError if there is no text or its characters alone exceed `vocab_size`.
    """
    vocab_size = config.vocab_size
    filled = filter(None, map(normalise, sentences))
    texts = _draw_sample(filled, config.vocab_sentences, config.seed)
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
            user_defined_symbols=[*config.tags, *config.user_defined_symbols],
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


def _draw_sample(items: Iterable, size: int, seed: int) -> list:
    """Return all items, or `size` of them, each with equal chance (Algorithm R)."""
    random = Random(seed).random  # SentencePiece's own differs from process to process
    sample = []
    for index, item in enumerate(items):
        if index < size:
            sample.append(item)
        elif (replaced := int(random() * (index + 1))) < size:
            sample[replaced] = item
    return sample
