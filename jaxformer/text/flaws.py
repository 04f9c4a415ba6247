"""Flaws of sentence pairs that can be found without a model of translation."""

import functools
import html
import logging
import re
from collections.abc import Iterable, Sequence

import numpy as np
from ftfy import fix_encoding

from jaxformer.config.data import DataConfig
from jaxformer.system.errors import InputError
from jaxformer.text.languages import Languages
from jaxformer.text.lines import normalise

logger = logging.getLogger(__name__)

SAMPLE = 2_000  # pairs of a text that are classified before it is prepared
_LANGUAGES = ("swapped", "language")
open_languages = functools.cache(Languages)
_FEW, _USUAL = 10, 0.02  # pairs in another language, and share, without a warning
_ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[A-Za-z][A-Za-z\d]*);")
# The first byte of a character in UTF-8 and a later one, as Latin-1 or Windows-1252.
_CP1252 = bytes(range(0x80, 0xA0)).decode("cp1252", "ignore")
_SUSPECT = re.compile(f"[\xc2-\xf4][\x80-\xbf{_CP1252}]")
_QUOTES = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')


def is_mojibake(text: str) -> bool:
    """Whether UTF-8 was decoded as another encoding, as in "fÃ¼r" for "für"."""
    return bool(_SUSPECT.search(text)) and fix_encoding(text) != text


# By kind of `data.drop`, whether a text has the flaw.
OF_TEXTS = {
    "entities": lambda text: any(html.unescape(m) != m for m in _ENTITY.findall(text)),
    "mojibake": is_mojibake,
    "quotes": lambda text: text[:1] == '"' and bool(_QUOTES.fullmatch(text)),
}


def flaws(
    pairs: Sequence[tuple[str, str]], config: DataConfig, kinds: Iterable[str]
) -> dict[str, np.ndarray]:
    """Return which pairs have each of the `kinds` of `data.drop`: bool [n] each.

    Sources may begin with `data.tag`. Raises InputError for a language that py3langid
    lacks.
    """
    found = {kind: np.zeros(len(pairs), bool) for kind in kinds}
    if not found or not pairs:
        return found
    raw = [(s.removeprefix(config.tag).strip(), target) for s, target in pairs]
    texts = [(normalise(source), normalise(target)) for source, target in raw]
    if found.keys() & {*_LANGUAGES}:
        codes = config.source_language, config.target_language
        judged = open_languages(codes).judge(*zip(*texts, strict=True))
        for index, kind, *_ in judged:
            if (flaw := kind if kind == "swapped" else "language") in found:
                found[flaw][index] = True
    for kind, has in OF_TEXTS.items():
        if kind in found:
            found[kind][:] = [has(source) or has(target) for source, target in raw]
    if "copy" in found:
        found["copy"][:] = [source == target for source, target in texts]
    return found


def require_languages(
    pairs: Sequence[tuple[str, str]], split: str, config: DataConfig
) -> None:
    """Check that a sample of a text is in the languages of its sides.

    Raises InputError above `data.max_foreign`, and warns above 2 %, of more than 10
    pairs; those that `data.drop` drops as "swapped" or "language" do not count.
    Languages that py3langid lacks are not checked.
    """
    dropped = (config.drop or ()) if split == "train" else ()
    try:
        kinds = [kind for kind in _LANGUAGES if kind not in dropped]
        found = flaws(pairs, config, kinds if config.max_foreign is not None else ())
    except InputError:
        return
    counts = {kind: int(is_flawed.sum()) for kind, is_flawed in found.items()}
    count = sum(counts.values())
    if count <= _FEW:
        return
    what, remedy = "source and target exchanged", "exchange the files or the languages"
    if max(counts, key=counts.get) == "language":
        what = "another language"
        remedy = "correct data.source_language or data.target_language"
    said = (
        f"{count:,} of {len(pairs):,} pairs of the {split} text{config.of_corpus} are "
        f"not {config.direction}, most have {what}"
    )
    if count > config.max_foreign * len(pairs):
        raise InputError(
            f"{said}; {remedy}. If the text is right, set data.max_foreign=None"
        )
    if count > _USUAL * len(pairs):
        cure = f"drop them by {config.dropping(*_LANGUAGES)}"
        if split != "train":  # it is scored as it is
            cure = "correct the lines listed by `jaxformer check --output=findings.tsv`"
        logger.warning("%s; %s", said, cure)
