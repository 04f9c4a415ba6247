"""Statements of the built-in corpus: each function below is one pattern.

`questions` holds the patterns that ask. The package draws from both.
"""

from typing import NamedTuple

from jaxformer.data.grammar.adjectives import DESCRIPTIONS, GENDERS
from jaxformer.data.grammar.clauses import ACTORS, Clause, clause, time_of
from jaxformer.data.grammar.determiners import COUNTED, DEFINITES, RELATIVE, A
from jaxformer.data.grammar.nouns import LEXICON as NOUNS
from jaxformer.data.grammar.nouns import Noun
from jaxformer.data.grammar.phrases import NOTHING, Draw, Phrase, noun_phrase
from jaxformer.data.grammar.predicates import (
    BE,
    TENSES,
    Predicate,
    Scene,
    ageing,
    being,
    costing,
    ditransitive,
    intransitive,
    motion,
    place_of,
    placing,
    transitive,
)
from jaxformer.data.grammar.verbs import LEXICON as VERBS
from jaxformer.data.grammar.verbs import Verb

NOT_PAST = tuple(tense for tense in TENSES if tense != "past")
HEADS = (*DEFINITES, (A,), (A,))
PURPOSES = (transitive, transitive, ditransitive, intransitive, motion, placing)

# English and German conjunction, tenses of the subordinate and of the main clause.
CONJUNCTIONS = (
    ("because", "weil", TENSES, TENSES),
    ("because", "weil", TENSES, TENSES),
    ("although", "obwohl", TENSES, TENSES),
    ("if", "wenn", ("present",), NOT_PAST),
    ("when", "wenn", ("present",), ("present",)),
    ("when", "als", ("past",), ("past",)),
    ("before", "bevor", ("present",), ("present", "will")),
    ("before", "bevor", ("past",), ("past",)),
    ("while", "während", ("present",), ("present",)),
    ("while", "während", ("past",), ("past",)),
)


class Sentence(NamedTuple):
    """A sentence in both languages, with its mark, before the capital letter."""

    english: str
    german: str
    tags: frozenset[str]
    pairs: tuple[tuple[str, str], ...]


def sentence(
    english: str, german: str, parts: tuple[Clause | Phrase, ...], *tags: str
) -> Sentence:
    """A sentence with the phenomena and the pairs of its parts."""
    return Sentence(
        english,
        german,
        frozenset(tags).union(*[part.tags for part in parts]),
        tuple(pair for part in parts for pair in part.pairs),
    )


def statement(draw: Draw) -> Sentence:
    """The teacher buys a red car today."""
    main = clause(draw)
    return sentence(f"{main.english()}.", f"{main.german()}.", (main,))


def fronted(draw: Draw) -> Sentence:
    """Today the teacher buys a red car."""
    main = clause(draw, adverbs=0.0)
    time = time_of(draw, main.tense)
    return sentence(
        f"{time.english} {main.english()}.",
        f"{time.german} {main.german_inverted()}.",
        (main,),
        "verb_second",
    )


def subordinate(draw: Draw) -> Sentence:
    """He sleeps because he is tired. Because he is tired, he sleeps."""
    english, german, tenses, main_tenses = draw.one_of(CONJUNCTIONS)
    negation = 0.0 if english == "before" else 0.1  # "before he does not" is odd
    side = clause(draw, tenses=tenses, brief=True, adverbs=0.15, negation=negation)
    main = clause(draw, tenses=main_tenses, brief=True, adverbs=0.15, negation=0.1)
    english = f"{english} {side.english()}"
    german = f"{german} {side.german_final()}"
    if draw.chance(0.6):
        return sentence(
            f"{main.english()} {english}.",
            f"{main.german()}, {german}.",
            (main, side),
            "verb_final",
        )
    return sentence(
        f"{english}, {main.english()}.",
        f"{german}, {main.german_inverted()}.",
        (main, side),
        *("verb_final", "verb_second"),
    )


def _speaker(draw: Draw, verbs: tuple[Verb, ...], negation: float) -> Clause:
    """The start of a sentence that another clause ends: "the teacher hopes"."""
    verb = draw.one_of(verbs)
    return clause(
        draw,
        kinds=ACTORS,
        build=lambda _: Predicate(verb),
        tenses=("present",),
        adverbs=0.0,
        negation=negation,
        brief=True,
    )


def reported(draw: Draw) -> Sentence:
    """The teacher knows that he is tired, or does not know whether he is tired."""
    if draw.chance(0.3):
        english, german = "whether", "ob"
        speaker = _speaker(draw, VERBS["reporting"][:1], negation=1.0)
    else:
        english, german = "that", "dass"
        speaker = _speaker(draw, VERBS["reporting"], negation=0.0)
    content = clause(draw, brief=True, adverbs=0.3, negation=0.15)
    return sentence(
        f"{speaker.english()} {english} {content.english()}.",
        f"{speaker.german()}, {german} {content.german_final()}.",
        (speaker, content),
        "verb_final",
    )


def planned(draw: Draw) -> Sentence:
    """The teacher tries to open the door."""
    planner = _speaker(draw, VERBS["planning"], negation=0.1)
    plan = clause(
        draw,
        about=planner.subject,
        build=lambda scene: draw.one_of(PURPOSES)(scene),
        tenses=("present",),
        adverbs=0.0,
        negation=0.0,
    )
    return sentence(
        f"{planner.english()} {plan.english_infinitive()}.",
        f"{planner.german()}, {plan.german_infinitive()}.",
        (planner, plan),
        "infinitive_clause",
    )


