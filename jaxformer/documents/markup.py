"""HTML, XML and XLIFF: what of their tokens is translated."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape

from jaxformer.documents.tokens import (
    Part,
    Parts,
    Token,
    html_tokens,
    require_utf8,
    xml_tokens,
)

# Elements within a sentence. All others of HTML begin a new one.
_INLINE = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd "
    "label mark math meter output picture progress q rp rt ruby s samp small span "
    "strike strong sub sup svg time tt u var wbr"
)
_WITHIN = frozenset(["", *_INLINE.split()])  # "": the name of what is no tag
# Elements whose text is no language, of HTML and DocBook.
_CODE = (
    "code kbd literal literallayout math pre programlisting samp screen script style "
    "svg template textarea var"
)
_NATIVE = "bpt", "ept", "it", "ph"  # of XLIFF: the code of a placeholder
_STANDALONE = *_NATIVE, "x", "bx", "ex", "sc", "ec", "cp"  # of XLIFF: inline code
_NEW = "initial", "new", "needs-translation"  # states of a target that is none yet
_STATE = re.compile(rf"""(\sstate\s*=\s*["'])({"|".join(_NEW)})(?=["'])""")
_SUBSTATE = re.compile(r"""\ssubState\s*=\s*("[^"]*"|'[^']*')""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w:.-]+)""", re.I)

_escape = partial(escape, quote=False)


@dataclass(eq=False)
class _Element:
    """An element of a document; `first` and `last` are the indices of its tags."""

    name: str = ""  # without a namespace prefix
    first: int = 0
    last: int = 0
    parent: "_Element | None" = None
    children: list["_Element"] = field(default_factory=list)
    skipped: "_Element | None" = None  # the outermost element that is not translated
    protected: "_Element | None" = None  # an inline one around it, or `skipped`
    is_inline: bool = False
    has_text: bool = False


def _elements(
    tokens: Iterable[Token], code: Collection[str]
) -> tuple[list[_Element], list[_Element]]:
    """Return all elements, and the innermost one of each token; a tag is in its own."""
    stack = [_Element()]
    found, owners = [*stack], []
    for at, token in enumerate(tokens):
        owner = stack[-1]
        if token.kind == "open":
            name = token.name.rpartition(":")[2].lower()
            owner = _Element(name, at, 0, owner, skipped=owner.skipped)
            owner.parent.children.append(owner)
            own = token.attributes
            is_protected = (name, own.get("mtype")) == ("mrk", "protected")  # XLIFF 1.2
            choice = own.get("translate") or own.get("its:translate") or ""
            choice = choice.lower() or ("no" if is_protected else "")
            is_code = name in code or "notranslate" in (own.get("class") or "").split()
            if choice == "no" or (is_code and choice != "yes"):
                owner.skipped = owner.skipped or owner
            elif choice == "yes":
                owner.skipped = None
            stack.append(owner)
            found.append(owner)
        elif token.kind == "close":
            stack.pop().last = at
        elif token.text.strip():
            owner.has_text = True
        owners.append(owner)
    return found, owners


def _parts(tokens: Sequence[Token], owners: Sequence[_Element]) -> list[Part]:
    """Divide tokens into texts that stay as they are and lists of inline tokens."""
    parts: list[Part] = []
    before = None
    for token, owner in zip(tokens, owners, strict=True):
        if token.kind == "open":  # all of an inline element moves with it
            outer = owner.parent.protected
            owner.protected = outer if outer and outer.is_inline else owner.skipped
        code = owner.protected
        is_tag = token.kind in ("open", "close") or token.name not in _WITHIN
        if not (code or owner).is_inline and (code or is_tag):
            parts.append(token.raw)
        else:
            if not parts or isinstance(parts[-1], str):
                parts.append([])
            if code:
                is_next = code is before and parts[-1]
                last = parts[-1].pop() if is_next else Token("other", "")
                token = Token("other", last.raw + token.raw, last.text + token.text)
            parts[-1].append(token)
        before = code
    return parts


def read_html(text: str) -> Parts:
    """Read HTML: elements that are not inline end a sentence."""
    tokens = html_tokens(text)
    for own in (each.attributes for each in tokens if each.name == "meta"):
        declared = f"charset={own.get('charset') or ''}"
        if (own.get("http-equiv") or "").lower() == "content-type":
            declared = own.get("content") or ""
        if found := _CHARSET.search(declared):
            require_utf8(found[1])
            break  # only the first counts
    elements, owners = _elements(tokens, _CODE.split())
    for element in elements[1:]:
        element.is_inline = element.name in _WITHIN
    return Parts(_parts(tokens, owners), _escape)


def read_xml(text: str) -> Parts:
    """Read XML: elements beside text, and elements within these, are inline.

    An element with several elements and no text is a list or a table, so not inline.
    """
    tokens = xml_tokens(text)
    elements, owners = _elements(tokens, _CODE.split())
    for element in elements[1:]:
        is_list = not element.has_text and len(element.children) > 1
        outer = element.parent
        element.is_inline = (outer.has_text or outer.is_inline) and not is_list
    return Parts(_parts(tokens, owners), _escape)


def _is_content(token: Token) -> bool:
    """Whether a target with this token has a translation."""
    name = token.name.rpartition(":")[2] if token.kind == "open" else ""
    return bool(token.text.strip()) or token.raw == "<![CDATA[" or name in _STANDALONE


def _translated(tag: str) -> str:
    """Return a tag whose state, if it is a new one's, is that of a translation."""
    changed = _STATE.sub(r"\1translated", tag)
    return tag if changed == tag else _SUBSTATE.sub("", changed)


def read_xliff(text: str) -> Parts:
    """Read XLIFF 1.2 or 2: each source without a translation gets a target."""
    tokens = xml_tokens(text)
    elements, owners = _elements(tokens, _NATIVE)
    for element in elements:  # each segment of an `mrk` is a text of its own
        is_segment = tokens[element.first].attributes.get("mtype") == "seg"
        element.is_inline = not is_segment
    written: list[list[Part]] = [[token.raw] for token in tokens]
    for unit in elements:
        if unit.name not in ("trans-unit", "segment"):
            continue
        of_unit = {each.name: each for each in reversed(unit.children)}  # the first
        source, target = of_unit.get("source"), of_unit.get("target")
        if source is None or source.skipped:
            continue
        name = tokens[source.first].name.removesuffix("source") + "target"
        own = of_unit.get("seg-source", source)
        inside = slice(own.first + 1, own.last)
        raws = [each.raw for each in tokens[inside]]
        if "<![CDATA[" in raws and not any(t.text.strip() for t in tokens[inside]):
            continue  # CDATA would stay untranslated in a target
        content = [*_parts(tokens[inside], owners[inside]), f"</{name}>"]
        if target is None:
            indent = written[source.first - 1] if tokens[source.first - 1].text else []
            written[max(source.last, own.last)] += [*indent, f"<{name}>", *content]
        else:
            tags = tokens[target.first], tokens[unit.first]
            is_new = any(each.attributes.get("state") in _NEW for each in tags)
            own = slice(target.first + 1, target.last)
            if not is_new and any(map(_is_content, tokens[own])):
                continue
            size = target.last - target.first
            written[target.first + 1 : target.last + 1] = [[]] * size
            first = re.sub(r"\s*/>$", ">", tags[0].raw)
            written[target.first] = [_translated(first), *content]
        written[unit.first][0] = _translated(written[unit.first][0])
    return Parts([part for own in written for part in own], _escape)
