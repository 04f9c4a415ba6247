"""What an exported program does with text; the READMEs of exports have a copy of it."""

import inspect
import re
import unicodedata


def normalise(text: str) -> str:
    """Apply NFC; make each run of white space and control characters one space.

    A text of spaces and invisible characters alone, such as U+200B, is "".
    """
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"[\s\x00-\x1f\x7f-\x9f\u2581]+", " ", text).strip(" ")
    is_seen = any(c != " " and unicodedata.category(c) != "Cf" for c in text)
    return text if is_seen else ""


def split_tag(text: str, tags: set[str]) -> tuple[str, str]:
    """Return the tag that begins a text, such as ">>deu<<", or "", and the rest."""
    code = re.match(r">>[^<\s]+<<", text.strip())
    tag = code[0] if code and code[0] in tags else ""
    return tag, text.strip().removeprefix(tag).strip()


SOURCE = "\n\n".join(map(inspect.getsource, (normalise, split_tag))).strip()
