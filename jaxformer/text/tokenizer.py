"""Convert sentences to ids and back with a SentencePiece vocabulary.

Source and target share the vocabulary (section 5.1). A `PairTokenizer` has a
SentencePiece model for each language.

SentencePiece's own NFKC rules are off: they rewrite "½", "H₂O", "…" and full-width
punctuation. If all characters of a text are in the vocabulary, decode(encode(text)) is
normalise(text).

A character outside the vocabulary is UNK. There is no fallback to bytes: its 256 ids
are a tenth of a small vocabulary, and a model that writes bytes can write broken UTF-8.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from jaxformer.config.data import TAG
from jaxformer.system.errors import InputError
from jaxformer.text.lines import normalise
from jaxformer.tokens import BOS, EOS, PAD, UNK

_RESERVED = 4  # PAD, UNK, BOS, EOS
_ZIP = b"PK\x03\x04"  # first bytes of a zip file, never of a SentencePiece model
_MODELS = ("source.spm", "target.spm")
_VOCABULARIES = ("vocabulary.json", "target_vocabulary.json")
_LANGUAGE = re.compile(f"({TAG})?")


class Tokenizer:
    """A trained vocabulary; implements `jaxformer.tokens.AnyTokenizer`."""

    is_shared = True  # whether source and target ids mean the same pieces
    renumbers = False
    threads = -1  # that encode several sentences; -1: one for each core

    def __init__(self, model: bytes):
        """Use the bytes of a SentencePiece model; RuntimeError if they are not one."""
        if not model:  # SentencePiece would take them
            raise RuntimeError("it is empty")
        self._processor = SentencePieceProcessor(model_proto=model)
        self.source_model = self.target_model = self.content = model
        self.hash = hashlib.sha256(model).hexdigest()
        self.vocab_size = self.source_vocab_size = len(self._processor)
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
            return tokenizer_of(content)
        except OSError as error:
            raise InputError(f"the tokenizer {path} cannot be read: {error}") from None
        except (RuntimeError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is damaged or not a SentencePiece model ({error})"
            ) from None

    @property
    def largest_vocab_size(self) -> int:
        """Return the ids of the larger of the two vocabularies."""
        return max(self.vocab_size, self.source_vocab_size)

    @property
    def sides(self) -> tuple["Tokenizer", ...]:
        """Return the tokenisers of which this one is made."""
        return (self,)

    def pieces(self) -> list[str]:
        """Return the piece of every target id; "▁" is the space before a word."""
        return list(self.sides[-1]._pieces)

    def source_pieces(self) -> list[str]:
        """Return the piece of every source id."""
        return list(self.sides[0]._pieces)

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
        plain = map(str.lstrip, map(str.removeprefix, texts, codes))
        found = self._encode_texts(list(plain))
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
        return self._processor.encode(texts, add_eos=True, num_threads=self.threads)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first EOS, on one line; UNK becomes "⁇"."""
        return normalise(self._processor.decode(_text_ids(ids)))


class _Renumbered(Tokenizer):
    """One side of a Marian model: SentencePiece's pieces have a vocabulary's ids.

    A piece outside the vocabulary is UNK.
    """

    def __init__(self, model: bytes, pieces: list[str]):
        super().__init__(model)
        self._pieces, self.vocab_size = pieces, len(pieces)
        self._ids = {piece: i for i, piece in enumerate(pieces) if i >= _RESERVED}

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        return self.encode(sentences)  # with a tag, as Transformers does

    def _encode_texts(self, texts: list[str]) -> list[list[int]]:
        found = self._processor.encode(texts, out_type=str, num_threads=self.threads)
        return [[*(self._ids.get(each, UNK) for each in row), EOS] for row in found]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self._pieces[token] for token in _text_ids(ids)]
        return normalise(self._processor.decode(pieces))


class PairTokenizer(Tokenizer):
    """Two SentencePiece models, one a language.

    Ids are those of the models, or of an imported model those of one vocabulary of both
    languages' pieces or of two.
    """

    def __init__(self, packed: bytes):
        """Use what `pack_tokenizer` made; ValueError or KeyError if it is damaged."""
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            models, names = [*map(archive.read, _MODELS)], archive.namelist()
            files = [archive.read(name) for name in _VOCABULARIES if name in names]
        self.content, self.hash = packed, hashlib.sha256(packed).hexdigest()
        self.is_shared, self.renumbers = len(files) == 1, bool(files)
        if files:  # one of both sides, or two
            vocabularies = [*map(json.loads, files)]
            self._source, self._target = map(_Renumbered, models, vocabularies * 2)
        else:
            self._source, self._target = map(Tokenizer, models)
        self.source_model, self.target_model = models
        self.vocab_size = self._target.vocab_size
        self.source_vocab_size = self._source.vocab_size
        self.encode, self.language_code = (
            self._source.encode,
            self._source.language_code,
        )
        self.encode_target, self.decode = (
            self._target.encode_target,
            self._target.decode,
        )

    @property
    def sides(self) -> tuple[Tokenizer, ...]:
        return self._source, self._target


def tokenizer_of(content: bytes) -> Tokenizer:
    """Return the tokeniser with this `content`. Raises for bytes that are no model."""
    return (PairTokenizer if content.startswith(_ZIP) else Tokenizer)(content)


def _text_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids before the first EOS, without PAD and BOS."""
    before_eos = takewhile(EOS.__ne__, map(int, ids))
    return [token for token in before_eos if token not in (PAD, BOS)]


def pack_tokenizer(source: bytes, target: bytes, *vocabularies: Sequence[str]) -> bytes:
    """Pack two SentencePiece models into a tokeniser's file.

    `vocabularies` are the pieces by id: one of both languages, those of the source and
    of the target, or none if the ids are those of the models. A model of
    `train_tokenizer` for both is its own file. Raises InputError for what is not a
    SentencePiece model.
    """
    try:
        sides = [Tokenizer(model) for model in (source, target)]
    except RuntimeError:
        raise InputError(
            "source.spm or target.spm is not a SentencePiece model"
        ) from None
    is_ours = all(
        side.pieces() == list(pieces) and side.encode([""]) == [[EOS]]
        for side, pieces in zip(sides, vocabularies * 2, strict=False)
    )
    if is_ours and source == target and len(vocabularies) == 1:
        return source
    if is_ours and len(vocabularies) == 2:
        vocabularies = ()
    files = [json.dumps([*each], ensure_ascii=False).encode() for each in vocabularies]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        names = (*_MODELS, *_VOCABULARIES)
        for name, content in zip(names, (source, target, *files), strict=False):
            # Without a date and compression: the same parts are the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def pair_of(source: bytes, target: bytes) -> PairTokenizer:
    """Join two SentencePiece models, whose ids stay as they are."""
    return PairTokenizer(pack_tokenizer(source, target))
