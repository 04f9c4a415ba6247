"""Text as the paper's own scorer saw it: Moses' tokens, and compounds split.

`tokens` are those of Moses' tokeniser. `split_compounds` is what German papers of that
time did to them before BLEU, the paper's Table 2 among them: every hyphen inside a word
becomes a token, which is scored, and right, whenever the hyphen is. The only importer
of sacremoses; used by `metrics`.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version

# Quotation marks and apostrophes that Moses' scripts, and with them the references that
# the paper was scored against, write as the ASCII ones.
_QUOTES = str.maketrans(
    dict.fromkeys("„“”«»", '"') | dict.fromkeys("\u2018\u2019\u201a", "'")
)
_HYPHEN = re.compile(r"(\S)-(\S)")


def tokens(sentences: Sequence[str], language: str) -> list[str]:
    """Each sentence as Moses' tokeniser writes it, one space between two tokens."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=re.split("[-_]", language)[0].lower())
    return [tokenizer.tokenize(sentence, return_str=True) for sentence in sentences]


def plain_quotes(sentence: str) -> str:
    """The sentence with ASCII quotation marks and apostrophes."""
    return sentence.translate(_QUOTES)


def split_compounds(tokenised: str) -> str:
    """Make each hyphen between two characters a token, `##AT##-##AT##`.

    From left to right, and a character belongs to one hyphen only: "rich-text" becomes
    three tokens, and so does "a-b-c", whose second hyphen stays.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokenised)


def signature() -> str:
    """The tokeniser and its version, as part of a score's signature."""
    return f"sacremoses-{version('sacremoses')}"
