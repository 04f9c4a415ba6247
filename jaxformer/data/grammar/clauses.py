"""Clauses of the built-in corpus: one meaning, and the word orders it can take.

A German clause is subject, finite verb, middle field and right bracket (a separable
prefix, an infinitive or a participle). A main clause puts the finite verb second, a
question first, a subordinate clause last, where a prefix joins its verb again. So a
`Clause` keeps these parts apart and its methods put them in order. `sentences`
combines clauses.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxformer.data.grammar.determiners import ANY, PLAIN
from jaxformer.data.grammar.nouns import LEXICON as NOUNS
from jaxformer.data.grammar.phrases import (
    NOTHING,
    Draw,
    Phrase,
    noun_phrase,
    subject_pronoun,
    words,
)
from jaxformer.data.grammar.predicates import TENSES, Predicate, Scene, predicate
from jaxformer.data.grammar.verbs import IRREGULAR_FINITE, MODALS, WAR, Verb

NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Thomas")

ACTORS = ("person",)
SUBJECTS = ("person",) * 8 + ("animal", "thing", "clothes", "vehicle")

# Adverbs of time that go with a tense: English, German.
TIMES = {
    "present": (
        *(("today", "heute"), ("now", "jetzt"), ("every day", "jeden Tag")),
        *(("in the evening", "am Abend"), ("on Sunday", "am Sonntag")),
        *(("in summer", "im Sommer"), ("in winter", "im Winter")),
        *(("at night", "nachts"), ("this week", "diese Woche")),
    ),
    "past": (
        *(("yesterday", "gestern"), ("last week", "letzte Woche")),
        *(("on Monday", "am Montag"), ("last year", "letztes Jahr")),
        *(("this morning", "heute Morgen"), ("two days ago", "vor zwei Tagen")),
        *(("last month", "letzten Monat"), ("recently", "neulich")),
    ),
    "modal": (
        *(("tomorrow", "morgen"), ("next week", "nächste Woche"), ("soon", "bald")),
        *(("on Friday", "am Freitag"), ("tonight", "heute Abend")),
        *(("next year", "nächstes Jahr"), ("today", "heute"), ("now", "jetzt")),
    ),
}
FREQUENCIES = (
    *(("often", "oft"), ("always", "immer"), ("sometimes", "manchmal")),
    *(("never", "nie"), ("rarely", "selten"), ("usually", "meistens")),
)


class EnglishVerb(NamedTuple):
    """The English verb forms a statement and a question choose from."""

    auxiliary: str  # empty if the verb itself is finite
    support: str  # do, does, did
    finite: str
    base: str


class GermanVerb(NamedTuple):
    """The finite verb, the right bracket, and both as they end a clause."""

    finite: str
    bracket: str
    final: str


class Clause(NamedTuple):
    """A subject, a predicate in a tense, perhaps an adverb, perhaps "not"."""

    subject: Phrase
    predicate: Predicate
    tense: str  # "present", "past" or a modal verb
    negated: bool
    time: Phrase = NOTHING  # last in English
    frequency: Phrase = NOTHING  # before the verb in English

    @property
    def tags(self) -> frozenset[str]:
        """The phenomena of every word order of this clause."""
        p = self.predicate
        parts = (self.subject, p.early, p.object, p.tail)
        own = {
            name
            for name, holds in (
                ("negation", self.negated),
                ("modal", self.tense in MODALS),
                ("perfect", self.tense == "past" and p.verb.english != "be"),
                ("separable", bool(p.verb.prefix)),
            )
            if holds
        }
        return frozenset(own).union(*[part.tags for part in parts])

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The combinations of words that a split may hold out."""
        p = self.predicate
        parts = (self.subject, p.early, p.object, p.tail)
        return (*p.pairs, *[pair for part in parts for pair in part.pairs])

    def _english_rest(self) -> str:
        p = self.predicate
        parts = (p.early, p.object, p.tail, self.time)
        return words(*[part.english for part in parts])

    def english(self) -> str:
        """The English clause as a statement."""
        verb = conjugate_english(
            self.predicate.verb, self.tense, self.subject.agreement
        )
        verbs = words(self.frequency.english, verb.finite)
        if verb.auxiliary or self.negated:
            negated = words(verb.auxiliary or verb.support, "not")
            negated = "cannot" if negated == "can not" else negated
            first = negated if self.negated else verb.auxiliary
            verbs = words(first, self.frequency.english, verb.base)
        return words(self.subject.english, verbs, self._english_rest())

    def english_question(self) -> str:
        """The English clause as a question, without its mark."""
        verb = conjugate_english(
            self.predicate.verb, self.tense, self.subject.agreement
        )
        return words(
            verb.auxiliary or verb.support,
            self.subject.english,
            "not" if self.negated else "",
            self.frequency.english,
            verb.base,
            self._english_rest(),
        )

    def english_infinitive(self) -> str:
        """The English clause as "to ..."."""
        return words("to", self.predicate.verb.english, self._english_rest())

    def _middle(self) -> str:
        p = self.predicate
        takes_nicht = self.negated and not p.object.is_negative
        return words(
            p.early.german,
            self.time.german,
            self.frequency.german,
            p.object.german,
            "nicht" if takes_nicht else "",
            p.tail.german,
        )

    def _german_verb(self) -> GermanVerb:
        return conjugate_german(self.predicate.verb, self.tense, self.subject.agreement)

    def german(self) -> str:
        """The German clause with its subject first and its finite verb second."""
        verb = self._german_verb()
        return words(self.subject.german, verb.finite, self._middle(), verb.bracket)

    def german_inverted(self) -> str:
        """The German clause from its finite verb on: a question, or after a front."""
        verb = self._german_verb()
        return words(verb.finite, self.subject.german, self._middle(), verb.bracket)

    def german_final(self) -> str:
        """The German clause with its finite verb last."""
        final = self._german_verb().final
        return words(self.subject.german, self._middle(), final)

    def german_infinitive(self) -> str:
        """The German clause as "... zu ..."."""
        return words(self._middle(), self.predicate.verb.zu_infinitive)


