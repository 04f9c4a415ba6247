"""Text as the paper's scorer tokenised it: Moses' tokens, with compounds split."""

import re
from collections.abc import Sequence
from importlib.metadata import version

# Moses' scripts write these marks in ASCII, and so do the references of that time.
_QUOTES = str.maketrans(
    dict.fromkeys("„“”«»", '"') | dict.fromkeys("\u2018\u2019\u201a", "'")
)
_HYPHEN = re.compile(r"(\S)-(\S)")


def tokens(sentences: Sequence[str], language: str) -> list[str]:
    """Tokenise each sentence with Moses' rules, one space between two tokens."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=re.split("[-_]", language)[0].lower())
    return [tokenizer.tokenize(sentence, return_str=True) for sentence in sentences]


def split_tokens(sentences: Sequence[str], language: str) -> list[str]:
    """Tokenise for the scorer of the paper's table 2: ASCII quotes, compounds split."""
    plain = [sentence.translate(_QUOTES) for sentence in sentences]
    return [split_compounds(sentence) for sentence in tokens(plain, language)]


def split_compounds(tokenised: str) -> str:
    """Make each hyphen between two characters a token, `##AT##-##AT##`.

    A character belongs to one hyphen only, from left to right: "a-b-c" becomes three
    tokens, and its second hyphen stays. BLEU counts the hyphens as tokens.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokenised)


def signature() -> str:
    """The tokeniser and its version, as part of a score's signature."""
    return f"sacremoses-{version('sacremoses')}"
