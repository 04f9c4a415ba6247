"""Predicates of the built-in corpus: a verb and what it governs.

Each function below builds one kind of predicate for a scene: "buys a red car for the
child", "gives her the book", "goes into the garden", "is tired". `clauses` adds tense,
adverbs, negation and word order.
"""

from typing import NamedTuple

from jaxformer.data.grammar.adjectives import DESCRIPTIONS
from jaxformer.data.grammar.determiners import (
    ANY,
    DEFINITES,
    NUMBER_WORDS,
    PLAIN,
    Determiner,
)
from jaxformer.data.grammar.nouns import LEXICON as NOUNS
from jaxformer.data.grammar.nouns import Noun
from jaxformer.data.grammar.phrases import (
    NOTHING,
    Draw,
    Phrase,
    noun_phrase,
    object_pronoun,
    prepositional,
)
from jaxformer.data.grammar.verbs import ANIMAL_VERBS, MODALS, Verb
from jaxformer.data.grammar.verbs import LEXICON as VERBS

# A modal is a tense of its own here; copulas take only the modal "will".
TENSES = ("present",) * 6 + ("past",) * 4 + tuple(MODALS)
COPULA_TENSES = ("present", "present", "past", "will")


class Scene(NamedTuple):
    """What a predicate must know about the clause it is built for."""

    draw: Draw
    subject: Phrase
    negated: bool
    brief: bool  # one of several clauses: keep its phrases short

    def phrase(
        self,
        noun: Noun,
        case: str,
        *,
        pools: tuple[tuple[Determiner, ...], ...] = ANY,
        owner: float = 0.0,
    ) -> Phrase:
        """A noun phrase that suits the clause's length and negation."""
        return noun_phrase(
            self.draw,
            noun,
            case,
            pools=PLAIN if self.negated and pools is ANY else pools,
            negated=self.negated,
            adjective=0.12 if self.brief else 0.3,
            owner=0.0 if self.brief or self.negated else owner,
        )

    def definite(self, noun: Noun, case: str) -> Phrase:
        """A definite phrase, which a negation leaves alone."""
        return self.phrase(noun, case, pools=DEFINITES)


class Predicate(NamedTuple):
    """A verb and what it governs, in the order of the German middle field."""

    verb: Verb
    early: Phrase = NOTHING  # a pronoun or a receiver: before any adverb
    object: Phrase = NOTHING  # "nicht" follows it
    tail: Phrase = NOTHING  # what "nicht" precedes
    tenses: tuple[str, ...] = TENSES
    pairs: tuple[tuple[str, str], ...] = ()


BE = VERBS["existing"][0]
OBJECT_VERBS = VERBS["accusative"] + VERBS["dative"] + VERBS["prepositional"]
CITIES = (
    *(("Berlin", "Berlin"), ("Vienna", "Wien"), ("Munich", "München")),
    *(("Cologne", "Köln"), ("Hamburg", "Hamburg"), ("Rome", "Rom")),
)
MANNERS = (
    *(("quietly", "leise"), ("slowly", "langsam"), ("well", "gut")),
    *(("badly", "schlecht"), ("alone", "allein"), ("happily", "fröhlich")),
)
# English preposition, German preposition, what the place may be.
INSIDE = ("in", "in", ("place", "room"))
AT = ("at", "an", ("entrance",))
OUTSIDE = (("behind", "hinter"), ("in front of", "vor"), ("next to", "neben"))
AT_FURNITURE = (("on", "auf"), ("under", "unter"), *OUTSIDE[::2])
PREPOSITION_CASES = {
    **{"auf": "accusative", "an": "accusative", "über": "accusative"},
    **{"von": "dative", "nach": "dative"},
}


def _verb(scene: Scene, verbs: tuple[Verb, ...]) -> Verb:
    """One of the verbs that suits the scene's subject."""
    if scene.subject.kind == "animal":
        verbs = tuple(verb for verb in verbs if verb.english in ANIMAL_VERBS)
    return scene.draw.one_of(verbs)


