"""Clauses of the built-in corpus: who does what, and the word orders it can take.

A German main clause has its finite verb second, a question first, a subordinate clause
last. `clause` draws parts that suit each other; entries that repeat are likelier.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.grammar import lexicon
from jaxformer.grammar.lexicon import FINITE, MODALS, VERBS, Verb
from jaxformer.grammar.noun_phrases import (
    NOTHING,
    PHRASES,
    Draw,
    Phrase,
    join,
    prepositional,
    tags_of,
    words,
)

TENSES_OF = lexicon.read_table("tenses")
TENSES = TENSES_OF["any"]
TIMES = {tense: PHRASES["modal" if tense in MODALS else tense] for tense in TENSES}
SUBJECTS = ("person",) * 16 + ("animal", "thing", "clothes", "vehicle") * 2
# What may follow "be", by the class of the subject.
STATES = {
    kind: [[Phrase(*pair) for pair in pairs]] * 6 + PHRASES.get(f"{kind} is", [])
    for kind, pairs in lexicon.DESCRIPTIONS.items()
}
ACTIONS = {
    name: [verb for row in rows for verb in VERBS[row]]
    for name, rows in lexicon.read_table("actions").items()
}
ANIMAL_VERBS = lexicon.read_table("subjects")["animal"]
ACTIONS["animal"] = [v for v in ACTIONS["animal"] if v.english in ANIMAL_VERBS]


class Clause(NamedTuple):
    """A subject, a verb in a tense and what follows it."""

    subject: Phrase
    verb: Verb
    tense: str  # "present", "past" or a modal verb
    negated: bool = False
    early: Phrase = NOTHING  # a pronoun or a receiver: before any adverb in German
    object: Phrase = NOTHING  # "nicht" follows it
    tail: Phrase = NOTHING  # what "nicht" precedes
    time: Phrase = NOTHING  # last in English
    frequency: Phrase = NOTHING  # before the verb in English

    def arrange(self, order: str) -> Phrase:
        """Return the clause in one of five orders, with the phenomena of its parts.

        "statement", "inverted" (after a part that German puts first), "question",
        "final" (a subordinate clause) or "infinitive" (to open the door).
        """
        tags = tags_of(
            verb_second=order == "inverted",
            verb_final=order == "final",
            infinitive_clause=order == "infinitive",
            negation=self.negated,
            modal=self.tense in MODALS,
            perfect=self.tense == "past" and self.verb.english != "be",
            separable=self.verb.prefix,
        )
        parts = (self.subject, self.early, self.object, self.tail)
        forms = {"english": self._english(order), "german": self._german(order)}
        return join(Phrase("", "", tags), *parts)._replace(**forms)

    def _english(self, order: str) -> str:
        subject, often = self.subject.english, self.frequency.english
        base, third, agreement = *self.verb[:2], self.subject.agreement
        no, finite = "not" if self.negated else "", ""  # the verb without "do"
        if base == "be" and self.tense not in MODALS:
            auxiliary, base = FINITE[f"be {self.tense}"][agreement], ""
        elif self.tense == "past":
            auxiliary, finite = "did", self.verb.past
        elif self.tense in ("present", "want to"):
            if self.tense == "want to":
                base, third = f"want to {base}", f"wants to {base}"
            auxiliary, finite = ("does", third) if agreement == 2 else ("do", base)
        else:
            auxiliary = self.tense
        if order == "infinitive":
            verbs = ("to", self.verb.english)
        elif order == "question":
            verbs = (auxiliary, subject, no, often, base)
        elif finite and not no:
            verbs = (subject, often, finite)
        else:
            first = "cannot" if no and auxiliary == "can" else words(auxiliary, no)
            verbs = (subject, first, often, base)
        rest = (self.early, self.object, self.tail, self.time)
        return words(*verbs, *[part.english for part in rest])

    def _german(self, order: str) -> str:
        subject, agreement = self.subject.german, self.subject.agreement
        verb = self.verb
        finite, bracket = verb.finite[agreement], verb.prefix
        if self.tense in MODALS:
            finite, bracket = FINITE[self.tense][agreement], bracket + verb.infinitive
        elif self.tense == "past" and verb.english == "be":
            finite = FINITE["war"][agreement]  # all other pasts are perfects
        elif self.tense == "past":
            finite, bracket = FINITE[verb.auxiliary][agreement], verb.participle
        takes_nicht = self.negated and not self.object.german.startswith("kein")
        first = (self.early, self.time, self.frequency, self.object)
        middle = words(*[part.german for part in first], "nicht" * takes_nicht)
        middle = words(middle, self.tail.german)
        if order == "infinitive":
            zu = f"{verb.prefix}zu" if verb.prefix else "zu "
            return words(middle, zu + verb.infinitive)
        if order == "final":
            is_prefix = bracket == verb.prefix
            last = bracket + finite if is_prefix else f"{bracket} {finite}"
            return words(subject, middle, last)
        if order == "statement":
            return words(subject, finite, middle, bracket)
        return words(finite, subject, middle, bracket)


def _complements(draw: Draw, verb: Verb, subject: Phrase) -> dict[str, Phrase]:
    """Draw what follows a verb, by the names of the fields of `Clause`."""
    name, case = verb.english, verb.case
    governs = "object" if verb.governs in ("accusative", "dative") else verb.governs
    tails = PHRASES.get(f"after {governs}", [NOTHING])
    tails = STATES[subject.kind] if governs == "being" else tails
    if draw.brief and tails[0] == NOTHING and draw.chance(0.4):
        tails = tails[:1]
    if not verb.objects:
        # The goal of a motion may be held out for the split "unseen", other places not.
        return {"tail": draw.among(tails, verb=name if governs == "motion" else "")}
    noun = draw.noun(*verb.objects)
    if verb.preposition:
        about = draw.phrase(noun, case, "definite", verb=name)
        return {"tail": prepositional(Phrase("", verb.preposition), about)}
    is_ditransitive = governs == "ditransitive"
    pronouns = PHRASES["dative" if is_ditransitive else case]
    # The first three would be reflexive after "I", "you" and "we".
    is_first = subject.english in ("I", "you", "we")
    pronoun = draw.one_of(pronouns[3:] if is_first else pronouns)
    is_pronoun = draw.chance(0.3)
    if is_ditransitive:
        person = draw.phrase(draw.noun("person"), "dative", "definite")
        # Without an article, "her old books" would read as one phrase.
        given = draw.phrase(noun, case, "with article", verb=name)
        return {"early": pronoun if is_pronoun else person, "object": given}
    if noun.kind == "person" and is_pronoun:
        return {"early": pronoun}
    thing = draw.phrase(noun, case, owner=0.12, verb=name)
    return {"object": thing, "tail": draw.among(tails)}


def _subject(draw: Draw, kinds: Sequence[str]) -> Phrase:
    """Draw a pronoun, a name, or a noun of the classes."""
    if draw.chance(0.45 if draw.brief else 0.3):
        return draw.one_of(PHRASES["subject"])
    if draw.chance(0.08):
        return draw.one_of(PHRASES["name"])
    pools = "plain" if draw.negated else "any"
    plain = draw._replace(negated=False)
    return plain.phrase(draw.noun(*kinds), "nominative", pools, owner=0.06)


def _is_clear(draw: Draw, verb: Verb, tense: str, subject: Phrase) -> bool:
    """Whether a verb in a tense has one translation."""
    if draw.negated and tense == "must":
        return False  # "must not" forbids, "muss nicht" permits
    if verb.past == verb.english and tense == "present":
        return subject.agreement == 2 or draw.negated  # "they read" is also the past
    return tense != "past" or verb.past not in ("", verb.english)


def clause(
    draw: Draw,
    *,
    about: Phrase | None = None,
    verbs: Sequence[Verb] = (),
    tenses: str = "any",
    negation: float = 0.15,
    adverbs: float = 0.2,
    brief: bool = False,
) -> Clause:
    """Draw a clause with a subject and a verb that suit each other.

    The subject is `about`, or a person if `verbs` are given. `tenses` is a row of
    [tenses]. `negation` and `adverbs` are probabilities; a negated clause has no adverb
    of frequency.
    """
    draw = Draw(draw.random, draw.chance(negation), brief)
    subject = about or _subject(draw, ("person",) if verbs else SUBJECTS)
    while True:
        verb = draw.one_of(verbs or ACTIONS[subject.kind])
        tense = draw.one_of(TENSES_OF.get(verb.governs, TENSES))
        if tense in TENSES_OF[tenses] and _is_clear(draw, verb, tense, subject):
            break
    parts = _complements(draw, verb, subject)
    if draw.chance(adverbs):
        if draw.negated or draw.chance(0.6):
            parts["time"] = draw.one_of(TIMES[tense])
        else:
            parts["frequency"] = draw.one_of(PHRASES["frequency"])
    return Clause(subject, verb, tense, draw.negated, **parts)
