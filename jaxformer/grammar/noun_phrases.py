"""Noun phrases and prepositional phrases of the built-in corpus.

A phrase is built in both languages at once, in the case that its verb or preposition
governs, so the two sides cannot disagree. `clauses` puts phrases together.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from jaxformer.grammar import lexicon
from jaxformer.grammar.lexicon import ENDINGS, NOUNS, WORDS, Noun

T = TypeVar("T")


class Phrase(NamedTuple):
    """A piece of a sentence in both languages, and what it contains."""

    english: str
    german: str
    tags: frozenset[str] = frozenset()  # names of phenomena
    pairs: tuple[tuple[str, str], ...] = ()  # (adjective, noun), (verb, object)
    agreement: int = 2  # of a subject: 0 ich, 1 du, 2 er, 3 wir or sie
    gender: str = ""  # of a noun phrase: "m", "f", "n", "p" for every plural
    kind: str = "person"  # the class of its noun
    kinds: tuple[str, ...] = ()  # after a preposition: the classes of nouns to follow


Choice = Phrase | list  # a list holds choices, all equally likely
NOTHING = Phrase("", "")
CASE_OF = {"location": "dative", "direction": "accusative", "comparative": "nominative"}
CONTRACTIONS = {
    **{"in dem": "im", "in das": "ins", "an dem": "am"},
    **{"zu dem": "zum", "zu der": "zur", "von dem": "vom"},
}


def words(*parts: str) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(filter(None, parts))


def word(english: str, german: str, *tags: str) -> Phrase:
    return Phrase(english, german, frozenset(tags))


def tags_of(**facts: object) -> frozenset[str]:
    return frozenset(name for name, holds in facts.items() if holds)


def join(first: Phrase, *rest: Phrase) -> Phrase:
    """Join phrases in one order for both languages; the result agrees as the first."""
    parts = (first, *rest)
    return first._replace(
        english=words(*[part.english for part in parts]),
        german=words(*[part.german for part in parts]),
        tags=first.tags.union(*[part.tags for part in rest]),
        pairs=tuple(pair for part in parts for pair in part.pairs),
    )


def prepositional(preposition: Phrase, phrase: Phrase) -> Phrase:
    """Put a preposition before a noun phrase; it contracts with a definite article."""
    first, _, rest = phrase.german.partition(" ")
    start = f"{preposition.german} {first}"
    return phrase._replace(
        english=words(preposition.english, phrase.english),
        german=words(CONTRACTIONS.get(start, start), rest),
        tags=phrase.tags | preposition.tags,
    )


def _read_phrases(entry: str) -> Iterator[Choice]:
    if entry.startswith("<"):
        yield PHRASES[entry.strip("<>")]
        return
    forms, _, names = entry.partition(" : ")
    row = re.search("{(.+?)}", forms)
    english, german = re.sub("{.+?}", "{}", forms).split(" = ")
    names = names.split()
    kinds = tuple(name for name in names if name in NOUNS)
    agreement = int(next(filter(str.isdigit, names), 2))
    tags = frozenset(name for name in names if name not in kinds and name.isalpha())
    for one, other in WORDS[row[1]] if row else [("", "")]:
        both = english.strip("-").format(one), german.strip("-").format(other)
        yield Phrase(*both, tags, agreement=agreement, kinds=kinds)


PHRASES: dict[str, list[Choice]] = {}
for _name, _entries in lexicon.read_table("phrases").items():
    PHRASES[_name] = [choice for entry in _entries for choice in _read_phrases(entry)]


class Determiner(NamedTuple):
    """A determiner; [endings] lists its endings and those of an adjective after it."""

    english: str
    stem: str
    endings: str
    adjective_endings: str
    is_plural: bool
    tags: frozenset[str]


def _read_determiners(entry: str, _: str) -> list[Determiner]:
    row, endings, adjectives, number, *tags = entry.split()
    shared = endings, adjectives, number == "plural", frozenset(tags)
    return [Determiner(*pair, *shared) for pair in WORDS[row]]


DETERMINERS = {
    name: list(chain.from_iterable(entries))
    for name, entries in lexicon.read_table("determiners", _read_determiners).items()
}
POOLS = lexicon.read_table("pools", lambda name, _: DETERMINERS[name])


def decline(
    noun: Noun,
    case: str,
    determiner: Determiner,
    adjective: Sequence[str] = (),
    verb: str = "",
) -> Phrase:
    """Put a determiner and a noun in a case, perhaps with an adjective between them.

    The adjective is given in both languages. With a `verb`, in English, verb and noun
    are a combination that may be held out.
    """
    gender = "p" if determiner.is_plural else noun.gender
    article = determiner.stem + ENDINGS[determiner.endings, case, gender]
    english = [noun.english_plural if gender == "p" else noun.english]
    german = [noun.forms[gender, case]]
    pairs = [(verb, noun.english)] if verb else []
    if adjective:
        english.insert(0, adjective[0])
        # "dunkel", "teuer" and "müde" lose an e.
        stem = re.sub("e$|e(?=l$)|(?<=eu)e(?=r$)", "", adjective[1])
        german.insert(0, stem + ENDINGS[determiner.adjective_endings, case, gender])
        pairs.insert(0, (adjective[0], noun.english))
    is_before_vowel = determiner.english == "a" and english[0][0] in "aeiou"
    facts = {
        case: case != "nominative",
        "weak_noun": case != "nominative" and noun.is_weak and gender == "m",
        "adjective": adjective,
        "plural": gender == "p",
        "mass_noun": not noun.english_plural,
    }
    return Phrase(
        words("an" if is_before_vowel else determiner.english, *english),
        words(article, *german),
        determiner.tags | tags_of(**facts),
        tuple(pairs),
        agreement=3 if gender == "p" else 2,
        gender=gender,
        kind=noun.kind,
    )


class Draw(NamedTuple):
    """Random choices for a clause.

    The stream is `random.Random.random`: Python promises its sequence for a seed, and
    promises nothing for `choice` or `shuffle`.
    """

    random: Callable[[], float]
    negated: bool = False
    brief: bool = False  # one of several clauses: keep its phrases short

    def one_of(self, items: Sequence[T]) -> T:
        """Choose one of the items, all equally likely."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def noun(self, *kinds: str) -> Noun:
        """Choose a noun of one of the classes."""
        return self.one_of(NOUNS[self.one_of(kinds)])

    def phrase(
        self,
        noun: Noun,
        case: str,
        pools: str = "any",
        owner: float = 0,
        verb: str = "",
    ) -> Phrase:
        """Put a noun in a case, with a determiner and perhaps an adjective.

        Under negation an indefinite phrase becomes "kein ...". `pools` is a row of
        [pools], `owner` the probability of a genitive: "the man's car".
        """
        if not noun.english_plural:
            pools = "singular" if pools == "with article" else "mass"
        elif self.negated and pools == "any":
            pools = "plain"
        determiner = self.one_of(self.one_of(POOLS[pools]))
        is_indefinite = determiner.english in ("a", "")
        is_described = self.chance(0.12 if self.brief else 0.3)
        adjective = self.one_of(lexicon.DESCRIPTIONS[noun.kind]) if is_described else ()
        if not (is_indefinite or self.brief) and self.chance(owner):
            brief = self._replace(brief=True)
            whose = brief.phrase(self.noun("person"), "genitive", "singular")
            (the,) = DETERMINERS["the plural" if determiner.is_plural else "the"]
            determiner = the._replace(english=f"{whose.english}'s")
            owned = decline(noun, case, determiner, adjective, verb)
            return join(owned, whose._replace(english=""))
        if is_indefinite and self.negated:
            kein = {"stem": "kein", "endings": "ein-", "adjective_endings": "mixed"}
            determiner = determiner._replace(**kein)
        return decline(noun, case, determiner, adjective, verb)

    def among(self, choice: Choice, verb: str = "") -> Phrase:
        """Choose among choices, down to one phrase.

        With a `verb`, in English, the noun after a preposition may be held out.
        """
        while isinstance(choice, list):
            choice = self.one_of(choice)
        if not choice.kinds:
            return choice
        (tag,) = choice.tags
        noun, case = self.noun(*choice.kinds), CASE_OF.get(tag, tag)
        return prepositional(choice, self.phrase(noun, case, "definite", verb=verb))