def _noun(draw: Draw, kinds: tuple[str, ...]) -> Noun:
    return draw.one_of(NOUNS[draw.one_of(kinds)])


def transitive(scene: Scene) -> Predicate:
    """A verb with one object: in the accusative, the dative or a preposition's case."""
    verb = _verb(scene, OBJECT_VERBS)
    if verb.preposition:
        return _with_prepositional_object(scene, verb)
    noun = _noun(scene.draw, verb.objects)
    if noun.kind == "person" and scene.draw.chance(0.3):
        pronoun = object_pronoun(scene.draw, verb.governs, scene.subject)
        return Predicate(verb, early=pronoun)
    tail = NOTHING
    if not scene.brief and scene.draw.chance(0.15):
        tail = scene.draw.one_of((place_of, _beneficiary, _company))(scene)
    return Predicate(
        verb,
        object=scene.phrase(noun, verb.governs, owner=0.12),
        tail=tail,
        pairs=((verb.english, noun.english),),
    )


def _with_prepositional_object(scene: Scene, verb: Verb) -> Predicate:
    noun = _noun(scene.draw, verb.objects)
    # The English preposition is part of the verb's name, so none is added here.
    phrase = scene.definite(noun, PREPOSITION_CASES[verb.preposition])
    joined = prepositional("", verb.preposition, phrase)
    return Predicate(verb, tail=joined, pairs=((verb.english, noun.english),))


def ditransitive(scene: Scene) -> Predicate:
    """A verb with a dative receiver before its accusative object."""
    verb = scene.draw.one_of(VERBS["ditransitive"])
    noun = _noun(scene.draw, verb.objects)
    if scene.draw.chance(0.3):
        receiver = object_pronoun(scene.draw, "dative", scene.subject)
    else:
        person = scene.draw.one_of(NOUNS["person"])
        receiver = scene.definite(person, "dative")
    # Without an article, "her old books" would read as one phrase.
    given = scene.phrase(noun, "accusative", pools=PLAIN[:-1])
    return Predicate(
        verb, object=given, pairs=((verb.english, noun.english),), early=receiver
    )


def intransitive(scene: Scene) -> Predicate:
    """A verb alone, or with manner, company or a place."""
    kind = scene.draw.one_of(("activity", "state", "separable"))
    verb = _verb(scene, VERBS[kind])
    if kind == "separable" or scene.draw.chance(0.5 if scene.brief else 0.25):
        return Predicate(verb)
    if kind == "activity" and scene.draw.chance(0.5):
        return Predicate(verb, tail=scene.draw.one_of((_manner, _company))(scene))
    return Predicate(verb, tail=place_of(scene))


def motion(scene: Scene) -> Predicate:
    """Going somewhere: in + accusative, zu + dative, or nach."""
    verb = _verb(scene, VERBS["motion"])
    draw = scene.draw
    if draw.chance(0.25):
        english, german = draw.one_of((("home", "Hause"), *CITIES))
        english = english if english == "home" else f"to {english}"
        return Predicate(verb, tail=Phrase(english, f"nach {german}"))
    noun = _noun(draw, ("place", "place", "room"))
    if draw.chance(0.5):
        goal = prepositional(
            "into", "in", scene.definite(noun, "accusative"), "direction"
        )
    else:
        goal = prepositional("to", "zu", scene.definite(noun, "dative"))
    return Predicate(verb, tail=goal, pairs=((verb.english, noun.english),))


def placing(scene: Scene) -> Predicate:
    """Moving a thing to a place: a two-way preposition with the accusative."""
    verb = scene.draw.one_of(VERBS["placing"])
    noun = _noun(scene.draw, verb.objects)
    english, german = scene.draw.one_of(AT_FURNITURE)
    place = scene.definite(scene.draw.one_of(NOUNS["furniture"]), "accusative")
    return Predicate(
        verb,
        object=scene.phrase(noun, "accusative"),
        tail=prepositional(english, german, place, "direction"),
        pairs=((verb.english, noun.english),),
    )


