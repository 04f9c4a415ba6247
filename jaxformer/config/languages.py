"""Codes and names of languages."""

import functools
import logging
import re
from collections.abc import Iterable

from jaxformer.system.errors import InputError

logger = logging.getLogger(__name__)


def base_language(code: str) -> str:
    """Return the shortest code of a language: "zh" for zh-CN, zho_Hans and cmn."""
    return language_and_script(code)[0]


@functools.lru_cache(4096)  # a server is asked for any code
def language_and_script(code: str) -> tuple[str, str]:
    """Return "zh" and "Hans" for zh-CN; logs once that a code is unknown."""
    from langcodes import Language, standardize_tag, tag_is_valid  # --help needs none

    if tag_is_valid(code):
        language = Language.get(standardize_tag(code, macro=True)).maximize()
        return language.language or "und", language.script
    logger.warning(
        "%r is no language code of ISO 639, and its text is handled as English, for "
        "example by sacreBLEU's tokeniser 13a; write a code such as de or zho_Hans",
        code,
    )
    return re.split("[-_]", code)[0].lower(), "Latn"


def matching_codes(code: str, codes: Iterable[str]) -> list[str]:
    """Return which of `codes` are of the language and script of a code, or []."""
    from langcodes import tag_is_valid

    # langcodes caches each code without a limit, and clients of a server send any.
    form = "[a-z]{2,3}([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?"
    if not (re.fullmatch(form, code, re.I) and tag_is_valid(code)):
        return []
    wanted = language_and_script(code)
    return [each for each in codes if language_and_script(each) == wanted]


def require_language(code: str, what: str) -> None:
    """Raise InputError, naming `what` has it, unless `code` is a code of ISO 639."""
    from langcodes import tag_is_valid

    if not tag_is_valid(code):
        known = language_code(code) or "a code such as de or zho_Hans"
        raise InputError(f"{what}={code} is no language code of ISO 639; write {known}")


@functools.cache
def _registered() -> dict[str, list[str]]:
    """The English names of each language, by the shortest code."""
    from langcodes.registry_parser import parse_registry

    entries = (each for each in parse_registry() if each["Type"] == "language")
    return {each["Subtag"]: each.get("Description", []) for each in entries}


@functools.cache
def language_code(name: str) -> str:
    """Return the ISO 639 code of an English name of a language, "" for other words."""
    for code, names in _registered().items():
        if name.casefold() in map(str.casefold, names):
            return code
    return ""


def language_name(code: str) -> str:
    """Return the English name of a language: "Chinese (Hant)" for zh-Hant."""
    base, _, script = code.partition("-")
    (name, *_) = _registered().get(base) or [base]
    return name.partition(" (")[0] + (script and f" ({script})")
