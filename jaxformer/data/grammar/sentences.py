"""The sentences of the built-in corpus: each function below draws one pattern."""

from jaxformer.data.grammar import phrases, predicates
from jaxformer.data.grammar.inflection import VERBS, Verb, ending
from jaxformer.data.grammar.phrases import NOTHING, Draw, Phrase, join
from jaxformer.data.grammar.predicates import TENSES, TIMES, clause


def _word(english: str, german: str, *tags: str) -> Phrase:
    return Phrase(english, german, frozenset(tags))


STOP, ASK = _word(".", "."), _word("?", "?", "question")
COMMA, GERMAN_COMMA = _word(",", ","), _word("", ",")
PRESENT, PAST = ("present",), ("past",)
NOT_PAST = tuple(tense for tense in TENSES if tense != "past")
# A conjunction, the tenses of its clause and of the main clause.
CONJUNCTIONS = (
    (_word("because", "weil"), TENSES, TENSES),
    (_word("because", "weil"), TENSES, TENSES),
    (_word("although", "obwohl"), TENSES, TENSES),
    (_word("if", "wenn"), PRESENT, NOT_PAST),
    (_word("when", "wenn"), PRESENT, PRESENT),
    (_word("when", "als"), PAST, PAST),
    (_word("before", "bevor"), PRESENT, ("present", "will")),
    (_word("before", "bevor"), PAST, PAST),
    (_word("while", "während"), PRESENT, PRESENT),
    (_word("while", "während"), PAST, PAST),
)
COORDINATORS = (
    _word(", but", ", aber", "coordination"),
    _word("and", "und", "coordination"),
)


def _without_object(*verbs: Verb) -> tuple[Verb, ...]:
    """Return the verbs for a clause whose object or place stands outside it."""
    return tuple(verb._replace(objects=(), governs="") for verb in verbs)


QUESTIONS = (
    *((NOTHING, ()),) * 4,
    *((_word("when", "wann"), ()), (_word("why", "warum"), ())),
    (_word("where", "wo"), _without_object(*VERBS["activity"], *VERBS["state"])),
    # "Where does he come?" is no question.
    (_word("where", "wohin"), _without_object(*VERBS["motion"][:-1])),
    (_word("what", "was"), ()),
)


def statement(draw: Draw) -> Phrase:
    """The teacher buys a red car today."""
    return join(clause(draw).arrange("statement"), STOP)


def fronted(draw: Draw) -> Phrase:
    """Today the teacher buys a red car."""
    main = clause(draw, adverbs=0.0)
    return join(draw.one_of(TIMES[main.tense]), main.arrange("inverted"), STOP)


def subordinate(draw: Draw) -> Phrase:
    """He sleeps because he is tired. Because he is tired, he sleeps."""
    word, tenses, main_tenses = draw.one_of(CONJUNCTIONS)
    negation = 0.0 if word.english == "before" else 0.1  # "before he does not" is odd
    side = clause(draw, tenses=tenses, negation=negation, brief=True).arrange("final")
    main = clause(draw, tenses=main_tenses, brief=True)
    if draw.chance(0.6):
        return join(main.arrange("statement"), GERMAN_COMMA, word, side, STOP)
    return join(word, side, COMMA, main.arrange("inverted"), STOP)


def coordinated(draw: Draw) -> Phrase:
    """The teacher sleeps, but the children sing."""
    first, second = (clause(draw, brief=True).arrange("statement") for _ in "12")
    return join(first, draw.one_of(COORDINATORS), second, STOP)


def reported(draw: Draw) -> Phrase:
    """The teacher knows that he is tired, or does not know whether he is tired."""
    word, verbs, negation = _word("that", "dass"), VERBS["reporting"], 0.0
    if draw.chance(0.3):
        word, verbs, negation = _word("whether", "ob"), verbs[:1], 1.0
    speaker = clause(draw, verbs=verbs, negation=negation, adverbs=0.0, brief=True)
    content = clause(draw, brief=True).arrange("final")
    return join(speaker.arrange("statement"), GERMAN_COMMA, word, content, STOP)


