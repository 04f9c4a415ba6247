"""The exceptions for wrong user input, and how messages are written."""

import difflib
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EXIT_INTERRUPTED = 130
EXIT_LOST = 3  # of a connection or another process: the same command may go on
_SAME_WORD = 0.75  # ratio of difflib, at least


def printable(text: str) -> str:
    """Escape what does not print: controls, line ends, marks of direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, noun: str) -> str:
    """Write "no pairs", "1 pair" or "2,800 pairs"."""
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{f'{number:,}' if number else 'no'} {noun}{plural}"


class InputError(Exception):
    """A file, flag or config that cannot be used as given.

    Its message is one sentence for the user: what is wrong, where, and what to do.
    `jaxformer.main` prints it without a traceback and exits with code 2. Characters
    that do not print are escaped, so that the message is one line.
    """

    def __init__(self, message: object) -> None:
        super().__init__(printable(str(message)))


class NotFiniteError(InputError):
    """Scores of a model that are not numbers, for this text or for every one."""


class DamagedError(InputError):
    """A file that is missing or does not have its checksum."""


class StoppedError(BaseException):
    """The run was asked to stop, and all processes agreed to stop.

    Like KeyboardInterrupt it is no Exception, so that libraries do not catch it.
    """


class LostConnectionError(InputError):
    """An object store that could not be reached for a while: exit code EXIT_LOST."""


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra of ours."""
    return f"pip install 'jaxformer[{extra}]', or -e '.[{extra}]' in a checkout"


@contextmanager
def packages_of(extra: str) -> Iterator[None]:
    """Turn the ImportError of a package of an extra of ours into an InputError."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"the package {error.name or error} is not installed; run: {install(extra)}"
        ) from error


def broken(line: str) -> str:
    """Break a line between words where the terminal would break it anywhere."""
    width = sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns
    is_command = re.match(r"\s*(\S+ -m )?jaxformer[ .]", line)  # to be copied
    if not width or len(line) <= width or is_command:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "; did you mean X?" for the known name of which `name` is a misspelling.

    A name with other words or digits has another meaning. Without a similar name the
    result is "; " and `otherwise`, or "".
    """
    near = next((each for each in known if _is_misspelt(name, each)), None)
    hint = f"did you mean {near}?" if near else otherwise
    return f"; {hint}" if hint else ""


def _is_misspelt(name: str, known: str) -> bool:
    """Whether the words and digits of both are similar, one by one."""
    texts = name.lower(), known.lower()
    words, others = (re.findall(r"\d|[^\W\d_]+", text) for text in texts)
    pairs = zip(words, others, strict=False)
    ratios = [difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs]
    are_similar = len(words) == len(others) and min(ratios, default=0) >= _SAME_WORD
    return are_similar or "".join(words) == "".join(others)