def being(scene: Scene) -> Predicate:
    """To be tired, or to be in the garden."""
    if scene.subject.kind in ("person", "animal", "vehicle", "") and scene.draw.chance(
        0.3
    ):
        return Predicate(BE, tail=place_of(scene), tenses=COPULA_TENSES)
    adjective = scene.draw.one_of(DESCRIPTIONS[scene.subject.kind or "person"])
    state = Phrase(adjective.english, adjective.german)
    return Predicate(BE, tail=state, tenses=COPULA_TENSES)


def lying(scene: Scene) -> Predicate:
    """A thing "is" or "lies" somewhere: a two-way preposition with the dative."""
    verb = scene.draw.one_of((BE, VERBS["lying"][0]))
    english, german = scene.draw.one_of(AT_FURNITURE)
    place = scene.definite(scene.draw.one_of(NOUNS["furniture"]), "dative")
    return Predicate(
        verb,
        tail=prepositional(english, german, place, "location"),
        tenses=COPULA_TENSES,
    )


def costing(scene: Scene) -> Predicate:
    """A thing "costs forty-five euros"."""
    english, german = scene.draw.one_of(NUMBER_WORDS)
    price = Phrase(f"{english} euros", f"{german} Euro", tags=frozenset(["number"]))
    return Predicate(VERBS["costing"][0], tail=price, tenses=("present", "will"))


def ageing(scene: Scene) -> Predicate:
    """A person "is forty-five years old"."""
    english, german = scene.draw.one_of(NUMBER_WORDS)
    age = Phrase(
        f"{english} years old", f"{german} Jahre alt", tags=frozenset(["number"])
    )
    return Predicate(BE, tail=age, tenses=COPULA_TENSES)


def place_of(scene: Scene) -> Phrase:
    """Where something happens: a two-way preposition with the dative."""
    draw = scene.draw
    if draw.chance(0.1):
        english, german = draw.one_of(CITIES)
        return Phrase(f"in {english}", f"in {german}")
    if draw.chance(0.6):
        english, german, kinds = INSIDE
    elif draw.chance(0.3):
        english, german, kinds = AT
    else:
        english, german = draw.one_of(OUTSIDE)
        kinds = ("place", "landmark", "vehicle")
    place = scene.definite(_noun(draw, kinds), "dative")
    return prepositional(english, german, place, "location")


def _company(scene: Scene) -> Phrase:
    noun = _noun(scene.draw, ("person", "person", "animal"))
    return prepositional("with", "mit", scene.definite(noun, "dative"))


def _beneficiary(scene: Scene) -> Phrase:
    person = scene.draw.one_of(NOUNS["person"])
    return prepositional("for", "für", scene.definite(person, "accusative"))


def _manner(scene: Scene) -> Phrase:
    english, german = scene.draw.one_of(MANNERS)
    return Phrase(english, german)


# What a person, an animal or a thing may do, the likelier the more often it is named.
PERSON_PREDICATES = (
    *(transitive,) * 12,
    *(ditransitive,) * 3,
    *(intransitive,) * 5,
    *(motion,) * 4,
    placing,
    *(being,) * 3,
)
BRIEF_PREDICATES = (*(transitive,) * 6, *(intransitive,) * 3, motion, being, being)
ANIMAL_PREDICATES = (*(transitive,) * 2, *(intransitive,) * 2, motion, being)
THING_PREDICATES = (being, lying, lying, costing)
VEHICLE_PREDICATES = (being, being, being, costing)


def predicate(scene: Scene) -> Predicate:
    """A predicate that suits the scene's subject."""
    builders = {
        "animal": ANIMAL_PREDICATES,
        "thing": THING_PREDICATES,
        "clothes": THING_PREDICATES,
        "vehicle": VEHICLE_PREDICATES,
    }.get(scene.subject.kind)
    if builders is None:
        builders = BRIEF_PREDICATES if scene.brief else PERSON_PREDICATES
    return scene.draw.one_of(builders)(scene)
