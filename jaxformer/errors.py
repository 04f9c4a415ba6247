"""The exception for wrong user input, and the hint that ends many of its messages."""

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """A file, flag or config that cannot be used as given.

    Its message is one sentence for the user: what is wrong, where, and what to do.
    `jaxformer.main` prints it without a traceback and exits with code 2.
    """


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "; did you mean X?" for the known name nearest to `name`.

    Without a similar name it is "; " and `otherwise`, or "".
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else otherwise
    return f"; {hint}" if hint else ""
