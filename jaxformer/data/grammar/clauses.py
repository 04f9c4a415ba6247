"""Clauses of the built-in corpus: one meaning, and the word orders it can take.

A German main clause has its finite verb second, a question first, a subordinate clause
last. `predicates` draws the parts of a clause, and `sentences` combines clauses.
"""

from typing import NamedTuple

from jaxformer.data.grammar.inflection import FINITE, MODALS, Verb
from jaxformer.data.grammar.phrases import NOTHING, Phrase, words


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
        facts = {
            "verb_second": order == "inverted",
            "verb_final": order == "final",
            "infinitive_clause": order == "infinitive",
            "negation": self.negated,
            "modal": self.tense in MODALS,
            "perfect": self.tense == "past" and self.verb.english != "be",
            "separable": self.verb.prefix,
        }
        parts = (self.subject, self.early, self.object, self.tail)
        tags = frozenset([name for name, holds in facts.items() if holds])
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
        takes_nicht = self.negated and not self.object.is_negative
        early = (self.early, self.time, self.frequency, self.object)
        middle = words(
            *[part.german for part in early],
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
