"""A text as the parts that are translated, and their translations as one.

Parts are lines or sentences, and what a line that is too long for a model is cut into.
"""

import functools
import itertools
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import sentencex

from jaxformer.config.languages import base_language
from jaxformer.decoding.search import SearchResult
from jaxformer.decoding.words import Word, words_of
from jaxformer.system.errors import InputError, NotFiniteError, counted
from jaxformer.tokens import EOS, AnyTokenizer

logger = logging.getLogger(__name__)

# Where a line may be cut, best first: after sentences, after clauses, between words.
# ASCII punctuation needs a space behind it, so 3.5 and 10:30 are never cut.
_BREAKS = (
    "(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*",
    "(?<=[,;:])\\s+|(?<=[\u3001\uff0c\uff1b\uff1a])\\s*",
    "\\s+",
)

# What a splitter takes for a sentence: an initial or an item's number, "M." or "2)".
_LABELS = re.compile(r"(\w{1,2}[.)] )+")
_WIDE = tuple("\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f")  # no space follows

Value = TypeVar("Value")
Encode = Callable[[Sequence[str]], list[list[int]]]
Part = tuple[str, list[int]]  # its text and ids


class Hypothesis(NamedTuple):
    """A translation and its probability under the model.

    Both sides end each part with the end of sentence, a piece of its own. A blank text
    has no parts, log P = 0 and no tokens. A part of which the vocabulary has no
    character is copied, with log P = 0 and no tokens.
    """

    text: str
    score: float  # log P / length penalty; after reranking, the weighted sum
    log_probability: float  # natural logarithm, of the text and its end
    tokens: int  # that log P counts: ends of sentence included, a given tag not
    source_pieces: Sequence[str] = ()  # what was translated
    pieces: Sequence[str] = ()  # what was found; `Translator.score` takes both
    log_probabilities: Sequence[float] = ()  # of each piece; they sum to log P

    @property
    def words(self) -> list[Word]:
        """The words of the text and their log-probabilities, as `words_of` says."""
        return words_of(self.text, self.pieces, self.log_probabilities)

    @property
    def is_copy(self) -> bool:
        """Whether the whole text is copied from the source."""
        return not self.tokens and bool(self.text.strip())

    def summary(self) -> dict[str, object]:
        """Return all fields except the pieces and their values; and the words."""
        values = dict(zip(self._fields[:4], self[:4], strict=True))
        return values | {"words": [word._asdict() for word in self.words]}


Choose = Callable[[list[str], list[list[Hypothesis]]], list[list[Hypothesis]]]


def one_each(
    name: str, given: Sequence[Value] | None, texts: int, *, default: Value
) -> Sequence[Value]:
    """Return an argument that has one value for each of so many texts.

    None: it has `default` for each. Raises InputError if it has more or fewer.
    """
    if given is None:
        return [default] * texts
    if isinstance(given, str) or len(given) != texts:
        count = "one string" if isinstance(given, str) else f"{len(given):,}"
        raise InputError(
            f"{name} has {count} for {counted(texts, 'text')}; give a list of as many"
        )
    return given