def conjugate_english(verb: Verb, tense: str, agreement: int) -> EnglishVerb:
    """The English forms of a verb for a subject of this agreement."""
    base = verb.english
    is_third = agreement == 2
    support = "does" if is_third else "do"
    if tense == "want to":
        finite = f"wants to {base}" if is_third else f"want to {base}"
        return EnglishVerb("", support, finite, f"want to {base}")
    if tense in MODALS:
        return EnglishVerb(tense, "", "", base)
    if base == "be":
        was = "was" if agreement in (0, 2) else "were"
        present = ("am", "are", "is", "are")[agreement]
        return EnglishVerb(was if tense == "past" else present, "", "", "")
    if tense == "past":
        return EnglishVerb("", "did", verb.past, base)
    return EnglishVerb("", support, verb.third if is_third else base, base)


def conjugate_german(verb: Verb, tense: str, agreement: int) -> GermanVerb:
    """The German forms; an English past is a German perfect, except that of "be"."""
    if tense in MODALS:
        finite = MODALS[tense][agreement]
        return GermanVerb(finite, verb.infinitive, f"{verb.infinitive} {finite}")
    if tense == "past" and verb.english == "be":
        return GermanVerb(WAR[agreement], "", WAR[agreement])
    if tense == "past":
        finite = IRREGULAR_FINITE[verb.auxiliary][agreement]
        return GermanVerb(finite, verb.participle, f"{verb.participle} {finite}")
    finite = verb.finite[agreement]
    return GermanVerb(finite, verb.prefix, verb.prefix + finite)


def subject(
    draw: Draw, *, kinds: tuple[str, ...], negated: bool, brief: bool
) -> Phrase:
    """Who a clause is about: a pronoun, a name, persons, an animal or a thing."""
    if draw.chance(0.45 if brief else 0.3):
        return subject_pronoun(draw)
    if draw.chance(0.08):
        name = draw.one_of(NAMES)
        return Phrase(name, name, kind="person")
    kind = draw.one_of(kinds)
    scene = Scene(draw, NOTHING, negated=False, brief=brief)
    noun = draw.one_of(NOUNS[kind])
    pools = PLAIN if negated else ANY
    first = scene.phrase(noun, "nominative", pools=pools, owner=0.06)
    if brief or negated or kind != "person" or draw.chance(0.94):
        return first
    second = noun_phrase(
        draw,
        draw.one_of(NOUNS["person"]),
        "nominative",
        pools=PLAIN,
        negated=False,
        adjective=0.2,
    )
    return Phrase(
        f"{first.english} and {second.english}",
        f"{first.german} und {second.german}",
        agreement=3,
        kind="person",
        tags=first.tags | second.tags | {"coordination"},
        pairs=first.pairs + second.pairs,
    )


def clause(
    draw: Draw,
    *,
    about: Phrase | None = None,
    kinds: tuple[str, ...] = SUBJECTS,
    build: Callable[[Scene], Predicate] = predicate,
    tenses: tuple[str, ...] = TENSES,
    negation: float = 0.2,
    adverbs: float = 0.35,
    brief: bool = False,
) -> Clause:
    """A clause about a subject, by default one of these kinds, in one of the tenses.

    `negation` and `adverbs` are probabilities; a clause has at most one of a negation
    and an adverb of frequency, and at most one adverb.
    """
    negated = draw.chance(negation)
    actor = about or subject(draw, kinds=kinds, negated=negated, brief=brief)
    scene = Scene(draw, actor, negated, brief)
    # "must not" forbids, where "muss nicht" would permit.
    allowed = tuple(t for t in tenses if not (negated and t == "must"))
    options: list[str] = []
    while not options:
        chosen = build(scene)
        has_past = chosen.verb.past or chosen.verb.english == "be"
        options = [
            tense
            for tense in chosen.tenses
            if tense in allowed and (tense != "past" or has_past)
        ]
    made = Clause(actor, chosen, draw.one_of(options), negated)
    if not draw.chance(adverbs):
        return made
    if not negated and draw.chance(0.4):
        return made._replace(frequency=Phrase(*draw.one_of(FREQUENCIES)))
    return made._replace(time=time_of(draw, made.tense))


def time_of(draw: Draw, tense: str) -> Phrase:
    """An adverb of time that goes with a tense."""
    return Phrase(*draw.one_of(TIMES["modal" if tense in MODALS else tense]))
