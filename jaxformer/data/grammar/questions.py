"""Questions of the built-in corpus: each function below is one pattern."""

from jaxformer.data.grammar.clauses import ACTORS, Clause, clause
from jaxformer.data.grammar.nouns import LEXICON as NOUNS
from jaxformer.data.grammar.phrases import Draw, Phrase
from jaxformer.data.grammar.predicates import Predicate
from jaxformer.data.grammar.sentences import Sentence, sentence
from jaxformer.data.grammar.verbs import LEXICON as VERBS
from jaxformer.data.grammar.verbs import Verb

ASKING_WHOM = tuple(
    verb for verb in VERBS["accusative"] + VERBS["dative"] if "person" in verb.objects
)
ASKING_WHAT = tuple(v for v in VERBS["accusative"] if "person" not in v.objects)


def question(draw: Draw) -> Sentence:
    """Does the teacher buy a red car?"""
    main = clause(draw, adverbs=0.3, negation=0.1)
    return sentence(
        f"{main.english_question()}?",
        f"{main.german_inverted()}?",
        (main,),
        "question",
    )


def asked_who(draw: Draw) -> Sentence:
    """Who buys a red car?"""
    main = clause(draw, about=Phrase("who", "wer"), adverbs=0.3)
    return sentence(f"{main.english()}?", f"{main.german()}?", (main,), "question")


def _asked(english: str, german: str, main: Clause, *tags: str) -> Sentence:
    return sentence(
        f"{english} {main.english_question()}?",
        f"{german} {main.german_inverted()}?",
        (main,),
        "question",
        *tags,
    )


def asked_when(draw: Draw) -> Sentence:
    """When does the teacher buy a red car? Why does he not sleep?"""
    if draw.chance(0.5):
        return _asked("when", "wann", clause(draw, adverbs=0.0, negation=0.0))
    return _asked("why", "warum", clause(draw, adverbs=0.3))


def asked_where(draw: Draw) -> Sentence:
    """Where does the teacher sleep? Where does he go?"""
    if draw.chance(0.5):
        german, verbs = "wo", VERBS["activity"] + VERBS["state"]
    else:
        german, verbs = "wohin", VERBS["motion"]
    verb = draw.one_of(verbs)
    main = clause(
        draw,
        kinds=ACTORS,
        build=lambda _: Predicate(verb),
        adverbs=0.3,
        negation=0.0,
    )
    return _asked("where", german, main)


def asked_what(draw: Draw) -> Sentence:
    """What does the teacher buy? Whom does he help? How many cars does he buy?"""
    if draw.chance(0.4):
        verb = draw.one_of(ASKING_WHOM)
        german = "wen" if verb.governs == "accusative" else "wem"
        asked = Phrase("whom", german, tags=frozenset([verb.governs]))
    else:
        verb = draw.one_of(ASKING_WHAT)
        asked = _how_many(draw, verb) if draw.chance(0.5) else Phrase("what", "was")
    main = clause(
        draw,
        kinds=ACTORS,
        build=lambda _: Predicate(verb, pairs=asked.pairs),
        adverbs=0.3,
        negation=0.0,
        brief=True,
    )
    return _asked(asked.english, asked.german, main, *asked.tags)


def _how_many(draw: Draw, verb: Verb) -> Phrase:
    noun = draw.one_of(NOUNS[draw.one_of(verb.objects)])
    if noun.is_mass:
        return Phrase("what", "was")
    return Phrase(
        f"how many {noun.english_plural}",
        f"wie viele {noun.plural['accusative']}",
        tags=frozenset(["accusative", "plural"]),
        pairs=((verb.english, noun.english),),
    )
