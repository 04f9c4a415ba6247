"""Begins and ends that are no elements, such as {% if a %} and {% endif %}."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

_HALF = re.compile(
    r"(?:\{%[-+]?\s*(?P<endif>end)?|\{\{(?:[#^]|(?P<end>/))\s*|<(?P<tag>/)?(?=[A-Za-z]))"
    r"(?P<name>[\w:.-]*)"
)
_NATIVE = re.compile(r"<(?:[\w.-]+:)?(?P<kind>[be])pt\b(?P<attributes>[^>]*)")
_ID = re.compile(r"""\s(r?id)\s*=\s*["']([^"']*)""")
# What stands between a begin and its end.
_BETWEEN = ["else", "elif", "elsif", "elseif", "when", "empty", "plural"]


class Half(NamedTuple):
    """One of two that belong together; both have the name."""

    name: str
    is_end: bool


def half_of(placeholder: str) -> Half | None:
    """Read a placeholder of a text, such as {% endif %}, {{#name}} or <b>."""
    if found := _HALF.match(placeholder):
        return Half(found["name"], any(found.group("endif", "end", "tag")))
    return None


def native_half_of(element: str) -> Half | None:
    """Read an element of XLIFF: of `bpt` and `ept` the name is the id."""
    if found := _NATIVE.match(element):
        ids = dict(_ID.findall(found["attributes"]))
        return Half(ids.get("rid", ids.get("id", "")), found["kind"] == "e")
    return None


def pairs_of(halves: Sequence[Half | None]) -> set[tuple[int, int]]:
    """Return the indices of those that are closed in this order.

    An end closes the last open begin of its name, and what was opened behind that
    stays open.
    """
    opened: list[int] = []
    found = set()
    for at, half in enumerate(halves):
        if half is None or not half.is_end:
            opened.append(at)
            continue
        begin = Half(half.name, is_end=False)
        while opened and halves[opened[-1]] != begin:
            opened.pop()
        if opened:
            found.add((opened.pop(), at))
    return found


def is_alone(half: Half, others: Collection[Half | None]) -> bool:
    """Whether it is no half, but a value such as {% url 'x' %} or <name>."""
    other = Half(half.name, not half.is_end)
    return other not in others and half.name not in _BETWEEN
