"""Clauses of the built-in corpus: who does what, and the word orders it can take.

A German main clause has its finite verb second, a question first, a subordinate clause
last. `clause` draws parts that suit each other; entries that repeat are likelier.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.data.grammar import lexicon, phrases
from jaxformer.data.grammar.lexicon import FINITE, MODALS, VERBS, Verb
from jaxformer.data.grammar.phrases import NOTHING, PHRASES, Draw, Phrase, words

TENSES_OF = lexicon.read_table("tenses")
TENSES = TENSES_OF["any"]
TIMES = {tense: PHRASES["modal" if tense in MODALS else tense] for tense in TENSES}
SUBJECTS = ("person",) * 16 + ("animal", "thing", "clothes", "vehicle") * 2
# What may follow "be", by the class of the subject.
STATES = {
    kind: [[Phrase(*pair) for pair in pairs]] * 6 + PHRASES.get(f"{kind} is", [])
    for kind, pairs in lexicon.DESCRIPTIONS.items()
}
OBJECT_VERBS = VERBS["accusative"] + VERBS["dative"]
INTRANSITIVE = VERBS["activity"] + VERBS["state"] + VERBS["alone"]
PURPOSES = OBJECT_VERBS + VERBS["prepositional"] + INTRANSITIVE + VERBS["ditransitive"]
PURPOSES = [*PURPOSES, *VERBS["motion"] * 3, *VERBS["placing"]]
ANIMAL_VERBS = lexicon.read_table("actions")["animal"]
# What a subject of a class may do.
ACTIONS = {
    "person": PURPOSES + VERBS["being"] * 24,
    "animal": [v for v in PURPOSES if v.english in ANIMAL_VERBS] + VERBS["being"] * 4,
    "thing": VERBS["being"] + VERBS["lying"] + VERBS["costing"],
    "clothes": VERBS["being"] + VERBS["lying"] + VERBS["costing"],
    "vehicle": VERBS["being"] * 3 + VERBS["costing"],
}


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

        - "statement": the teacher opens the door;
        - "inverted": the same after a part that German puts first;
        - "question": does the teacher open the door;
        - "final": the same as a subordinate clause;
        - "infinitive": to open the door.
        """
        tags = phrases.tags_of(
            verb_second=order == "inverted",
            verb_final=order == "final",
            infinitive_clause=order == "infinitive",
            negation=self.negated,
            modal=self.tense in MODALS,
            perfect=self.tense == "past" and self.verb.english != "be",
            separable=self.verb.prefix,
        )
        parts = (self.subject, self.early, self.object, self.tail)
        return Phrase(
            self._english(order),
            self._german(order),
            tags.union(*[part.tags for part in parts]),
            tuple(pair for part in parts for pair in part.pairs),
        )

    def _english(self, order: str) -> str:
        subject, often = self.subject.english, self.frequency.english
        no = "not" if self.negated else ""
        auxiliary, base, finite = self._english_verb()
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

    def _english_verb(self) -> tuple[str, str, str]:
        """Return the auxiliary or "do", what follows it, and the verb without "do"."""
        base, third, agreement = *self.verb[:2], self.subject.agreement
        if base == "be" and self.tense not in MODALS:
            return FINITE[f"be {self.tense}"][agreement], "", ""
        if self.tense == "past":
            return "did", base, self.verb.past
        if self.tense == "want to":
            base, third = f"want to {base}", f"wants to {base}"
        elif self.tense in MODALS:
            return self.tense, base, ""
        return ("does", base, third) if agreement == 2 else ("do", base, base)

    def _german(self, order: str) -> str:
        subject, (finite, bracket) = self.subject.german, self._german_verb()
        takes_nicht = self.negated and not self.object.german.startswith("kein")
        middle = words(
            self.early.german,
            self.time.german,
            self.frequency.german,
            self.object.german,
            "nicht" if takes_nicht else "",
            self.tail.german,
        )
        if order == "infinitive":
            zu = f"{self.verb.prefix}zu" if self.verb.prefix else "zu "
            return words(middle, zu + self.verb.infinitive)
        if order == "final":
            is_prefix = bracket == self.verb.prefix
            last = bracket + finite if is_prefix else f"{bracket} {finite}"
            return words(subject, middle, last)
        if order == "statement":
            return words(subject, finite, middle, bracket)
        return words(finite, subject, middle, bracket)

    def _german_verb(self) -> tuple[str, str]:
        """Return the finite verb, and the prefix, infinitive or participle.

        An English past is a German perfect, except that of "be".
        """
        verb, agreement = self.verb, self.subject.agreement
        if self.tense in MODALS:
            return FINITE[self.tense][agreement], verb.prefix + verb.infinitive
        if self.tense == "past" and verb.english == "be":
            return FINITE["war"][agreement], ""
        if self.tense == "past":
            return FINITE[verb.auxiliary][agreement], verb.participle
        return verb.finite[agreement], verb.prefix


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
        tail = draw.among(tails, verb=name if governs == "motion" else "")
        return {"tail": tail}
    noun = draw.noun(*verb.objects)
    if verb.preposition:
        about = draw.phrase(noun, case, phrases.DEFINITE, verb=name)
        preposition = Phrase("", verb.preposition)
        return {"tail": phrases.prepositional(preposition, about)}
    is_ditransitive = governs == "ditransitive"
    pronouns = PHRASES["dative" if is_ditransitive else case]
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
    return {"object": thing, "tail": draw.among(tails)}


def _subject(draw: Draw, kinds: Sequence[str]) -> Phrase:
    """Draw a pronoun, a name, or a noun of the classes."""
    if draw.chance(0.45 if draw.brief else 0.3):
        return draw.one_of(PHRASES["subject"])
    if draw.chance(0.08):
        return draw.one_of(PHRASES["name"])
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
    verbs: Sequence[Verb] = (),
    tenses: Sequence[str] = TENSES,
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
            parts["frequency"] = draw.one_of(PHRASES["frequency"])
    return Clause(subject, verb, tense, draw.negated, **parts)