def _about(
    draw: Draw, head: Phrase, side: Clause, english: str, german: str
) -> Sentence:
    """A main clause about a noun phrase that a relative clause describes."""
    described = head._replace(
        english=f"{head.english} {english}", german=f"{head.german}, {german},"
    )
    build = intransitive if head.kind == "person" and draw.chance(0.6) else being
    main = clause(
        draw, about=described, build=build, adverbs=0.0, negation=0.15, brief=True
    )
    return sentence(
        f"{main.english()}.",
        f"{main.german()}.",
        (main, side),
        *("relative_clause", "verb_final"),
    )


def _head(draw: Draw, noun: Noun) -> Phrase:
    return noun_phrase(
        draw, noun, "nominative", pools=HEADS, negated=False, adjective=0.2
    )


def relative_subject(draw: Draw) -> Sentence:
    """The man who helps the child is tired."""
    head = _head(draw, draw.one_of(NOUNS["person"]))
    pronoun = RELATIVE["nominative"][GENDERS.index(head.gender)]
    who = Phrase("who", pronoun, head.agreement, kind="person")
    side = clause(draw, about=who, brief=True, adverbs=0.0, negation=0.1)
    return _about(draw, head, side, side.english(), side.german_final())


def relative_object(draw: Draw) -> Sentence:
    """The book that the teacher buys is new. The man whom he helps sleeps."""
    verb = draw.one_of(VERBS["accusative"] + VERBS["dative"])
    noun = draw.one_of(NOUNS[draw.one_of(verb.objects)])
    head = _head(draw, noun)
    english = "whom" if noun.kind == "person" else "that"
    german = RELATIVE[verb.governs][GENDERS.index(head.gender)]
    side = clause(
        draw,
        kinds=ACTORS,
        build=lambda _: Predicate(verb, pairs=((verb.english, noun.english),)),
        adverbs=0.0,
        negation=0.1,
        brief=True,
    )
    return _about(
        draw,
        head,
        side,
        f"{english} {side.english()}",
        f"{german} {side.german_final()}",
    )


def counted(draw: Draw) -> Sentence:
    """The coat costs forty-five euros. The teacher is forty-five years old."""
    if draw.chance(0.5):
        main = clause(draw, kinds=ACTORS, build=ageing, adverbs=0.0, negation=0.1)
    else:
        kinds = ("thing", "clothes", "vehicle", "machine", "furniture")
        noun = draw.one_of(NOUNS[draw.one_of(kinds)])
        scene = Scene(draw, NOTHING, negated=False, brief=False)
        ware = scene.phrase(noun, "nominative", pools=DEFINITES, owner=0.1)
        main = clause(draw, about=ware, build=costing, adverbs=0.0, negation=0.1)
    return sentence(f"{main.english()}.", f"{main.german()}.", (main,))


def existing(draw: Draw) -> Sentence:
    """There are three cats in the garden. In the garden there are three cats."""
    noun = draw.one_of(NOUNS[draw.one_of(("person", "animal", "thing", "landmark"))])
    scene = Scene(draw, NOTHING, negated=False, brief=False)
    found = scene.phrase(noun, "accusative", pools=COUNTED)
    place = place_of(scene)
    is_past = draw.chance(0.3)
    english = ("was", "were") if is_past else ("is", "are")
    be, german = english[found.agreement - 2], "gab" if is_past else "gibt"
    there = f"there {be} {found.english}"
    parts = (found, place)
    if draw.chance(0.5):
        return sentence(
            f"{there} {place.english}.",
            f"es {german} {found.german} {place.german}.",
            parts,
        )
    return sentence(
        f"{place.english} {there}.",
        f"{place.german} {german} es {found.german}.",
        parts,
        "verb_second",
    )


def compared(draw: Draw) -> Sentence:
    """The dog is older than the cat. Was the dog not older than the cat?"""
    nouns = NOUNS[draw.one_of(("person", "person", "animal", "vehicle", "clothes"))]
    scene = Scene(draw, NOTHING, negated=False, brief=True)
    first, second = (
        scene.phrase(draw.one_of(half), "nominative", pools=DEFINITES)
        for half in (nouns[::2], nouns[1::2])
    )
    if draw.chance(0.5):
        first, second = second, first
    adjective = draw.one_of(
        [a for a in DESCRIPTIONS[first.kind] if a.german_comparative]
    )
    than = second._replace(
        english=f"{adjective.english_comparative} than {second.english}",
        german=f"{adjective.german_comparative} als {second.german}",
    )
    main = clause(
        draw,
        about=first,
        build=lambda _: Predicate(BE, tail=than),
        tenses=("present", "past"),
        adverbs=0.0,
    )
    if draw.chance(0.3):
        english, german = f"{main.english_question()}?", f"{main.german_inverted()}?"
        return sentence(english, german, (main,), "comparative", "question")
    return sentence(f"{main.english()}.", f"{main.german()}.", (main,), "comparative")


def contrasted(draw: Draw) -> Sentence:
    """The teacher sleeps, but the children sing."""
    english, german = draw.one_of(((", but", ", aber"), (" and", " und")))
    first, second = (
        clause(draw, brief=True, adverbs=0.2, negation=0.2) for _ in range(2)
    )
    return sentence(
        f"{first.english()}{english} {second.english()}.",
        f"{first.german()}{german} {second.german()}.",
        (first, second),
        "coordination",
    )
