"""A document: the texts in it to translate, and the document with translations."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxformer.decoding.placeholders import PATTERNS, Placeholders
from jaxformer.documents.inline import Segment
from jaxformer.documents.lines import read_po, read_srt, read_txt, read_vtt
from jaxformer.documents.links import Alignment
from jaxformer.documents.markup import read_html, read_xliff, read_xml
from jaxformer.system.errors import InputError

if TYPE_CHECKING:  # these import JAX, and commands/flags.py only needs MARKUPS
    from jaxformer.decoding.forced import LinksOf
    from jaxformer.decoding.parts import Hypothesis
    from jaxformer.decoding.translator import Translator
    from jaxformer.tokens import AnyTokenizer

_READERS = {
    "html": read_html,
    "xml": read_xml,
    "xliff": read_xliff,
    "po": read_po,
    "srt": read_srt,
    "vtt": read_vtt,
    "txt": read_txt,
}
MARKUPS = tuple(_READERS)


class Document:
    """A document of one of MARKUPS, whose `texts` are to be translated.

    Raises InputError for another kind, and for a document that is not well-formed or
    has lone surrogates.
    """

    def __init__(
        self, text: str, markup: str, placeholders: Placeholders | None = None
    ) -> None:
        if markup not in _READERS:
            raise InputError(f"markup is {markup!r}; use one of {', '.join(MARKUPS)}")
        if found := re.search("[\ud800-\udfff]", text):
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(f"line {line} has a lone surrogate; remove it")
        if placeholders is None:
            placeholders = Placeholders()
        bom = text[: text.startswith("\ufeff")]
        parts, escape, self._join = _READERS[markup](text[len(bom) :])
        self._parts: list[str | Segment] = []
        for part in parts:
            if isinstance(part, list):
                segment = Segment(part, placeholders, escape)
                part = segment if segment.text else "".join(each.raw for each in part)
            self._parts.append(part)
        self._bom = bom
        self.texts = [each.text for each in self._parts if isinstance(each, Segment)]

    def write(
        self, found: Sequence["Hypothesis"], links_of: "LinksOf | None" = None
    ) -> tuple[str, list[str]]:
        """Return the document with a translation of each text.

        `links_of` is called where tags or placeholders are inside a text; None: tags
        keep their order. Also returns a message for each text whose translation has a
        placeholder more often than the text.
        """
        rest, written, messages = iter(found), [], []
        for part in self._parts:
            if isinstance(part, Segment):
                source, best = part.text, next(rest)
                sides = best.source_pieces, best.pieces
                is_linked = links_of and part.has_inside and best.pieces
                links = links_of(best) if is_linked else []
                alignment = Alignment(source, best.text, sides, links)
                part, others = part.write(best.text, alignment)
                if others:
                    messages.append(
                        f"{source[:60]!r}: its translation has {others[0]!r} more often"
                    )
            written.append(part)
        return self._bom + self._join(written), messages


def placeholders_of(
    tokenizer: "AnyTokenizer", patterns: Sequence[str] | None = None
) -> Placeholders:
    """Return `Placeholders` of `patterns`, None: PATTERNS, and a vocabulary."""
    pieces = {*tokenizer.pieces()} & {*tokenizer.source_pieces()}
    return Placeholders(PATTERNS if patterns is None else patterns, pieces)


def translate_document(
    translator: "Translator",
    text: str,
    markup: str,
    *,
    patterns: Sequence[str] | None = None,
    translate: Callable[[list[str]], list[list["Hypothesis"]]] | None = None,
) -> tuple[str, list[str]]:
    """Translate a document; return it and messages about its placeholders.

    `patterns` are those of `Placeholders`; None: PATTERNS. `translate` takes the place
    of the translator's own function.
    """
    from jaxformer.decoding.forced import joined_links

    placeholders = placeholders_of(translator.tokenizer, patterns)
    document = Document(text, markup, placeholders)

    def links_of(found: "Hypothesis") -> list[tuple[int, int]]:
        maps = translator.attention_of_parts(found.source_pieces, found.pieces)
        return joined_links(maps)

    found = (translate or translator.translate)(document.texts)
    best = [hypotheses[0] for hypotheses in found]
    return document.write(best, links_of if translator.has_attention else None)
