"""Lines longer than a model should see: cut where a sentence ends, or refused.

Used by `jaxformer.decoding.translate`.
"""

import itertools
import logging
import re
from collections.abc import Callable, Sequence

from jaxformer.batch import EOS
from jaxformer.errors import InputError

logger = logging.getLogger(__name__)

# Where a line may be cut, the best places first. What comes before a space in one
# script needs none in another: 3.5 and 10:30 stay whole.
_BREAKS = (
    "(?<=[.!?\u2026])\\s+|(?<=[\u3002\uff01\uff1f])\\s*",
    "(?<=[,;:])\\s+|(?<=[\u3001\uff0c\uff1b\uff1a])\\s*",
    "\\s+",
)

Encode = Callable[[Sequence[str]], list[list[int]]]


def parts_of(
    text: str, encode: Encode, *, longest: int, policy: str, line: int
) -> list[list[int]]:
    """Ids of the parts of a long text, each of at most `longest` pieces, EOS included.

    `policy` is a key of LONG_LINES. Says in the log what became of `line`; raises
    InputError if it is refused.
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
    """Cut at the first kind of `breaks`, at others where that does not suffice."""
    text = text.strip()
    ids = encode([text])[0]
    if len(ids) <= longest:
        return [ids]
    if not breaks:  # one endless word
        inside = ids[:-1]
        size = longest - 1
        return [
            [*inside[start : start + size], EOS]
            for start in range(0, len(inside), size)
        ]
    parts: list[list[int]] = []
    together = ""
    for piece in _pieces(text, breaks[0]):
        if len(encode([(together + piece).strip()])[0]) <= longest:
            together += piece
            continue
        if together:
            parts += _cut(together, encode, longest, breaks[1:])
        together = piece
    return parts + _cut(together, encode, longest, breaks[1:])


def _pieces(text: str, pattern: str) -> list[str]:
    """Cut after each match; what was cut makes the text when put together."""
    edges = [0, *(match.end() for match in re.finditer(pattern, text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges) if a < b]