def best_texts(found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """The best translation of each sentence."""
    return [hypotheses[0].text for hypotheses in found]


def warn_of_copies(found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Log how many texts are copied, if any; return `found`."""
    if copies := sum(hypotheses[0].is_copy for hypotheses in found):
        logger.warning("texts without a known character, copied: %s", f"{copies:,}")
    return found


def hypotheses_of(
    tokenizer: AnyTokenizer,
    names: tuple[Sequence[str], Sequence[str]],
    source: Sequence[int],
    given: int,
    found: SearchResult,
) -> list[Hypothesis]:
    """Turn what a search finds of one part, arrays [W, ...], into text, best first.

    `names` are the pieces of sources and of targets. The `given` first tokens of a
    translation, such as its tag, are no part of the text. Raises NotFiniteError for
    scores that are not finite, and if no hypothesis has ended, as with scores of NaN.
    """
    ended = found.scores[found.lengths > 0]
    require_numbers(ended if ended.size else np.nan)
    source_pieces = [names[0][i] for i in source]
    gains = np.diff(np.float64(found.sums), axis=1, prepend=0)
    rows = zip(*(leaf.tolist() for leaf in found._replace(sums=gains)), strict=True)
    hypotheses = [
        Hypothesis(
            tokenizer.decode(tokens[given:]), score, log_probability, length - given,
            source_pieces, [names[1][i] for i in tokens[:length]],
            gained[:length],
        )
        for tokens, length, score, log_probability, gained in rows
        if length
    ]  # fmt: skip
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def require_numbers(scores: npt.ArrayLike) -> None:
    """Raise NotFiniteError if an array of scores has NaN or an infinity."""
    if not np.isfinite(scores).all():
        raise NotFiniteError(
            "the model's scores are not numbers: its parameters are damaged, or "
            "training has diverged; use another checkpoint"
        )


def distinct_texts(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Keep the first hypothesis of each text."""
    found: dict[str, Hypothesis] = {}
    for each in hypotheses:
        found.setdefault(each.text, each)
    return list(found.values())


def joined(
    parts: Sequence[Sequence[Hypothesis]], sizes: Sequence[int]
) -> list[Hypothesis]:
    """Join the best hypotheses of all parts, then the second best, and so on.

    `sizes` are the numbers of parts of each line. A part with fewer hypotheses than
    another one repeats its last.
    """
    found = []
    for rank in range(max(map(len, parts), default=1)):
        chosen = [part[min(rank, len(part) - 1)] for part in parts]
        left, lines = iter(chosen), []
        for size in sizes:
            line = ""
            for each in itertools.islice(left, size):
                space = "" if line.endswith(_WIDE) else " "
                line = f"{line}{space}{each.text}".strip()
            lines.append(line)
        found.append(
            Hypothesis(
                "\n".join(lines),
                math.fsum(part.score for part in chosen),
                math.fsum(part.log_probability for part in chosen),
                sum(part.tokens for part in chosen),
                [piece for part in chosen for piece in part.source_pieces],
                [piece for part in chosen for piece in part.pieces],
                [value for part in chosen for value in part.log_probabilities],
            )
        )
    return found


def split_tag(text: str, tag_of: Callable[[str], str]) -> tuple[str, str]:
    """Return the tag that begins a source, or "", and the text behind it.

    `tag_of` is `Tokenizer.language_code`.
    """
    text = text.strip()
    tag = tag_of(text)
    return tag, text.removeprefix(tag).strip()


def tagged(text: str, tag: str, tag_of: Callable[[str], str]) -> str:
    """Begin a source that is not blank and has no tag with `tag`, if that is not "".

    `tag_of` is as for `split_tag`.
    """
    stripped = text.strip()
    return f"{tag} {text}" if tag and stripped and not tag_of(stripped) else text


def lines_of(
    text: str, tokenizer: AnyTokenizer, language: str | None
) -> list[tuple[str, list[str]]]:
    """Split a text into the sentences of its lines; None: one line, one sentence.

    Each line comes with its language code, which its sentences lack, or else with that
    at the beginning of the text.
    """
    code, without = split_tag(text, tokenizer.language_code)
    if language is None:
        return [(code, [without])]
    lines = (split_tag(line, tokenizer.language_code) for line in text.split("\n"))
    return [(own or code, sentences_of(line, language)) for own, line in lines]


@functools.cache
def warn_of_no_tag(tags: tuple[str, ...]) -> None:
    """Log once that a text has none of the tags of the vocabulary."""
    logger.warning(
        "a text has no tag; if the model knows several target languages, begin it with "
        "one of %s",
        ", ".join(tags),
    )


def sentences_of(line: str, language: str) -> list[str]:
    """Split a line into its sentences; `language` is that of the line, such as "en"."""
    if not line.strip():
        return []
    sentences: list[str] = []
    # With other white space than " " before a full stop, sentencex 1.0 fails.
    line = " ".join(line.split())
    for sentence in sentencex.segment(base_language(language), line):
        if sentences and _LABELS.fullmatch(sentences[-1]):
            sentences[-1] += sentence
        else:
            sentences.append(sentence)
    return sentences


def parts_of(
    text: str, encode: Encode, *, tags: int, longest: int | None, policy: str, line: int
) -> list[Part]:
    """Encode a text as parts of at most `longest` pieces, EOS included.

    A text that the tokeniser finds blank has none. `encode` begins the ids with that of
    the text's tag if `tags` is 1, and not if it is 0. `policy` is a key of LONG_LINES.
    Parts of one long word, and what is left of a truncated text, have the whole word
    or text. Logs how a long text of line number `line` was handled. Raises InputError
    if the policy refuses it.
    """
    text = text.strip()
    ids = encode([text])[0]
    if len(ids) <= tags + 1:
        return []
    if longest is None or len(ids) <= longest:
        return [(text, ids)]
    what = f"line {line} has {len(ids):,} pieces, more than {longest:,}"
    if policy == "refuse":
        raise InputError(f"{what}; shorten it, or set long_lines to split or truncate")
    if policy == "truncate":
        logger.warning("%s: only the first %s are translated", what, f"{longest - 1:,}")
        return [(text, [*ids[: longest - 1], EOS])]
    parts = _cut(text, encode, tags, longest, _BREAKS)
    parts = [part for part in parts if len(part[1]) > tags + 1]  # none is blank
    logger.warning("%s: translated in %s", what, counted(len(parts), "part"))
    return parts


def _cut(
    text: str, encode: Encode, tags: int, longest: int, breaks: Sequence[str]
) -> list[Part]:
    """Cut at the first kind of `breaks`, and parts still too long at the next kind."""
    text = text.strip()
    ids = encode([text])[0]
    if len(ids) <= longest:
        return [(text, ids)]
    if not breaks:  # one long word
        tag, ids, size = ids[:tags], ids[tags:-1], max(1, longest - tags - 1)
        starts = range(0, len(ids), size)
        return [(text, [*tag, *ids[at : at + size], EOS]) for at in starts]
    parts, together = [], ""
    edges = {0, len(text), *(match.end() for match in re.finditer(breaks[0], text))}
    for begin, end in itertools.pairwise(sorted(edges)):
        piece = text[begin:end]
        if len(encode([(together + piece).strip()])[0]) <= longest:
            together += piece
            continue
        if together:
            parts += _cut(together, encode, tags, longest, breaks[1:])
        together = piece
    return parts + _cut(together, encode, tags, longest, breaks[1:])