def planned(draw: Draw) -> Phrase:
    """The teacher tries to open the door."""
    planner = clause(draw, verbs=VERBS["planning"], adverbs=0.0, brief=True)
    options = {"tenses": PRESENT, "negation": 0.0, "adverbs": 0.0}
    plan = clause(draw, about=planner.subject, verbs=predicates.PURPOSES, **options)
    parts = planner.arrange("statement"), GERMAN_COMMA, plan.arrange("infinitive")
    return join(*parts, STOP)


def relative(draw: Draw) -> Phrase:
    """The man who helps the child is tired. The book that he buys is new."""
    draw = draw._replace(brief=True)
    if draw.chance(0.6):
        noun = draw.noun("person")
        head = draw.phrase(noun, "nominative", phrases.WITH_ARTICLE)
        german = ending("relative", "nominative", head.gender)
        who = Phrase("who", german, agreement=head.agreement)
        side = clause(draw, about=who, brief=True).arrange("final")
    else:
        verb = draw.one_of(predicates.OBJECT_VERBS)
        noun = draw.noun(*verb.objects)
        head = draw.phrase(noun, "nominative", phrases.WITH_ARTICLE, verb=verb.english)
        english = "whom" if noun.kind == "person" else "that"
        whom = _word(english, ending("relative", verb.case, head.gender))
        inner = clause(draw, verbs=_without_object(verb), brief=True)
        side = join(whom, inner.arrange("final"))
    comma = _word("", ",", "relative_clause")
    acts = noun.kind == "person" and draw.chance(0.6)
    main = clause(
        draw,
        about=join(head, comma, side, comma),
        verbs=predicates.INTRANSITIVE if acts else VERBS["being"],
        brief=True,
    )
    return join(main.arrange("statement"), STOP)


def existing(draw: Draw) -> Phrase:
    """There are three cats in the garden. In the garden there are three cats."""
    noun = draw.noun("person", "animal", "thing", "landmark")
    found = draw.phrase(noun, "accusative", phrases.COUNTED)
    place = predicates.draw_tail(draw, VERBS["being"][0], predicates.PLACES)
    is_past = draw.chance(0.3)
    english, german = (("was", "were"), "gab") if is_past else (("is", "are"), "gibt")
    there = f"there {english[found.agreement - 2]}"
    if draw.chance(0.5):
        return join(_word(there, f"es {german}"), found, place, STOP)
    return join(place, _word(there, f"{german} es", "verb_second"), found, STOP)


def asked_who(draw: Draw) -> Phrase:
    """Who buys a red car?"""
    who = clause(draw, about=_word("who", "wer"))
    return join(who.arrange("statement"), ASK)


def question(draw: Draw) -> Phrase:
    """Does the teacher buy a red car? Why does he not sleep? What does he buy?"""
    word, verbs = draw.one_of(QUESTIONS)
    if word.english == "what":
        word, verbs = _asked_object(draw)
    adverbs = 0.0 if word.english == "when" else 0.2
    main = clause(draw, verbs=verbs, adverbs=adverbs, brief=bool(verbs))
    return join(word, main.arrange("question"), ASK)


def _asked_object(draw: Draw) -> tuple[Phrase, tuple[Verb, ...]]:
    """Draw "what", "whom" or "how many cars", and a verb that governs it."""
    verb = draw.one_of(predicates.OBJECT_VERBS)
    noun, verbs = draw.noun(*verb.objects), _without_object(verb)
    if "person" in verb.objects:
        german = {"accusative": "wen", "dative": "wem"}[verb.case]
        return _word("whom", german, verb.case), verbs
    if not noun.english_plural or draw.chance(0.5):
        return _word("what", "was"), verbs
    german = f"wie viele {noun.forms['p']['accusative']}"
    many = _word(f"how many {noun.english_plural}", german, "accusative", "plural")
    return many._replace(pairs=((verb.english, noun.english),)), verbs


# What is named more often is likelier.
PATTERNS = (
    *((statement,) * 7 + (fronted,) * 5 + (subordinate,) * 5 + (question,) * 6),
    *((reported,) * 2 + (planned,) * 2 + (relative,) * 3),
    *(coordinated, existing, asked_who),
)
