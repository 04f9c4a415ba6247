"""The exception for wrong user input, and the hint that ends many of its messages."""

import difflib
import re
from collections.abc import Iterable

_SAME_WORD = 0.75  # ratio of difflib, at least


class InputError(Exception):
    """A file, flag or config that cannot be used as given.

    Its message is one sentence for the user: what is wrong, where, and what to do.
    `jaxformer.main` prints it without a traceback and exits with code 2. Characters
    that do not print are escaped, so that the message is one line.
    """

    def __init__(self, message: object) -> None:
        shown = (c if c.isprintable() else ascii(c)[1:-1] for c in str(message))
        super().__init__("".join(shown))


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "; did you mean X?" for the known name of which `name` is a misspelling.

    A name with other words or digits has another meaning. Without a similar name the
    result is "; " and `otherwise`, or "".
    """
    near = [each for each in known if _is_misspelt(name, each)]
    best = difflib.get_close_matches(name, near, n=1, cutoff=0)
    hint = f"did you mean {best[0]}?" if best else otherwise
    return f"; {hint}" if hint else ""


def _is_misspelt(name: str, known: str) -> bool:
    """Whether both have the same digits and, one by one, similar words."""
    words, others = (re.findall(r"[^\W_]+", each.lower()) for each in (name, known))
    if "".join(words) == "".join(others):
        return True
    pairs = zip(words, others, strict=False)
    ratios = (difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
    return (
        len(words) == len(others)
        and re.findall(r"\d", name) == re.findall(r"\d", known)
        and all(ratio >= _SAME_WORD for ratio in ratios)
    )
