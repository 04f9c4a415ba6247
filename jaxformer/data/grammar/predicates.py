"""What subjects do in the built-in corpus: verbs, objects, places, prices, adverbs.

`clause` draws what suits each other. What a tuple names more often is likelier.
"""

from typing import NamedTuple

from jaxformer.data.grammar import inflection, phrases
from jaxformer.data.grammar.clauses import Clause
from jaxformer.data.grammar.inflection import MODALS, NUMBERS, VERBS, WORDS, Verb
from jaxformer.data.grammar.phrases import NOTHING, Draw, Phrase, fixed

# A modal verb is a tense of its own here. Some verbs, by what they govern, have fewer.
TENSES = ("present",) * 6 + ("past",) * 4 + MODALS
TENSES_OF = {
    **dict.fromkeys(("being", "lying"), ("present", "present", "past", "will")),
    "costing": ("present", "will"),
    **dict.fromkeys(("reporting", "planning"), ("present",)),
}
TIMES = {tense: fixed(WORDS["modal" if tense in MODALS else tense]) for tense in TENSES}
FREQUENCIES, NAMES = fixed(WORDS["frequency"]), fixed(WORDS["name"])
PRONOUNS = tuple(
    Phrase(english, german[:-2], frozenset(["pronoun"]), agreement=int(german[-1]))
    for english, german in WORDS["pronoun"]
)
OBJECT_PRONOUNS = {
    case: fixed(WORDS[case], "{} = {}", "pronoun", case)
    for case in ("accusative", "dative")
}
SUBJECTS = ("person",) * 16 + ("animal", "thing", "clothes", "vehicle") * 2


class Place(NamedTuple):
    """A preposition with its case, and the classes of nouns that may follow it."""

    english: str
    german: str
    case: str
    kinds: tuple[str, ...]
    tags: tuple[str, ...] = ()


def _places(section: str, case: str, *kinds: str) -> tuple[Place, ...]:
    """Make places of two-way prepositions: dative location, accusative direction."""
    tags = ({"dative": "location", "accusative": "direction"}[case],)
    return tuple(Place(*pair, case, kinds, tags) for pair in WORDS[section])


CITIES = WORDS["city"]
PLACES = (
    fixed(CITIES, "in {} = in {}"),
    *_places("in", "dative", "place") * 6,
    *_places("at", "dative", "entrance"),
    *_places("near", "dative", "place", "landmark", "vehicle"),
)
GOALS = (
    (Phrase("home", "nach Hause"), *fixed(CITIES, "to {} = nach {}")),
    *_places("into", "accusative", "place") * 2,
    *(Place("to", "zu", "dative", ("place",)),) * 2,
)
WITH = Place("with", "mit", "dative", ("person", "person", "animal"))
ADJUNCTS = (PLACES, WITH, Place("for", "für", "accusative", ("person",)))
# What may follow a verb, by what it governs: phrases, places, or tuples of them.
TAILS = {
    **dict.fromkeys(("accusative", "dative"), (NOTHING,) * 17 + ADJUNCTS),
    "activity": (NOTHING, WITH, fixed(WORDS["manner"]), PLACES, PLACES),
    "state": (NOTHING, PLACES, PLACES, PLACES),
    "motion": GOALS,
    "placing": _places("onto", "accusative", "furniture"),
    "lying": _places("on", "dative", "furniture"),
    "costing": fixed(NUMBERS, "{} euros = {} Euro", "number"),
}
AGES = fixed(NUMBERS, "{} years old = {} Jahre alt", "number")


def _states(kind: str) -> tuple:
    """What may follow "be": tired, older than the king, twenty years old, in Rome."""
    comparisons = tuple(
        Place(
            f"{english} than", f"{german} als", "nominative", (kind,), ("comparative",)
        )
        for english, german in WORDS.get(f"compare {kind}", ())
    )
    states = (fixed(inflection.DESCRIPTIONS[kind]),) * 6
    states += (comparisons,) * 2 if comparisons else ()
    states += (PLACES,) * 3 if kind in ("person", "animal", "vehicle") else ()
    return (*states, AGES) if kind == "person" else states


STATES = {kind: _states(kind) for kind in inflection.NOUNS}
OBJECT_VERBS = VERBS["accusative"] + VERBS["dative"]
INTRANSITIVE = VERBS["activity"] + VERBS["state"] + VERBS["alone"]
PURPOSES = (
    *(OBJECT_VERBS + VERBS["prepositional"] + INTRANSITIVE),
    *(VERBS["ditransitive"] + VERBS["motion"] * 3 + VERBS["placing"]),
)
ANIMAL_ACTIONS = tuple(v for v in PURPOSES if v.english in inflection.ANIMAL_VERBS)
# What a subject of a class may do.
ACTIONS = {
    "person": PURPOSES + VERBS["being"] * 24,
    "animal": ANIMAL_ACTIONS + VERBS["being"] * 4,
    "thing": VERBS["being"] + VERBS["lying"] + VERBS["costing"],
    "clothes": VERBS["being"] + VERBS["lying"] + VERBS["costing"],
    "vehicle": VERBS["being"] * 3 + VERBS["costing"],
}


