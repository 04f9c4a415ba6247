"""LibreTranslate's API: what its clients send, and the answers that they expect.

Functions of parsed requests; `jaxformer.serving.app` queues the texts. Fields of
neither API are ignored, and messages of errors are LibreTranslate's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.text_pipeline import Direction
from jaxformer.system.errors import InputError

_FORMER = {"pb": "pt-BR", "zt": "zh-Hant"}  # codes of older servers
# Fields of our own requests.
_OTHERS = {"text", "n_best", "tag", "prefix", "phrases", "sentences", "markup"}
# Puts the translations of texts into their document; also returns messages about its
# placeholders.
Join = Callable[[Sequence[Hypothesis]], tuple[str, list[str]]]
# Finds the texts of a document, of a kind such as "html". Raises InputError.
Markup = Callable[[str, str], tuple[list[str], Join]]


class Languages(NamedTuple):
    """What a server translates."""

    directions: Mapping[str, Mapping[str, Direction]]  # by source, then by target
    name: Callable[[str], str]  # of a code, in English
    # Which of several languages a text is in, with percents; the most probable first.
    detect: Callable[[Sequence[str], str], list[tuple[str, float]]]
    # Which of several codes are of the language and script of a code.
    matching: Callable[[str, Collection[str]], list[str]]

    def code(self, codes: Collection[str], given: str) -> str:
        """Return which of `codes` stands for a code, or "".

        That is the code itself, else one of its language and script, such as "zh-Hant"
        for "zh-TW", else the language.
        """
        if given in codes:
            return given
        given = _FORMER.get(given, given).replace("_", "-").lower()
        base = given.partition("-")[0]
        matching = self.matching(given, codes)
        matching.sort(key=lambda code: code.partition("-")[0] != base)
        either = [code for code in codes if code.replace("_", "-").lower() == given]
        either += [base] if base in matching else []
        either += [*matching, base]
        return next((code for code in either if code in codes), "")

    def listed(self) -> list[dict[str, Any]]:
        """Return the answer of /languages."""
        return [
            {"code": source, "name": self.name(source), "targets": sorted(targets)}
            for source, targets in self.directions.items()
        ]

    def detected(self, text: str, target: str | None = None) -> list[dict[str, Any]]:
        """Return the answer of /detect; with `target` only source languages of it."""
        all_of = self.directions.items()
        to = [s for s, targets in all_of if target and self.code(targets, target)]
        found = self.detect(to or [*self.directions], text)
        return [{"confidence": round(p, 1), "language": code} for code, p in found]

    def settings(self, *, has_keys: bool) -> dict[str, Any]:
        """Return the answer of /frontend/settings."""
        target = next(iter(next(iter(self.directions.values()))))
        source = {"code": "auto", "name": "Auto Detect"}
        languages = {
            "source": source,
            "target": {"code": target, "name": self.name(target)},
        }
        values = {"apiKeys": has_keys, "keyRequired": has_keys, "language": languages}
        values |= {"suggestions": False, "filesTranslation": False}
        return values | {
            "charLimit": -1, "frontendTimeout": 500, "supportedFilesFormat": []
        }  # fmt: skip


class TranslateCall(NamedTuple):
    """A request for translations, read: what to translate, and how to answer.

    `parts` has for each text of the client the texts to translate and the function that
    puts their translations together.
    """

    parts: list[tuple[list[str], Join]]
    is_list: bool
    direction: Direction
    detected: dict[str, Any] | None  # of source "auto"
    alternatives: int

    def answer(self, found: Sequence[Sequence[Hypothesis]]) -> dict[str, Any]:
        """Return the answer, from the hypotheses of the texts of all parts."""
        left, every = iter(found), []
        for texts, join in self.parts:
            own = list(islice(left, len(texts)))
            count = min(self.alternatives + 1, max(map(len, own), default=1))
            ranks = [[h[min(r, len(h) - 1)] for h in own] for r in range(count)]
            every.append(list(dict.fromkeys(join(each)[0] for each in ranks)))
        values: dict[str, Any] = {"translatedText": [best for best, *_ in every]}
        if self.detected:
            values["detectedLanguage"] = [self.detected] * len(every)
        if self.alternatives:
            values["alternatives"] = [others for _, *others in every]
        return values if self.is_list else {k: v[0] for k, v in values.items()}


def read_call(
    values: Mapping[str, Any], languages: Languages, markup: Markup
) -> TranslateCall:
    """Read q, source, target, format and alternatives. Raises InputError."""
    for name in ("q", "source", "target"):
        if not values.get(name):
            raise InputError(f"Invalid request: missing {name} parameter")
    if others := ", ".join(sorted(values.keys() & _OTHERS)):
        raise InputError(f"Invalid request: q excludes {others}")
    is_list = isinstance(values["q"], list)
    texts = values["q"] if is_list else [values["q"]]
    if not all(isinstance(each, str) for each in texts):
        raise InputError("Invalid request: q is no text or list of texts")
    try:
        alternatives = max(0, int(values.get("alternatives") or 0))
    except (TypeError, ValueError, OverflowError):
        error = "Invalid request: alternatives parameter is not a number"
        raise InputError(error) from None
    source, target = str(values["source"]), str(values["target"])
    detected = None
    if source == "auto":
        (detected, *_) = languages.detected("\n".join(texts), target)
        source = detected["language"]
    targets = languages.directions.get(languages.code(languages.directions, source), {})
    direction = targets.get(languages.code(targets, target))
    if direction is None:
        raise InputError(f"{(target if targets else source)[:40]} is not supported")
    kind = values.get("format") or "text"
    if kind not in ("text", "html"):
        raise InputError(f"{str(kind)[:40]} format is not supported")
    parts = [markup(kind, each) if kind == "html" else _plain(each) for each in texts]
    return TranslateCall(parts, is_list, direction, detected, alternatives)


def _plain(text: str) -> tuple[list[str], Join]:
    return [text], lambda found: (found[0].text, [])
