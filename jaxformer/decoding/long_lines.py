"""Lines that are too long for a model: split, truncated or refused."""

import itertools
import logging
import re
from collections.abc import Callable, Sequence

from jaxformer.batch import EOS
from jaxformer.errors import InputError

logger = logging.getLogger(__name__)

# Where a line may be cut, best first: after sentences, after clauses, between words.
# ASCII punctuation needs a space behind it, so 3.5 and 10:30 are never cut.
_BREAKS = (
    "(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*",
    "(?<=[,;:])\\s+|(?<=[\u3001\uff0c\uff1b\uff1a])\\s*",
    "\\s+",
)

Encode = Callable[[Sequence[str]], list[list[int]]]


def parts_of(
    text: str, encode: Encode, *, longest: int, policy: str, line: int
) -> list[list[int]]:
    """Encode a long text as parts of at most `longest` pieces, EOS included.

    `policy` is a key of LONG_LINES. Logs how line number `line` was handled. Raises
    InputError if the policy refuses it.
    """
    ids = encode([text])[0]
    what = f"line {line} has {len(ids)} pieces, more than {longest}"
    if policy == "refuse":
        raise InputError(f"{what}; shorten it, or set long_lines to split or truncate")
    if policy == "truncate":
        logger.warning("%s: only the first %d are translated", what, longest - 1)
        return [[*ids[: longest - 1], EOS]]
    parts = _cut(text, encode, longest, _BREAKS)
    logger.warning("%s: translated in %d parts", what, len(parts))
    return parts


def _cut(
    text: str, encode: Encode, longest: int, breaks: Sequence[str]
) -> list[list[int]]:
    """Cut at the first kind of `breaks`, and parts still too long at the next kind."""
    text = text.strip()
    ids = encode([text])[0]
    if len(ids) <= longest:
        return [ids]
    if not breaks:  # one long word
        ids, size = ids[:-1], longest - 1
        return [[*ids[at : at + size], EOS] for at in range(0, len(ids), size)]
    parts, together = [], ""
    edges = {0, len(text), *(match.end() for match in re.finditer(breaks[0], text))}
    for begin, end in itertools.pairwise(sorted(edges)):
        piece = text[begin:end]
        if len(encode([(together + piece).strip()])[0]) <= longest:
            together += piece
            continue
        if together:
            parts += _cut(together, encode, longest, breaks[1:])
        together = piece
    return parts + _cut(together, encode, longest, breaks[1:])
