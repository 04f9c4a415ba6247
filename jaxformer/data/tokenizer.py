"""Sentences to ids and back: one SentencePiece BPE vocabulary for both languages.

Section 5.1 of the paper: a vocabulary shared by source and target, so that one matrix
can embed both and produce the logits. `jaxformer.data.corpus` trains it; training,
decoding and export read it. `JointTokenizer` is that of an imported model. This is the
only importer of sentencepiece.

Text is normalised as little as possible, because what the model learns to write is
what its users read: `normalise` composes characters (NFC, which changes no meaning)
and makes every run of white space or control characters one space, so a sentence is
always one line. SentencePiece's own NFKC rules are off: they rewrite "½", "H₂O", "…"
and the full-width punctuation of Chinese and Japanese. For every text whose characters
are in the vocabulary, decode(encode(text)) == normalise(text).

There is no fallback to bytes: its 256 ids are a tenth of a small vocabulary, and a
model that writes bytes can write broken UTF-8. A character outside the vocabulary is
UNK; the corpus report counts them.
"""

import hashlib
import io
import json
import logging
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import sentencepiece

from jaxformer.batch import BOS, EOS, PAD, UNK
from jaxformer.errors import InputError

log = logging.getLogger(__name__)

T = TypeVar("T")

# U+2581 is SentencePiece's own mark for a space: text cannot keep it apart from one.
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2581]+")
# A trained model records the number of threads: a constant keeps its bytes, and so its
# hash, the same on every machine.
_TRAINING_THREADS = 8
_ERRORS_ONLY = 2
_RESERVED = 4  # PAD, UNK, BOS, EOS
_ZIP = b"PK\x03\x04"  # how a zip file begins, and a SentencePiece model cannot
_MEMBERS = ("source.spm", "target.spm", "vocabulary.json")
# The first word of a multilingual model's source may be the language wanted: ">>fra<<".
_LANGUAGE = re.compile(r">>[^<]*<<")


def normalise(text: str) -> str:
    """The form in which a sentence is trained on, encoded and decoded."""
    return _BLANKS.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


