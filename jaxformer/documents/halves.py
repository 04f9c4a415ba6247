"""Begins and ends that are no elements, such as {% if a %} and {% endif %}."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_HALF = re.compile(
    r"(?:\{%[-+~]?\s*(?P<endif>end)?|\{\{~?(?:[#^][>*]?|(?P<end>/)|(?=else\b))\s*|"
    r"<(?P<tag>/)?(?=[A-Za-z]))(?P<name>[\w:.-]*)"
)
_NATIVE = re.compile(
    r"""<(?:[\w.-]+:)?(?P<kind>[be])pt\b(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*)"""
)
_ATTRIBUTE = re.compile(r"""(?<!\S)([^\s=]+)\s*=\s*("[^"]*"|'[^']*')""")
# What stands between a begin and its end, and begins that often end in another text.
_BETWEEN = {"else", "elif", "elsif", "elseif", "when", "empty", "plural"}
_BEGINS = {"block", "for", "foreach", "if", "unless", "with"}


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
        own = dict(_ATTRIBUTE.findall(found["attributes"]))
        return Half(own.get("rid", own.get("id", ""))[1:-1], found["kind"] == "e")
    return None


def pairs_of(halves: Sequence[Half | None]) -> set[tuple[int, int]]:
    """Return indices of halves of one block that follow each other: begin, else, end.

    An end closes the last open begin of its name, and what was opened behind that
    stays open.
    """
    opened: list[list[int]] = []  # a begin, and each else behind it
    found = set()
    for at, half in enumerate(halves):
        if half and half.is_end:
            begin = Half(half.name, is_end=False)
            while opened and halves[opened[-1][0]] != begin:
                opened.pop()
            if opened:
                found.update(itertools.pairwise([*opened.pop(), at]))
        elif half and half.name in _BETWEEN and opened:
            opened[-1].append(at)
        else:
            opened.append([at])
    return found


def values_of(halves: Iterable[Half | None]) -> set[Half]:
    """Return which are no halves, but values such as {% url 'x' %} or <name>.

    There are none if an end or an else lacks its begin, since each may be that begin,
    as {% if a %} may be that of {% end %}.
    """
    known = {*halves} - {None}
    begins, ends = (
        {half.name for half in known if half.is_end is is_end}
        for is_end in (False, True)
    )
    if ends - begins or (begins & _BETWEEN and not begins & ends):
        return set()
    return {Half(name, is_end=False) for name in begins - ends - _BETWEEN - _BEGINS}
