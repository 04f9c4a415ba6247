"""Convert sentences to ids and back with a SentencePiece vocabulary.

Source and target share the vocabulary (section 5.1), or have a SentencePiece model
each.

SentencePiece's own NFKC rules are off: they rewrite "½", "H₂O", "…" and full-width
punctuation. If all characters of a text are in the vocabulary, decode(encode(text)) is
normalise(text).

A character outside the vocabulary is UNK, or with `data.byte_fallback` the pieces of
its bytes, such as <0xF0>. These 256 ids are a tenth of a small vocabulary, and a model
can write bytes that are no UTF-8, which become U+FFFD.
"""

import copy
import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from jaxformer.config.data import TAG
from jaxformer.system.errors import InputError, did_you_mean
from jaxformer.text.lines import normalise
from jaxformer.tokens import BOS, EOS, PAD, UNK

_RESERVED = 4  # PAD, UNK, BOS, EOS
_ZIP = b"PK\x03\x04"  # first bytes of a zip file, never of a SentencePiece model
_MODELS = ("source.spm", "target.spm")
_OTHERS = "others/"  # a folder of the zip file
_VOCABULARIES = ("vocabulary.json", "target_vocabulary.json")
_MOST_BYTES = 2**28  # of a tokeniser's file; those of a million pieces have 2**25
_LANGUAGE = re.compile(f"({TAG})?")
# What SentencePiece, zipfile and `_unpack` raise.
_DAMAGE = (
    RuntimeError, ValueError, KeyError, EOFError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


class SentencePieceModel:
    """A SentencePiece model, which splits the text of one language or of both.

    With `pieces`, those of an imported model, ids are places in this list instead of
    the SentencePiece model's own. Then a piece that is not in the list is UNK.
    """

    threads = -1  # that encode several sentences; -1: one for each core

    def __init__(self, model: bytes, pieces: list[str] | None = None):
        """Use the bytes of a model; RuntimeError if they are not one."""
        if not model:  # SentencePiece would take them
            raise RuntimeError("it is empty")
        self.model = model
        self.processor = SentencePieceProcessor(model_proto=model)
        ids = list(range(len(self.processor)))
        self.pieces = pieces or self.processor.id_to_piece(ids)
        self._ids = pieces and {p: i for i, p in enumerate(pieces) if i >= _RESERVED}

    def language_code(self, text: str) -> str:
        """Return the tag, a piece such as ">>fra<<", that begins a text, or ""."""
        code = _LANGUAGE.match(text)[0]
        return code if code in self.codes else ""

    def is_unknown(self, ids: Sequence[int]) -> bool:
        """Return whether ids have UNK, and of other pieces only a tag and spaces."""
        return UNK in ids and self._textless.issuperset(ids)

    @cached_property
    def has_bytes(self) -> bool:
        """Whether a character without a piece is the pieces of its bytes."""
        return any(map(self.processor.is_byte, range(len(self.processor))))

    @cached_property
    def _textless(self) -> set[int]:
        spaces = (i for i, piece in enumerate(self.pieces) if piece == "\u2581")
        return {UNK, EOS, *spaces, *self.codes.values()}

    @cached_property
    def codes(self) -> dict[str, int]:
        pieces = enumerate(self.pieces)
        return {piece: i for i, piece in pieces if re.fullmatch(TAG, piece)}

    def encode(self, sentences: Sequence[str], *, tagged: bool) -> list[list[int]]:
        """Return the ids of each sentence, EOS last; `tagged` ones may have a tag."""
        texts = [normalise(sentence) for sentence in sentences]
        if not (tagged and self.codes):
            return self._encode(texts)
        codes = list(map(self.language_code, texts))
        plain = map(normalise, map(str.removeprefix, texts, codes))
        found = self._encode(list(plain))
        return [
            [self.codes[code], *ids] if code else ids
            for code, ids in zip(codes, found, strict=True)
        ]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encode, ids = self.processor.encode, self._ids
        if ids:
            found = encode(texts, out_type=str, num_threads=self.threads)
            return [[*(ids.get(each, UNK) for each in row), EOS] for row in found]
        if len(texts) == 1:  # a pool of threads takes ten times as long
            return [encode(texts[0], add_eos=True)]
        return encode(texts, add_eos=True, num_threads=self.threads)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first EOS, on one line; UNK becomes "⁇"."""
        before_eos = takewhile(EOS.__ne__, map(int, ids))
        found = [token for token in before_eos if token not in (PAD, BOS)]
        if self._ids:
            found = [self.pieces[token] for token in found]
        return normalise(self.processor.decode(found))


class Tokenizer:
    """A trained vocabulary, or two; implements `jaxformer.tokens.AnyTokenizer`.

    `sides` is the one that both languages share, or those of source and target. Ids are
    those of the SentencePiece models, or of an imported model those of one vocabulary
    of both languages' pieces or of two.
    """

    def __init__(self, content: bytes):
        """Use a SentencePiece model, or what `pack_tokenizer` made.

        Raises one of _DAMAGE if `content` is damaged.
        """
        self.content, self.hash = content, hashlib.sha256(content).hexdigest()
        self.is_shared, self.renumbers = True, False
        self.files: dict[str, bytes] = {}  # of an imported model's own tokeniser
        self.target_tag = ""
        self.target_start: list[int] = []  # ids that each target begins with
        if content.startswith(_ZIP):
            models, vocabularies, self.files = _unpack(content)
            pieces = vocabularies * 2 or (None, None)  # one of both sides, or two
            self.sides = tuple(map(SentencePieceModel, models, pieces))
            self.is_shared = len(vocabularies) == 1
            self.renumbers = bool(vocabularies)
        else:
            self.sides = (SentencePieceModel(content),)
        self._source, self._target = self.sides[0], self.sides[-1]
        self.source_model, self.target_model = self._source.model, self._target.model
        self.source_vocab_size = len(self._source.pieces)
        self.vocab_size = len(self._target.pieces)
        self.language_code = self._source.language_code
        self.is_unknown = self._source.is_unknown

    @staticmethod
    def load(path: Path, sha256: str | None = None) -> "Tokenizer":
        """Read a tokeniser's file. Raises InputError if it is missing or damaged.

        With `sha256` also if it is another file than the one with that hash.
        """
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            found = hashlib.sha256(content).hexdigest()
            if sha256 not in (None, found):
                raise InputError(
                    f"{path} is damaged or not the tokeniser of this run (sha256 "
                    f"{found[:12]} instead of {sha256[:12]}); put the original back"
                )
            return Tokenizer(content)
        except OSError as error:
            raise InputError(f"the tokenizer {path} cannot be read: {error}") from None
        except _DAMAGE as error:
            raise InputError(
                f"{path} is damaged or not a SentencePiece model ({error}); use "
                "another file"
            ) from None

    @property
    def largest_vocab_size(self) -> int:
        """Return the ids of the larger of the two vocabularies."""
        return max(self.vocab_size, self.source_vocab_size)

    @property
    def has_bytes(self) -> bool:
        """Whether both sides write unknown characters as bytes."""
        return all(side.has_bytes for side in self.sides)

    def pieces(self) -> list[str]:
        """Return the piece of every target id; "▁" is the space before a word."""
        return list(self._target.pieces)

    def source_pieces(self) -> list[str]:
        """Return the piece of every source id."""
        return list(self._source.pieces)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source sentence, EOS last; [EOS] for a blank one."""
        return self._source.encode(sentences, tagged=True)

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target sentence, the target's tag first, EOS last.

        In a text only an imported model's have tags, as in Transformers.
        """
        found = self._target.encode(sentences, tagged=self.renumbers)
        return [[*self.target_start, *ids] for ids in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a target up to the first EOS, without its tag."""
        own = [token for token in ids if token not in self.target_start]
        return self._target.decode(own)

    def for_target(self, tag: str) -> "Tokenizer":
        """Return this tokeniser for targets that begin with a tag; "": with none.

        The tag is the first id of each target (M2M-100), and no part of its text.
        Raises InputError if the vocabulary lacks it.
        """
        if tag == self.target_tag:
            return self
        if tag and self._target.language_code(tag) != tag:
            known = [*self._target.codes]
            hint = did_you_mean(tag, known, f"it has {', '.join(known[:9]) or 'none'}")
            raise InputError(f"the vocabulary has no tag {tag!r} for targets{hint}")
        other = copy.copy(self)
        other.target_tag = tag
        other.target_start = [self._target.pieces.index(tag)] if tag else []
        return other


def _unpack(content: bytes) -> tuple[list[bytes], list[list[str]], dict[str, bytes]]:
    """Return what `pack_tokenizer` packed: models, vocabularies and other files.

    Raises one of _DAMAGE for anything else; compressed files are not read.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename} in it is compressed")
        models, names = [*map(archive.read, _MODELS)], archive.namelist()
        files = [archive.read(name) for name in _VOCABULARIES if name in names]
        prefix = len(_OTHERS)
        others = {n[prefix:]: archive.read(n) for n in names if n.startswith(_OTHERS)}
    vocabularies = [*map(json.loads, files)]
    for pieces in vocabularies:
        if not isinstance(pieces, list) or len(pieces) <= _RESERVED:
            raise ValueError("its vocabulary is no list of pieces")
        if not all(isinstance(piece, str) for piece in pieces):
            raise ValueError("its vocabulary has a piece that is no text")
        "".join(pieces).encode()  # ValueError for lone surrogates
    return models, vocabularies, others


def pack_tokenizer(
    source: bytes,
    target: bytes,
    *vocabularies: Sequence[str],
    others: Mapping[str, bytes] | None = None,
) -> bytes:
    """Pack two SentencePiece models into a tokeniser's file.

    `vocabularies` are the pieces by id: one of both languages, those of the source and
    of the target, or none if the ids are those of the models. A model of
    `train_tokenizer` for both is its own file. `others` are files of an imported model
    that are kept for its export.
    """
    sides = [SentencePieceModel(model) for model in (source, target)]
    is_ours = all(
        side.pieces == list(pieces) and side.encode([""], tagged=False) == [[EOS]]
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
        for name, content in (others or {}).items():
            archive.writestr(zipfile.ZipInfo(_OTHERS + name), content)
    return packed.getvalue()


def pair_of(source: bytes, target: bytes) -> Tokenizer:
    """Join two SentencePiece models, whose ids stay as they are."""
    return Tokenizer(pack_tokenizer(source, target))
