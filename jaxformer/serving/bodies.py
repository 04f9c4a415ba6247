"""The bodies of requests: JSON in, checked values out. Knows no HTTP.

What is wrong is an InputError, one sentence for whoever wrote the request.
"""

import difflib
import json
from collections.abc import Collection
from typing import Any, NamedTuple

from jaxformer.errors import InputError

# UTF-8 bytes, and so at least as many as there are pieces: memory grows by the square.
MOST_SHOWN = 600


class Translate(NamedTuple):
    """What /translate is asked for."""

    sentences: list[str]
    prefixes: list[str]  # what each translation has to begin with, often nothing
    n_best: int


class Pair(NamedTuple):
    """What /attention is asked for."""

    source: str
    target: str


class TooManyError(InputError):
    """More than one request may have."""


def read_translate(
    body: bytes, *, max_sentences: int, most_candidates: int
) -> Translate:
    """Read {"text": ..., "n_best": 1, "prefix": ...}; text and prefix may be lists.

    Raises InputError for anything else.
    """
    values = _read_object(body, {"text", "n_best", "prefix"})
    if "text" not in values:
        raise InputError('"text" is missing; give a sentence or a list of sentences')
    sentences = _strings(values, "text")
    if len(sentences) > max_sentences:
        raise TooManyError(
            f'"text" has {len(sentences)} sentences and a request may have '
            f"{max_sentences}; send them in several"
        )
    n_best = values.get("n_best", 1)
    if type(n_best) is not int or not 1 <= n_best <= most_candidates:
        raise InputError(
            f'"n_best" has to be an integer from 1 to {most_candidates}, which the '
            "server finds of each sentence"
        )
    prefixes = [""] * len(sentences)
    if "prefix" in values:
        prefixes = _strings(values, "prefix")
        if type(values["prefix"]) is not type(values["text"]) or (
            len(prefixes) != len(sentences)
        ):
            raise InputError(
                '"prefix" has to be a string where "text" is one, or a list as long'
            )
    return Translate(sentences, prefixes, n_best)


def read_pair(body: bytes) -> Pair:
    """Read {"source": ..., "target": ...}. Raises InputError for anything else."""
    values = _read_object(body, set(Pair._fields))
    for name in Pair._fields:
        if not isinstance(values.get(name), str):
            raise InputError(f'"{name}" has to be a string')
        _require_text(values[name], f'"{name}"')
        if len(values[name].encode()) > MOST_SHOWN:
            raise TooManyError(
                f'"{name}" has more than {MOST_SHOWN} bytes; of longer texts attention '
                "is not shown"
            )
    return Pair(**values)


def _read_object(body: bytes, known: Collection[str]) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        values = json.loads(text)
    except RecursionError:
        raise InputError("the body is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"the body is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"the body has to be a JSON object with {_names(known)}")
    for name in values.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"there are {_names(known)}"
        shown = name[:40].encode(errors="replace").decode()
        raise InputError(f'the body has an unknown key "{shown}"; {hint}')
    return values


def _strings(values: dict[str, Any], name: str) -> list[str]:
    """A string, or a list of some, as a list."""
    value = values[name]
    strings = value if isinstance(value, list) else [value]
    for number, string in enumerate(strings, start=1):
        where = f'"{name}", sentence {number}' if len(strings) > 1 else f'"{name}"'
        if not isinstance(string, str):
            raise InputError(f"{where} has to be a string")
        _require_text(string, where)
    return strings


def _require_text(string: str, where: str) -> None:
    """Raise InputError for half a character: JSON can escape those, UTF-8 has none."""
    try:
        string.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has half of a surrogate pair") from None


def _names(known: Collection[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(known))
