"""Placeholders, such as {name}, which a translation copies from its source."""

import re
from collections.abc import Collection, Iterable, Iterator

from jaxformer.system.errors import InputError

SYMBOL = "__PH__"
_WIDE = r"\u3000-\u303f\uff00-\uffef"  # punctuation of East Asia
_URL = rf"[^\s<>\".,;:!?)\]'{_WIDE}]"  # a character of a URL, also its last one
# Text with braces within braces, five deep.
_NESTED = r"\{[^{}]*+\}"
for _ in range(4):
    _NESTED = rf"\{{(?:[^{{}}]++|{_NESTED})*+\}}"
# Each repetition is bounded, or ends before what begins a match: the time is linear.
# Word boundaries are those of ASCII: Chinese has no space before or after %s.
PATTERNS = (
    rf"(?a:\b)(?:https?://|ftp://|www\.)(?:\([^()\s<>\"{_WIDE}]{{0,200}}\)|{_URL}|"
    rf"[.,;:!?\]']++(?={_URL}))++",
    r"(?a:(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})",  # e-mail
    # A plural or a choice of ICU, such as {n, plural, one {# day} other {# days}}, and
    # other arguments with a type, such as {d, date, short}.
    r"\{\s{0,9}\w{1,60}\s{0,9},\s{0,9}(?:plural|select|selectordinal)\s{0,9},"
    rf"(?:[^{{}}]++|{_NESTED})++\}}",
    r"\{\s{0,9}\w{1,60}\s{0,9},\s{0,9}(?:number|date|time)\s{0,9}(?:,[^{}]{0,80})?\}",
    r"\{\{[^{}]{1,200}\}\}|\{%[^{}]{1,200}%\}",  # {{ name }}
    r"[$#]?\{[^{}\s]{0,80}\}",  # {}, {0:.2f}, ${name}
    r"%\([\w.]{1,60}\)[-+#0-9.]{0,8}[a-zA-Z]",  # %(name)s
    r"%(?:\d{1,2}\$)?[-+#0]{0,4}\d{0,4}(?:\.\d{1,3})?(?:hh?|ll?|z)?(?:[diouxXeEfgGcrs](?a:\b)|@)",
    r"(?a:%\d{1,2}\b|%[A-Za-z]\w{0,60}%|\$\d{1,2}\b)",  # %1, %NAME%, $1
    r"</?[A-Za-z][^<>]{0,400}>|&#?\w{1,31};",  # tags and entities
)


class Placeholders:
    """Finds placeholders by patterns.

    A pattern is a regular expression, before which a symbol and a tab may stand; the
    default symbol is SYMBOL. The symbol is translated in place of a match if it is
    among `pieces`, those of the vocabulary; otherwise the match is. Raises InputError
    for a pattern that is no regular expression or matches an empty text.
    """

    def __init__(
        self, patterns: Iterable[str] = PATTERNS, pieces: Collection[str] = ()
    ) -> None:
        self.symbol = SYMBOL if SYMBOL in pieces else ""
        found: list[tuple[re.Pattern[str], str]] = []
        for number, line in enumerate(patterns, start=1):
            symbol, tab, pattern = line.rpartition("\t")
            symbol = symbol if tab else SYMBOL
            try:
                compiled = re.compile(pattern)
                is_empty = compiled.match("") is not None
                problem = "it matches an empty text" if is_empty else ""
            except (re.error, RecursionError, OverflowError) as error:
                problem = str(error)
            if problem:
                raise InputError(
                    f"placeholders, line {number}: {pattern[:60]!r} is no regular "
                    f"expression of a placeholder ({problem}); correct it"
                )
            found.append((compiled, symbol if symbol in pieces else ""))
        self.symbols = {symbol for _, symbol in found if symbol}
        # A symbol that is in a text itself is put back, too.
        own = [(re.compile(re.escape(each)), each) for each in self.symbols]
        own.sort(key=lambda each: len(each[1]), reverse=True)
        self._patterns = own + found

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield begin, end and text to translate of each match, without overlaps."""
        found = sorted(
            (match.start(), order, match.end(), symbol or match[0])
            for order, (pattern, symbol) in enumerate(self._patterns)
            for match in pattern.finditer(text)
            if match[0]
        )
        at = 0
        for begin, _, end, shown in found:
            if begin >= at:
                yield begin, end, shown
                at = end
