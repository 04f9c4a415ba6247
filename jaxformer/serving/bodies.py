"""The bodies of requests, read or refused."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import parse_qsl

from jaxformer.system.errors import InputError

Json = dict[str, Any]  # an object of JSON


def read_translate(
    given: Json, *, max_n_best: int, tags: Sequence[str]
) -> tuple[list[tuple], int, bool]:
    """Read {"text": ..., "n_best": 1, "prefix": ..., "phrases": [...], "tag": ...}.

    Text and prefix may be lists, and phrases then a list of lists; the tag is one of
    `tags`, and begins each text. Returns texts, each with its prefix and phrases,
    n_best, and whether "sentences" is true. Raises InputError.
    """
    keys = "text", "n_best", "prefix", "phrases", "tag", "sentences", "markup"
    values = _known(given, keys)
    if type(has_sentences := values.get("sentences", False)) is not bool:
        raise InputError('"sentences" has to be true or false')
    sentences, tag = _strings(values, "text"), values.get("tag", "")
    if tag not in ("", *tags):
        known = f"; use one of {', '.join(tags)}" if tags else ""
        raise InputError(f'"tag" is not in the vocabulary{known}')
    if tag and any(each.lstrip().startswith(tuple(tags)) for each in sentences):
        raise InputError('"text" begins with a tag already; leave out "tag"')
    sentences = [tag + each for each in sentences]
    n_best = values.get("n_best", 1)
    if type(n_best) is not int or not 1 <= n_best <= max_n_best:
        raise InputError(f'"n_best" has to be an integer from 1 to {max_n_best}')
    is_list, count = isinstance(values["text"], list), len(sentences)
    prefixes, phrases = [""] * count, [()] * count
    if "prefix" in values:
        prefixes = _strings(values, "prefix")
        if isinstance(values["prefix"], list) != is_list or len(prefixes) != count:
            raise InputError(
                '"prefix" has to be a string like "text", or a list of equal length'
            )
    if "phrases" in values:
        phrases = values["phrases"] if is_list else [values["phrases"]]
        if not _are_lists_of_strings(phrases) or len(phrases) != count:
            raise InputError(
                '"phrases" has to be a list of strings, or one such list for each text'
            )
    return list(zip(sentences, prefixes, phrases, strict=True)), n_best, has_sentences


def read_documents(given: Json) -> tuple[list[str], str]:
    """Read {"text": ..., "markup": "html"}; text may be a list. Raises InputError."""
    values = _known(given, ("text", "markup"))
    if not isinstance(values["markup"], str):
        raise InputError('"markup" has to be a string')
    return _strings(values, "text"), values["markup"]


def read_attention(given: Json) -> tuple[str, str]:
    """Read {"source": ..., "target": ...}, two strings. Raises InputError."""
    values = _known(given, ("source", "target"))
    for name in ("source", "target"):
        if not isinstance(values.get(name), str):
            raise InputError(f'"{name}" has to be a string')
    return values["source"], values["target"]


def read_json(body: bytes) -> Json:
    """Read an object of JSON. Raises InputError."""
    try:
        values = json.loads(body.decode())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON in UTF-8 ({error})") from None
    if not isinstance(values, dict):
        raise InputError("the body has to be a JSON object")
    return values


def read_form(body: bytes, query: str) -> Json:
    """Read a form, and the query of its URL for what it lacks. Raises InputError."""
    if body.lstrip()[:1] in (b"{", b"["):  # what curl -d sends without a header
        raise InputError("for JSON add the header content-type: application/json")
    try:
        forms = [
            parse_qsl(each, True, errors="strict") for each in (query, body.decode())
        ]
    except ValueError as error:
        raise InputError(f"the body is not a form in UTF-8 ({error})") from None
    for form in forms:
        if again := Counter(name for name, _ in form) - Counter(dict(form).keys()):
            name = next(iter(again))[:40]
            raise InputError(f"the form has {name!r} twice; send a list as JSON")
    return {k: text.replace("\r\n", "\n") for form in forms for k, text in form}


def _known(values: Json, keys: Collection[str]) -> Json:
    for key in values.keys() - set(keys):
        raise InputError(f"unknown key {key[:40]!r}; the keys are {', '.join(keys)}")
    return values


def _are_lists_of_strings(given: object) -> bool:
    return isinstance(given, list) and all(
        isinstance(each, list) and all(isinstance(phrase, str) for phrase in each)
        for each in given
    )


def _strings(values: Json, name: str) -> list[str]:
    given = values.get(name)
    strings = given if isinstance(given, list) else [given]
    if not all(isinstance(string, str) for string in strings):
        raise InputError(f'"{name}" has to be a string or a list of strings')
    return strings
