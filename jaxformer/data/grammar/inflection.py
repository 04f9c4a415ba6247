"""The inflected words of the built-in corpus, read from the tables of `lexicon`.

A gender is "m", "f", "n", or "p" for every plural. Finite verbs are indexed by
agreement: 0 for ich, 1 for du, 2 for er, 3 for wir and sie.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeVar

from jaxformer.data.grammar import lexicon

Entry = TypeVar("Entry")
CASES = ("nominative", "accusative", "dative", "genitive")
INSEPARABLE = ("be", "ge", "ver", "er", "zer", "ent")


class Noun(NamedTuple):
    """One noun; a mass noun has no plural."""

    english: str
    english_plural: str
    gender: str
    forms: dict[str, dict[str, str]]  # gender -> case -> German form
    kind: str  # a section of lexicon.NOUNS
    is_weak: bool


class Verb(NamedTuple):
    """One verb and what it governs."""

    english: str
    third: str  # the English third person singular
    past: str  # empty: never used in the past
    finite: tuple[str, ...]  # without the separable prefix
    prefix: str  # separable, empty if there is none
    infinitive: str  # without the prefix
    participle: str
    auxiliary: str  # "haben" or "sein"
    governs: str  # a section of lexicon.VERBS
    objects: tuple[str, ...]  # sections of lexicon.NOUNS
    preposition: str
    case: str  # of the object


def _read(
    table: str, read: Callable[[str, str], Entry]
) -> dict[str, tuple[Entry, ...]]:
    """Read a table of `lexicon`; `read` gets an entry and the name of its section."""
    sections = {}
    for text in re.split(r"\n(?=\S)", table.strip()):
        name, entries = " ".join(text.split()).split(": ", maxsplit=1)
        sections[name] = tuple(read(entry, name) for entry in entries.split(", "))
    return sections


def english_form(word: str, ending: str) -> str:
    """Add a regular ending, "s" or "ed", to an English word."""
    if re.search("[^aeiou]y$", word):
        word = word[:-1] + "ie"
    elif ending == "s" and re.search("(s|x|ch|sh|[^aeiou]o)$", word):
        word += "e"
    return (word if ending == "s" else word.removesuffix("e")) + ending


def german_form(word: str, ending: str) -> str:
    """Add "-ending", or "¨ending" with an umlaut, to a German word, or replace it."""
    if ending.startswith("¨"):
        before, vowel, after = re.fullmatch("(.*?)(au|[aouA])([^aou]*)", word).groups()
        umlaut = {"a": "ä", "o": "ö", "u": "ü", "A": "Ä"}[vowel[0]]
        return before + umlaut + vowel[1:] + after + ending[1:]
    return word + ending[1:] if ending.startswith("-") else ending


def _read_noun(entry: str, kind: str) -> Noun:
    english, article, singular, *ending = entry.split()
    english, _, english_plural = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    plural = german_form(singular, ending[0]) if ending else ""
    # A masculine with a plural in -n or -en is weak: all its other forms are the same.
    is_weak = gender == "m" and ending in (["-n"], ["-en"])
    is_short = len(re.findall("[aeiouyäöü]+", singular.lower())) == 1
    genitive = "" if gender == "f" else "es" if is_short else "s"
    forms = {
        gender: (singular, singular, singular, singular + genitive),
        "p": (plural, plural, re.sub("([^ns])$", r"\1n", plural), plural),
    }
    if is_weak:
        forms[gender] = (singular, plural, plural, plural)
    return Noun(
        english,
        (english_plural or english_form(english, "s")) if plural else "",
        gender,
        {g: dict(zip(CASES, row, strict=True)) for g, row in forms.items()},
        kind,
        is_weak,
    )


def _read_verb(entry: str, governs: str) -> Verb:
    words, objects, preposition = [*entry.split(" : "), "", ""][:3]
    english, german = words.split(" = ")
    base, *particle = english.split()
    base, _, past = base.partition("/")
    third = {"have": "has"}.get(base) or english_form(base, "s")
    past = past or english_form(base, "ed")

    infinitive, *forms = german.split()
    auxiliary = forms.pop() if forms[-1:] == ["sein"] else "haben"
    prefix, _, infinitive = infinitive.rpartition("-")
    stem = re.sub("e?n$", "", infinitive)
    with_t = stem + ("et" if stem.endswith(("t", "d")) else "t")
    is_bare = infinitive.startswith(INSEPARABLE) or infinitive.endswith("ieren")
    er, participle = forms or (with_t, prefix + ("" if is_bare else "ge") + with_t)
    du = er[:-1] + ("t" if er[-2] in "sßzx" else "st")
    preposition, _, case = preposition.partition(" ")
    return Verb(
        " ".join([base, *particle]),
        " ".join([third, *particle]),
        "" if past == "-" else " ".join([past, *particle]),
        FINITE.get(infinitive, (stem + "e", du, er, infinitive)),
        prefix,
        infinitive,
        participle,
        auxiliary,
        governs,
        tuple(objects.split()),
        preposition,
        case or ("dative" if governs == "dative" else "accusative"),
    )


WORDS = _read(lexicon.WORDS, lambda entry, _: tuple(entry.split(" = ")))
# The numbers from 2 to 99; German says the units first.
UNITS = (("one", "ein"), *WORDS["number"][:8])
NUMBERS = (
    *(*WORDS["number"], *WORDS["tens"]),
    *((f"{ten}-{u}", f"{v}und{zehn}") for ten, zehn in WORDS["tens"] for u, v in UNITS),
)
FINITE = {
    verb: tuple(forms.split()) for verb, forms in WORDS["finite"] + WORDS["modals"]
}
MODALS = tuple(verb for verb, _ in WORDS["modals"])
ENDINGS = _read(lexicon.ENDINGS, lambda row, _: row)
NOUNS = _read(lexicon.NOUNS, _read_noun)
VERBS = _read(lexicon.VERBS, _read_verb)
# The adjectives that describe a class, in English and German.
ADJECTIVES = dict(WORDS["adjective"])
DESCRIPTIONS = _read(lexicon.DESCRIPTIONS, lambda word, _: (word, ADJECTIVES[word]))
ANIMAL_VERBS = frozenset(lexicon.ANIMAL_VERBS.split(", "))


@cache
def ending(like: str, case: str, gender: str) -> str:
    """Look up an ending, or a whole article, in a section of lexicon.ENDINGS."""
    row = ENDINGS[like][CASES.index(case)].split(" ")
    return row["mfnp".index(gender)].strip("-")


@cache
def inflected(adjective: str, like: str, case: str, gender: str) -> str:
    """Add an ending to a German adjective: "dunkel", "teuer" and "müde" lose an e."""
    stem = re.sub("e$|e(?=l$)|(?<=eu)e(?=r$)", "", adjective)
    return stem + ending(like, case, gender)
