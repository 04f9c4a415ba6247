"""The words of the built-in corpus and their forms, read from `words.ini`.

A gender is "m", "f", "n", or "p" for every plural. Finite verbs are indexed by
agreement: 0 for ich, 1 for du, 2 for er, 3 for wir and sie.
"""

import re
from collections.abc import Callable
from configparser import ConfigParser
from importlib.resources import files
from itertools import product
from typing import NamedTuple

CASES = ("nominative", "accusative", "dative", "genitive")
INSEPARABLE = ("be", "ge", "ver", "er", "zer", "ent")

_FILE = ConfigParser(delimiters=":", interpolation=None)
_FILE.read_string(files(__package__).joinpath("words.ini").read_text("utf-8"))


class Noun(NamedTuple):
    """One noun; a mass noun has no plural."""

    english: str
    english_plural: str
    gender: str
    forms: dict[tuple[str, str], str]  # (gender, case) -> German form
    kind: str  # its class, a row of [nouns]
    is_weak: bool


class Verb(NamedTuple):
    """One verb and what it governs."""

    english: str
    third: str  # the English third person singular
    past: str  # empty: never used in the past
    finite: list[str]  # without the separable prefix
    prefix: str  # separable, empty if there is none
    infinitive: str  # without the prefix
    participle: str
    auxiliary: str  # "haben" or "sein"
    governs: str  # a row of [verbs]
    objects: tuple[str, ...]  # classes of nouns
    preposition: str
    case: str  # of the object


def read_table(
    table: str, read: Callable[[str, str], object] = lambda entry, _: entry
) -> dict[str, list]:
    """Return the entries of every row; `read` gets an entry and the name of its row."""
    rows: dict[str, list] = {}
    for name, text in _FILE.items(table):
        rows[name] = []
        for entry in " ".join(text.split()).split(", "):
            words, _, times = entry.partition(" *")
            rows[name] += [read(words, name)] * int(times or 1)
    return rows


def english_form(word: str, ending: str) -> str:
    """Add a regular ending, "s" or "ed", to an English word."""
    if re.search("[^aeiou]y$", word):
        word = word[:-1] + "ie"
    elif ending == "s" and re.search("(s|x|ch|sh|[^aeiou]o)$", word):
        word += "e"
    return (word if ending == "s" else word.removesuffix("e")) + ending


def _read_noun(entry: str, kind: str) -> Noun:
    english, article, singular, plural, *_ = [*entry.split(), ""]
    english, _, english_plural = english.partition("/")
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    # A masculine with a plural in -n or -en is weak: all its other forms are the same.
    is_weak = gender == "m" and plural in (singular + "n", singular + "en")
    is_short = len(re.findall("[aeiouyäöü]+", singular.lower())) == 1
    genitive = singular + ("" if gender == "f" else "es" if is_short else "s")
    others = [plural] * 3 if is_weak else [singular, singular, genitive]
    dative = re.sub("([^ns])$", r"\1n", plural)
    forms = [singular, *others, plural, plural, dative, plural]
    return Noun(
        english,
        (english_plural or english_form(english, "s")) if plural else "",
        gender,
        dict(zip(product((gender, "p"), CASES), forms, strict=True)),
        kind,
        is_weak,
    )


def _read_verb(entry: str, governs: str) -> Verb:
    words, objects, preposition = [*entry.split(" : "), "", ""][:3]
    english, german = words.split(" = ")
    base, *particle = english.split()
    base, _, past = base.partition("/")
    third = {"have": "has"}.get(base) or english_form(base, "s")
    past = past.strip("-") if past else english_form(base, "ed")
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
        *(" ".join([form, *particle]) for form in (base, third, past)),
        FINITE.get(infinitive, [stem + "e", du, er, infinitive]),
        prefix,
        infinitive,
        participle,
        auxiliary,
        governs,
        tuple(objects.split()),
        preposition,
        case or ("dative" if governs == "dative" else "accusative"),
    )


def _read_words(entry: str, _: str) -> tuple[str, ...]:
    return tuple(word.strip("-") for word in entry.split(" = "))


WORDS = read_table("words", _read_words)
# The numbers from 2 to 99; German says the units first.
WORDS["number"] = WORDS["numeral"] + WORDS["teens"] + WORDS["tens"]
WORDS["number"] += [
    (f"{ten}-{unit}", f"{einer}und{zehner}")
    for ten, zehner in WORDS["tens"]
    for unit, einer in [("one", "ein"), *WORDS["numeral"][:8]]
]
MODALS = tuple(verb for verb, _ in WORDS["modals"])
FINITE = {verb: forms.split() for verb, forms in WORDS["finite"] + WORDS["modals"]}
# (declension, case, gender) -> article or ending
ENDINGS = {
    (name, case, gender): form.strip("-")
    for name, row in read_table("endings").items()
    for case, forms in zip(CASES, row, strict=True)
    for gender, form in zip("mfnp", forms.split(), strict=True)
}
NOUNS = read_table("nouns", _read_noun)
VERBS = read_table("verbs", _read_verb)
# The adjectives that describe a class, in English and German.
ADJECTIVES = dict(WORDS["adjective"])
DESCRIPTIONS = read_table("descriptions", lambda word, _: (word, ADJECTIVES[word]))