class Tokenizer:
    """A trained vocabulary: sentences to ids (EOS appended) and ids to sentences."""

    def __init__(self, model: bytes):
        """Takes the bytes of a SentencePiece model; see `load` for a file."""
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.source_model = self.target_model = model  # what cuts either language
        self.hash = hashlib.sha256(model).hexdigest()

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Read a tokeniser's file; InputError if there is none or it is not ours."""
        try:
            content = Path(path).read_bytes()
            kind = JointTokenizer if content.startswith(_ZIP) else Tokenizer
            tokenizer = kind(content)
        except OSError as error:
            raise InputError(f"The tokenizer {path} cannot be read: {error}.") from None
        except RuntimeError:
            raise InputError(f"{path} is not a SentencePiece model.") from None
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise InputError(
                f"The tokenizer {path} is damaged ({error}): put the original back."
            ) from None
        if kind is Tokenizer and not tokenizer.has_our_reserved_ids():
            raise InputError(
                f"{path} was not trained by jaxformer: its reserved ids are not "
                f"PAD={PAD} UNK={UNK} BOS={BOS} EOS={EOS}."
            )
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, the four reserved ones included."""
        return self._processor.get_piece_size()

    def has_our_reserved_ids(self) -> bool:
        """Whether the SentencePiece model was trained with them."""
        p = self._processor
        found = (p.pad_id(), p.unk_id(), p.bos_id(), p.eos_id())
        return found == (PAD, UNK, BOS, EOS)

    def pieces(self) -> list[str]:
        """The piece of every id, in their order; "▁" begins what follows a space."""
        return self._processor.id_to_piece(list(range(self.vocab_size)))

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each source sentence, ending in EOS; a blank one is [EOS] alone."""
        texts = [normalise(sentence) for sentence in sentences]
        return self._processor.encode(texts, add_eos=True, num_threads=-1)

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """As `encode`, of target sentences; ours cut both languages alike."""
        return self.encode(sentences)

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence up to the first EOS, on one line; UNK is shown as "⁇"."""
        return normalise(self._processor.decode(_before_eos(ids)))


class JointTokenizer(Tokenizer):
    """A published model's: two SentencePiece models and the vocabulary they share.

    `source.spm` and `target.spm` cut sentences into pieces, `vocabulary.json` lists the
    pieces in the order of their ids, ours of the reserved ones first. What is in no
    vocabulary is UNK. One file holds the three; `pack_tokenizer` makes it.
    """

    def __init__(self, packed: bytes):
        """Takes the bytes of that file; ValueError, KeyError if they are damaged."""
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            source, target, vocabulary = map(archive.read, _MEMBERS)
        super().__init__(source)
        self.target_model = target
        self.hash = hashlib.sha256(packed).hexdigest()
        self._target = sentencepiece.SentencePieceProcessor(model_proto=target)
        self._pieces: list[str] = json.loads(vocabulary)
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i >= _RESERVED}

    @property
    def vocab_size(self) -> int:
        """Number of ids, the four reserved ones included."""
        return len(self._pieces)

    def pieces(self) -> list[str]:
        """The piece of every id, in their order."""
        return list(self._pieces)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each source sentence, ending in EOS; a blank one is [EOS] alone."""
        return self._encode(self._processor, sentences)

    def encode_target(self, sentences: Sequence[str]) -> list[list[int]]:
        """As `encode`, cut by the target language's model."""
        return self._encode(self._target, sentences)

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence up to the first EOS, on one line; UNK is shown as "⁇"."""
        pieces = [self._pieces[token] for token in _before_eos(ids)]
        return normalise(self._target.decode(pieces))

    def _encode(
        self, model: sentencepiece.SentencePieceProcessor, sentences: Sequence[str]
    ) -> list[list[int]]:
        texts, languages = [], []
        for sentence in map(normalise, sentences):
            code = _LANGUAGE.match(sentence)
            known = self._ids.get(code[0]) if code else None
            languages.append([] if known is None else [known])
            texts.append(sentence if known is None else sentence[code.end() :])
        cut = model.encode(texts, out_type=str, num_threads=-1)
        return [
            [*language, *(self._ids.get(piece, UNK) for piece in pieces), EOS]
            for language, pieces in zip(languages, cut, strict=True)
        ]


def pack_tokenizer(source: bytes, target: bytes, pieces: Sequence[str]) -> bytes:
    """The file of the tokeniser that cuts by two models and has these pieces by id.

    Where both are one model whose ids are those already, that model is the file: what
    was trained here comes back as it was. Raises InputError for what is no
    SentencePiece model.
    """
    try:
        models = [Tokenizer(model) for model in (source, target)]
    except RuntimeError:
        raise InputError(
            "The checkpoint's source.spm or target.spm is not a SentencePiece model."
        ) from None
    is_ours = source == target and models[0].has_our_reserved_ids()
    if is_ours and models[0].pieces() == list(pieces):
        return source
    packed = io.BytesIO()
    vocabulary = json.dumps(list(pieces), ensure_ascii=False).encode()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in zip(_MEMBERS, (source, target, vocabulary), strict=True):
            # Neither a date nor compression: the same parts are the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content)
    return packed.getvalue()


def _before_eos(ids: Sequence[int]) -> list[int]:
    """The ids that are text: those before the first EOS, without PAD and BOS."""
    kept = []
    for token in ids:
        if token == EOS:
            break
        if token not in (PAD, BOS):
            kept.append(int(token))
    return kept


def train_tokenizer(
    sentences: Iterable[str],
    path: Path,
    *,
    vocab_size: int,
    character_coverage: float,
    max_sentences: int,
    seed: int,
) -> Tokenizer:
    """Train a BPE vocabulary on the sentences of both languages and write it to path.

    The same sentences in the same order give the same bytes. Of more than
    `max_sentences` sentences a sample drawn with `seed` is used: they are held in
    memory, about 200 bytes each. The rarest characters, together a share of
    1 - `character_coverage` of the text, are left out. A `vocab_size` larger than the
    text supports is reduced to what it supports, with a message. Raises InputError if
    there is no text or its characters alone exceed `vocab_size`.
    """
    texts = draw_sample(filter(None, map(normalise, sentences)), max_sentences, seed)
    if not texts:
        raise InputError("The training text has no sentence to learn a vocabulary of.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            num_threads=_TRAINING_THREADS,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=_ERRORS_ONLY,
        )
    except RuntimeError as error:
        raise InputError(_explain(error, vocab_size)) from None
    Path(path).write_bytes(model.getvalue())
    tokenizer = Tokenizer(model.getvalue())
    if tokenizer.vocab_size < vocab_size:
        log.warning(
            "vocab_size %d is more than the text supports: the vocabulary has %d ids",
            vocab_size,
            tokenizer.vocab_size,
        )
    return tokenizer


def draw_sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """All items, or `size` of them, each with equal chance (Algorithm R).

    SentencePiece's own sampling draws a new seed in every process.
    """
    random = Random(seed).random
    kept: list[T] = []
    for index, item in enumerate(items):
        if index < size:
            kept.append(item)
        elif (place := int(random() * (index + 1))) < size:
            kept[place] = item
    return kept


def _explain(error: RuntimeError, vocab_size: int) -> str:
    too_small = re.search(r"smaller than required_chars\D*\d+ vs (\d+)", str(error))
    if too_small:
        return (
            f"vocab_size {vocab_size} is too small: the characters of the training "
            f"text and the reserved ids alone need {too_small[1]}; raise vocab_size "
            "or lower character_coverage."
        )
    return f"SentencePiece cannot build a vocabulary of {vocab_size} ids: {error}."
