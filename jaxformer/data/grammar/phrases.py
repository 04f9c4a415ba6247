"""Noun phrases and prepositional phrases of the built-in corpus.

A phrase is built in both languages at once, in the case that its verb or preposition
governs, so the two sides cannot disagree. `clauses` puts phrases together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from jaxformer.data.grammar import inflection
from jaxformer.data.grammar.inflection import WORDS, Noun, ending, inflected

Item = TypeVar("Item")


class Phrase(NamedTuple):
    """A piece of a sentence in both languages, and what it contains."""

    english: str
    german: str
    tags: frozenset[str] = frozenset()  # names of phenomena
    pairs: tuple[tuple[str, str], ...] = ()  # (adjective, noun), (verb, object)
    agreement: int = 2  # of a subject: 0 ich, 1 du, 2 er, 3 wir or sie
    gender: str = ""  # of a noun phrase: "m", "f", "n", "p" for every plural
    kind: str = "person"  # the class of its noun
    is_negative: bool = False  # carries the clause's negation ("kein")


NOTHING = Phrase("", "")


def words(*parts: str) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(filter(None, parts))


def join(first: Phrase, *rest: Phrase) -> Phrase:
    """Join phrases in one order for both languages; the result agrees as the first."""
    parts = (first, *rest)
    return first._replace(
        english=words(*[part.english for part in parts]),
        german=words(*[part.german for part in parts]),
        tags=first.tags.union(*[part.tags for part in rest]),
        pairs=tuple(pair for part in parts for pair in part.pairs),
    )


def fixed(
    pairs: Iterable[tuple[str, str]], form: str = "{} = {}", *tags: str
) -> tuple[Phrase, ...]:
    """Make phrases of words; `form` says what to add to both languages."""
    english, german = form.split(" = ")
    return tuple(
        Phrase(english.format(source), german.format(target), frozenset(tags))
        for source, target in pairs
    )


class Determiner(NamedTuple):
    """A determiner; what it and an adjective after it end in is in lexicon.ENDINGS."""

    english: str
    stem: str
    endings: str
    adjective_endings: str
    is_plural: bool = False
    tags: frozenset[str] = frozenset()


def _pool(
    section: str, endings: str, adjectives: str, *tags: str, plural: bool = True
) -> tuple[Determiner, ...]:
    """Make determiners of a section of lexicon.WORDS."""
    shared = endings, adjectives, plural, frozenset(tags)
    return tuple(Determiner(*word, *shared) for word in WORDS[section])


THE, THE_PLURAL = (Determiner("the", "", "der", "weak", p) for p in (False, True))
THIS = Determiner("this", "dies", "dies-", "weak")
THESE = Determiner("these", "dies", "dies-", "weak", is_plural=True)
EVERY = Determiner("every", "jed", "dies-", "weak")
A = Determiner("a", "ein", "ein-", "mixed")
MASS, BARE = (Determiner("", "", "none", "strong", p) for p in (False, True))
MY, OUR = (
    _pool("possessive", "ein-", "mixed", "possessive", plural=p) for p in (False, True)
)
NUMBERS = _pool("number", "none", "strong", "number")[:11]  # up to twelve
QUANTITIES = _pool("quantity", "dies-", "strong")

# A determiner is one of a pool of these: all numbers together are as likely as "every".
SINGULAR = ((THE,), (THE,), (THIS,), MY)
MASSES = (*SINGULAR, (MASS,), (MASS,))
DEFINITE = ((THE,), (THE,), (THE_PLURAL,), (THIS, THESE), MY + OUR)
WITH_ARTICLE = (*DEFINITE, (A,), (A,))
PLAIN = (*WITH_ARTICLE, (BARE,))  # these negate without ambiguity
COUNTED = ((A,), NUMBERS, QUANTITIES)
ANY = (*PLAIN, (EVERY,), NUMBERS, QUANTITIES)


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
    english = [determiner.english]
    german = [determiner.stem + ending(determiner.endings, case, gender)]
    tags, pairs = set(determiner.tags), ()
    if adjective:
        english.append(adjective[0])
        like = determiner.adjective_endings
        german.append(inflected(adjective[1], like, case, gender))
        tags.add("adjective")
        pairs = ((adjective[0], noun.english),)
    english.append(noun.english_plural if gender == "p" else noun.english)
    german.append(noun.forms[gender][case])
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    if case != "nominative":
        tags.update([case, "weak_noun"] if noun.is_weak and gender == "m" else [case])
    if gender == "p":
        tags.add("plural")
    if not noun.english_plural:
        tags.add("mass_noun")
    return Phrase(
        words(*english),
        words(*german),
        frozenset(tags),
        (*pairs, (verb, noun.english)) if verb else pairs,
        agreement=3 if gender == "p" else 2,
        gender=gender,
        kind=noun.kind,
        is_negative=determiner.stem == "kein",
    )


class Draw(NamedTuple):
    """Random choices for a clause.

    The stream is `random.Random.random`: Python promises its sequence for a seed, and
    promises nothing for `choice` or `shuffle`.
    """

    random: Callable[[], float]
    negated: bool = False
    brief: bool = False  # one of several clauses: keep its phrases short

    def one_of(self, items: Sequence[Item]) -> Item:
        """Choose one of the items, all equally likely."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def noun(self, *kinds: str) -> Noun:
        """Choose a noun of one of the classes."""
        return self.one_of(inflection.NOUNS[self.one_of(kinds)])

    def phrase(
        self,
        noun: Noun,
        case: str,
        pools: tuple[tuple[Determiner, ...], ...] = ANY,
        owner: float = 0.0,
        verb: str = "",
    ) -> Phrase:
        """Put a noun in a case, with a determiner and perhaps an adjective.

        Under negation an indefinite phrase becomes "kein ...". `owner` is the
        probability of a genitive: "the man's car".
        """
        pools = PLAIN if self.negated and pools is ANY else pools
        if not noun.english_plural:
            pools = SINGULAR if pools is WITH_ARTICLE else MASSES
        determiner = self.one_of(self.one_of(pools))
        is_indefinite = determiner.english in ("a", "")
        is_described = self.chance(0.12 if self.brief else 0.3)
        adjectives = inflection.DESCRIPTIONS[noun.kind]
        adjective = self.one_of(adjectives) if is_described else ()
        if not (is_indefinite or self.brief) and self.chance(owner):
            brief = self._replace(brief=True)
            whose = brief.phrase(self.noun("person"), "genitive", SINGULAR)
            the = THE_PLURAL if determiner.is_plural else THE
            determiner = the._replace(english=f"{whose.english}'s")
            owned = decline(noun, case, determiner, adjective, verb)
            return join(owned, whose._replace(english=""))
        if is_indefinite and self.negated:
            kein = {"stem": "kein", "endings": "ein-", "adjective_endings": "mixed"}
            determiner = determiner._replace(**kein)
        return decline(noun, case, determiner, adjective, verb)


CONTRACTIONS = {
    **{"in dem": "im", "in das": "ins", "an dem": "am"},
    **{"zu dem": "zum", "zu der": "zur", "von dem": "vom"},
}


def prepositional(english: str, german: str, phrase: Phrase, *tags: str) -> Phrase:
    """Put a preposition before a noun phrase; it contracts with a definite article."""
    first, _, rest = phrase.german.partition(" ")
    start = f"{german} {first}"
    return phrase._replace(
        english=words(english, phrase.english),
        german=words(CONTRACTIONS.get(start, start), rest),
        tags=phrase.tags.union(tags),
    )