def draw_tail(draw: Draw, verb: Verb, choice: Phrase | Place | tuple) -> Phrase:
    """Choose among what may follow a verb, down to one phrase."""
    while not isinstance(choice, Phrase | Place):
        choice = draw.one_of(choice)
    if isinstance(choice, Phrase):
        return choice
    # The goal of a motion may be held out for the split "unseen", other places not.
    name = verb.english if verb.governs == "motion" else ""
    noun = draw.noun(*choice.kinds)
    place = draw.phrase(noun, choice.case, phrases.DEFINITE, verb=name)
    return phrases.prepositional(choice.english, choice.german, place, *choice.tags)


def _complements(draw: Draw, verb: Verb, subject: Phrase) -> dict[str, Phrase]:
    """Draw what follows a verb, by the names of the fields of `Clause`."""
    name, case = verb.english, verb.case
    tails = TAILS.get(verb.governs, (NOTHING,))
    tails = STATES[subject.kind] if verb.governs == "being" else tails
    if draw.brief and tails[0] is NOTHING and draw.chance(0.4):
        tails = tails[:1]
    if not verb.objects:
        return {"tail": draw_tail(draw, verb, tails)}
    noun = draw.noun(*verb.objects)
    if verb.preposition:
        about = draw.phrase(noun, case, phrases.DEFINITE, verb=name)
        return {"tail": phrases.prepositional("", verb.preposition, about)}
    is_ditransitive = verb.governs == "ditransitive"
    pronouns = OBJECT_PRONOUNS["dative" if is_ditransitive else case]
    # The first three would be reflexive after "I", "you" and "we".
    is_first = subject.english in ("I", "you", "we")
    pronoun = draw.one_of(pronouns[3:] if is_first else pronouns)
    is_pronoun = draw.chance(0.3)
    if is_ditransitive:
        person = draw.phrase(draw.noun("person"), "dative", phrases.DEFINITE)
        # Without an article, "her old books" would read as one phrase.
        given = draw.phrase(noun, case, phrases.WITH_ARTICLE, verb=name)
        return {"early": pronoun if is_pronoun else person, "object": given}
    if noun.kind == "person" and is_pronoun:
        return {"early": pronoun}
    thing = draw.phrase(noun, case, owner=0.12, verb=name)
    return {"object": thing, "tail": draw_tail(draw, verb, tails)}


def _subject(draw: Draw, kinds: tuple[str, ...]) -> Phrase:
    """Draw a pronoun, a name, or a noun of the classes."""
    if draw.chance(0.45 if draw.brief else 0.3):
        return draw.one_of(PRONOUNS)
    if draw.chance(0.08):
        return draw.one_of(NAMES)
    pools = phrases.PLAIN if draw.negated else phrases.ANY
    plain = draw._replace(negated=False)
    return plain.phrase(draw.noun(*kinds), "nominative", pools, owner=0.06)


def _is_clear(verb: Verb, tense: str, subject: Phrase, *, negated: bool) -> bool:
    """Whether a verb in a tense has one translation."""
    if negated and tense == "must":
        return False  # "must not" forbids, "muss nicht" permits
    if verb.past == verb.english and tense == "present":
        return subject.agreement == 2 or negated  # "they read" is also the past
    return tense != "past" or verb.past not in ("", verb.english)


def clause(
    draw: Draw,
    *,
    about: Phrase | None = None,
    verbs: tuple[Verb, ...] = (),
    tenses: tuple[str, ...] = TENSES,
    negation: float = 0.15,
    adverbs: float = 0.2,
    brief: bool = False,
) -> Clause:
    """Draw a clause with a subject and a verb that suit each other.

    The subject is `about`, or a person if `verbs` are given. `negation` and `adverbs`
    are probabilities; a negated clause has no adverb of frequency.
    """
    draw = Draw(draw.random, draw.chance(negation), brief)
    subject = about or _subject(draw, ("person",) if verbs else SUBJECTS)
    while True:
        verb = draw.one_of(verbs or ACTIONS[subject.kind])
        tense = draw.one_of(TENSES_OF.get(verb.governs, TENSES))
        if tense in tenses and _is_clear(verb, tense, subject, negated=draw.negated):
            break
    parts = _complements(draw, verb, subject)
    if draw.chance(adverbs):
        if draw.negated or draw.chance(0.6):
            parts["time"] = draw.one_of(TIMES[tense])
        else:
            parts["frequency"] = draw.one_of(FREQUENCIES)
    return Clause(subject, verb, tense, draw.negated, **parts)
