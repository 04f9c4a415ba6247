"""Request bodies: JSON to checked values, without any HTTP."""

import json
from collections.abc import Collection
from typing import Any

from jaxformer.errors import InputError


def read_translate(body: bytes, *, max_n_best: int) -> tuple[list[tuple], int]:
    """Read {"text": ..., "n_best": 1, "prefix": ...}; text and prefix may be lists.

    Returns pairs of sentence and prefix, and n_best. Raises InputError.
    """
    values = _read_object(body, ("text", "n_best", "prefix"))
    if "text" not in values:
        raise InputError('"text" is missing; give a sentence or a list of sentences')
    sentences = _strings(values, "text")
    n_best = values.get("n_best", 1)
    if type(n_best) is not int or not 1 <= n_best <= max_n_best:
        raise InputError(f'"n_best" has to be an integer from 1 to {max_n_best}')
    if "prefix" not in values:
        return [(sentence, "") for sentence in sentences], n_best
    prefixes = _strings(values, "prefix")
    same_type = type(values["prefix"]) is type(values["text"])
    if not same_type or len(prefixes) != len(sentences):
        raise InputError(
            '"prefix" has to be a string like "text", or a list of equal length'
        )
    return list(zip(sentences, prefixes, strict=True)), n_best


def read_attention(body: bytes) -> tuple[str, str]:
    """Read {"source": ..., "target": ...}, two strings. Raises InputError."""
    values = _read_object(body, ("source", "target"))
    for name in ("source", "target"):
        if not isinstance(values.get(name), str):
            raise InputError(f'"{name}" has to be a string')
    return values["source"], values["target"]


def _read_object(body: bytes, keys: Collection[str]) -> dict[str, Any]:
    try:
        values = json.loads(body.decode())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON in UTF-8 ({error})") from None
    if not isinstance(values, dict):
        raise InputError("the body has to be a JSON object")
    for key in values.keys() - set(keys):
        raise InputError(f"unknown key {key[:40]!r}; the keys are {', '.join(keys)}")
    return values


def _strings(values: dict[str, Any], name: str) -> list[str]:
    strings = values[name] if isinstance(values[name], list) else [values[name]]
    if not all(isinstance(string, str) for string in strings):
        raise InputError(f'"{name}" has to be a string or a list of strings')
    return strings
