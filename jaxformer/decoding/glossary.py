"""Terms and their translations, and which terms a source has."""

import itertools
import re
import unicodedata
from collections.abc import Iterable

from jaxformer.decoding.placeholders import Placeholders
from jaxformer.system.errors import InputError

# Scripts whose words no spaces separate: Thai and Lao, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_IN_NAME = re.compile(r"(?<=[^\W_])_+(?=[^\W_])")  # as in user_name
_SYMBOL = re.compile(r"__[A-Z\d_]+__")  # such as __PH__

Forms = tuple[str, ...]  # translations of a term, the preferred one first


class Glossary:
    """The terms of a source language, with their translations.

    Each of `lines` is blank, or has a term, a tab, its translations with "|" between
    them, and perhaps a tab and notes. `name` is that of the file. Raises InputError for
    another line, and for a term whose translations differ in two lines.
    """

    def __init__(self, lines: Iterable[str], name: str) -> None:
        self._forms: dict[str, Forms] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            term, translations, *_ = map(_plain, [*line.split("\t"), ""])
            forms = tuple(filter(None, map(str.strip, translations.split("|"))))
            if not (term and forms):
                raise InputError(
                    f"{name}, line {number} lacks a term or its translation; write "
                    "both, with a tab between them"
                )
            if self._forms.setdefault(term, forms) != forms:
                raise InputError(
                    f"{name}, line {number}: {term!r} has other translations in an "
                    'earlier line; write all in one line, with "|" between them'
                )
        self._lengths = sorted(set(map(len, self._forms)), reverse=True)

    def find(self, source: str) -> list[Forms]:
        """Return the translations of the terms in a source, in their order, each once.

        Terms are runs of whole words, or of any characters of scripts without spaces.
        The longest match is taken first, and none overlap, also with placeholders. A
        term in lower case also matches other cases, unless these are a term of their
        own.
        """
        source = _plain(source)
        edges = _edges(source)
        spans = [span for *span, _ in Placeholders().find(source)]
        spans += [match.span() for match in _SYMBOL.finditer(source)]
        taken = set(itertools.chain.from_iterable(range(*span) for span in spans))
        found: dict[int, Forms] = {}
        for length in self._lengths:
            for start in edges:
                if start + length not in edges:
                    continue
                words = source[start : start + length]
                forms = self._forms.get(words) or self._forms.get(words.lower())
                if forms and taken.isdisjoint(range(start, start + length)):
                    taken.update(range(start, start + length))
                    found[start] = forms
        return list(dict.fromkeys(found[start] for start in sorted(found)))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _edges(text: str) -> dict[int, None]:
    """Return the indices, in order, at which a term may begin or end."""
    inside = [
        unicodedata.category(each)[0] in "LMN" and not _UNSPACED.match(each)
        for each in text
    ]
    for match in _IN_NAME.finditer(text):
        inside[slice(*match.span())] = [True] * len(match[0])
    pairs = enumerate(zip([False, *inside], [*inside, False], strict=True))
    return {at: None for at, pair in pairs if not all(pair)}
