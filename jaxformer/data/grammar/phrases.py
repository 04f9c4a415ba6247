"""Pronouns, noun phrases and prepositional phrases of the built-in corpus.

A phrase is built in both languages at once, in the case its place demands, so the two
sides cannot disagree. `clauses` puts phrases together.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from jaxformer.data.grammar.adjectives import (
    DESCRIPTIONS,
    GENDERS,
    MIXED,
    WEAK,
    Adjective,
)
from jaxformer.data.grammar.determiners import DEFINITE, MASSES, NO, OWNERS, Determiner
from jaxformer.data.grammar.nouns import LEXICON as NOUNS
from jaxformer.data.grammar.nouns import Noun

Item = TypeVar("Item")


class Draw:
    """A stream of choices that depends on its seed alone.

    Only `random.Random.random` is used: Python promises its sequence for a seed and
    a version of the generator, and promises nothing for `choice` or `shuffle`.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def one_of(self, items: Sequence[Item]) -> Item:
        """One of the items, all equally likely."""
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability


class Phrase(NamedTuple):
    """A piece of a sentence in both languages, and what it contains."""

    english: str
    german: str
    agreement: int = 2  # of a subject: 0 ich, 1 du, 2 er, 3 wir or sie
    gender: str = ""  # of a noun phrase: one of GENDERS, "p" for every plural
    kind: str = ""  # of a noun phrase: the class of its noun
    is_negative: bool = False  # carries the clause's negation ("kein")
    tags: frozenset[str] = frozenset()  # names of phenomena
    pairs: tuple[tuple[str, str], ...] = ()  # (adjective, noun), (verb, object)


NOTHING = Phrase("", "")

# ------------------------------------------------------------------ noun phrases

# "I" and "you" come twice: no other subject shows the verb forms they need.
PRONOUNS = (
    *(("I", "ich", 0), ("I", "ich", 0), ("you", "du", 1), ("you", "du", 1)),
    *(("he", "er", 2), ("she", "sie", 2), ("we", "wir", 3), ("they", "sie", 3)),
)
OBJECT_PRONOUNS = (
    ("me", {"accusative": "mich", "dative": "mir"}),
    ("you", {"accusative": "dich", "dative": "dir"}),
    ("us", {"accusative": "uns", "dative": "uns"}),
    ("him", {"accusative": "ihn", "dative": "ihm"}),
    ("her", {"accusative": "sie", "dative": "ihr"}),
    ("them", {"accusative": "sie", "dative": "ihnen"}),
)


def words(*parts: str) -> str:
    """The parts that are not empty, separated by one space."""
    return " ".join([part for part in parts if part])


def subject_pronoun(draw: Draw) -> Phrase:
    """One of the six personal pronouns as a subject."""
    english, german, agreement = draw.one_of(PRONOUNS)
    return Phrase(english, german, agreement, tags=frozenset(["pronoun"]))


def object_pronoun(draw: Draw, case: str, subject: Phrase) -> Phrase:
    """A personal pronoun as an object that never needs to be reflexive."""
    is_person = "pronoun" in subject.tags and subject.english in ("I", "you", "we")
    pool = OBJECT_PRONOUNS[3:] if is_person else OBJECT_PRONOUNS
    english, forms = draw.one_of(pool)
    return Phrase(english, forms[case], tags=frozenset(["pronoun", case]))


def decline(
    noun: Noun,
    case: str,
    determiner: Determiner,
    adjective: Adjective | None,
    *,
    negated: bool,
) -> Phrase:
    """A determiner, an adjective or none, and a noun, in a case.

    Under negation an indefinite phrase becomes "kein ..." and says so.
    """
    gender = "p" if determiner.is_plural else noun.gender
    column = GENDERS.index(gender)
    is_negative = negated and determiner.is_indefinite
    forms = NO if is_negative else determiner.forms
    endings = MIXED if is_negative else determiner.adjective_endings
    core = _core(noun, case, gender, endings[case][column], adjective)
    article = determiner.english
    if article == "a" and core.english[0] in "aeiou":
        article = "an"
    return core._replace(
        english=words(article, core.english),
        german=words(forms[case][column], core.german),
        is_negative=is_negative,
        tags=core.tags | determiner.tags,
    )


def own(
    owner: Phrase, noun: Noun, case: str, adjective: Adjective | None, *, plural: bool
) -> Phrase:
    """An owner and a noun: "the teacher's car", in German with the owner behind.

    `owner` is one person in the genitive.
    """
    gender = "p" if plural else noun.gender
    column = GENDERS.index(gender)
    core = _core(noun, case, gender, WEAK[case][column], adjective)
    return core._replace(
        english=f"{owner.english}'s {core.english}",
        german=f"{DEFINITE[case][column]} {core.german} {owner.german}",
        tags=core.tags | owner.tags,
        pairs=core.pairs + owner.pairs,
    )


def _core(
    noun: Noun, case: str, gender: str, ending: str, adjective: Adjective | None
) -> Phrase:
    """The part of a noun phrase after its determiner."""
    is_plural = gender == "p"
    tags = {case} if case != "nominative" else set()
    if is_plural:
        tags.add("plural")
    elif noun.is_weak and case != "nominative":
        tags.add("weak_noun")
    if noun.is_mass:
        tags.add("mass_noun")
    if adjective:
        tags.add("adjective")
    return Phrase(
        words(
            adjective.english if adjective else "",
            noun.english_plural if is_plural else noun.english,
        ),
        words(
            adjective.stem + ending if adjective else "",
            (noun.plural if is_plural else noun.singular)[case],
        ),
        agreement=3 if is_plural else 2,
        gender=gender,
        kind=noun.kind,
        tags=frozenset(tags),
        pairs=((adjective.english, noun.english),) if adjective else (),
    )


def noun_phrase(
    draw: Draw,
    noun: Noun,
    case: str,
    *,
    pools: tuple[tuple[Determiner, ...], ...],
    negated: bool,
    adjective: float,
    owner: float = 0.0,
) -> Phrase:
    """A noun with a determiner of the pools, in a case.

    `adjective` and `owner` are the probabilities of an adjective and of a genitive.
    """
    determiner = draw.one_of(draw.one_of(MASSES if noun.is_mass else pools))
    described = draw.one_of(DESCRIPTIONS[noun.kind]) if draw.chance(adjective) else None
    if owner and not determiner.is_indefinite and draw.chance(owner):
        person = draw.one_of(NOUNS["person"])
        whose = noun_phrase(
            draw, person, "genitive", pools=OWNERS, negated=False, adjective=0.15
        )
        return own(whose, noun, case, described, plural=determiner.is_plural)
    return decline(noun, case, determiner, described, negated=negated)


# ---------------------------------------------------------- prepositional phrases

CONTRACTIONS = {
    **{"in dem": "im", "in das": "ins", "an dem": "am", "bei dem": "beim"},
    **{"zu dem": "zum", "zu der": "zur", "von dem": "vom"},
}


def prepositional(english: str, german: str, phrase: Phrase, tag: str = "") -> Phrase:
    """A preposition before a noun phrase, contracted with a definite article."""
    first, _, rest = phrase.german.partition(" ")
    joined = f"{german} {first}"
    joined = CONTRACTIONS.get(joined, joined) if rest else joined
    return phrase._replace(
        english=words(english, phrase.english),
        german=words(joined, rest),
        tags=phrase.tags | {tag} if tag else phrase.tags,
    )
