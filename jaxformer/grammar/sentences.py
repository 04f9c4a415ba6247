"""The sentences of the built-in corpus: each function below draws one pattern."""

from jaxformer.grammar.clauses import ACTIONS, TIMES, clause
from jaxformer.grammar.lexicon import ENDINGS, VERBS, Verb, read_table
from jaxformer.grammar.noun_phrases import NOTHING, PHRASES, Draw, Phrase, join, word

STOP, ASK = word(".", "."), word("?", "?", "question")
COMMA, GERMAN_COMMA = word(",", ","), word("", ",")
CONJUNCTIONS = read_table("conjunctions", lambda entry, _: entry.split(" : "))
JOINED = "coordination"
COORDINATORS = word(", but", ", aber", JOINED), word("and", "und", JOINED)


def _without_object(*verbs: Verb) -> tuple[Verb, ...]:
    """Return the verbs for a clause whose object or place stands outside it."""
    return tuple(verb._replace(objects=(), governs="") for verb in verbs)


QUESTIONS = (
    *[(NOTHING, ())] * 4,
    (word("when", "wann"), ()),
    (word("why", "warum"), ()),
    (word("where", "wo"), _without_object(*VERBS["activity"], *VERBS["state"])),
    # "Where does he come?" is no question.
    (word("where", "wohin"), _without_object(*VERBS["motion"][:-1])),
    (word("what", "was"), ()),
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
    both, tenses, main_tenses = draw.one_of(CONJUNCTIONS["subordinating"])
    conjunction = word(*both.split(" = "))
    # "before he does not" is odd
    negation = 0.0 if conjunction.english == "before" else 0.1
    side = clause(draw, tenses=tenses, negation=negation, brief=True).arrange("final")
    main = clause(draw, tenses=main_tenses, brief=True)
    if draw.chance(0.6):
        return join(main.arrange("statement"), GERMAN_COMMA, conjunction, side, STOP)
    return join(conjunction, side, COMMA, main.arrange("inverted"), STOP)


def coordinated(draw: Draw) -> Phrase:
    """The teacher sleeps, but the children sing."""
    first, second = (clause(draw, brief=True).arrange("statement") for _ in "12")
    return join(first, draw.one_of(COORDINATORS), second, STOP)


def reported(draw: Draw) -> Phrase:
    """The teacher knows that he is tired, or does not know whether he is tired."""
    that, verbs, negation = word("that", "dass"), VERBS["reporting"], 0.0
    if draw.chance(0.3):
        that, verbs, negation = word("whether", "ob"), verbs[:1], 1.0
    speaker = clause(draw, verbs=verbs, negation=negation, adverbs=0.0, brief=True)
    content = clause(draw, brief=True).arrange("final")
    return join(speaker.arrange("statement"), GERMAN_COMMA, that, content, STOP)


def planned(draw: Draw) -> Phrase:
    """The teacher tries to open the door."""
    planner = clause(draw, verbs=VERBS["planning"], adverbs=0.0, brief=True)
    options = {"tenses": "present", "negation": 0.0, "adverbs": 0.0}
    plan = clause(draw, about=planner.subject, verbs=ACTIONS["purpose"], **options)
    parts = planner.arrange("statement"), GERMAN_COMMA, plan.arrange("infinitive")
    return join(*parts, STOP)


def relative(draw: Draw) -> Phrase:
    """The man who helps the child is tired. The book that he buys is new."""
    draw = draw._replace(brief=True)
    is_subject = draw.chance(0.6)
    verb = None if is_subject else draw.one_of(ACTIONS["object"])
    noun = draw.noun(*(verb.objects if verb else ["person"]))
    name, case = (verb.english, verb.case) if verb else ("", "nominative")
    head = draw.phrase(noun, "nominative", "with article", verb=name)
    pronoun = word("that", ENDINGS["relative", case, head.gender])
    if verb:
        english = "whom" if noun.kind == "person" else "that"
        inner = clause(draw, verbs=_without_object(verb), brief=True)
        side = join(pronoun._replace(english=english), inner.arrange("final"))
    else:
        who = pronoun._replace(english="who", agreement=head.agreement)
        side = clause(draw, about=who, brief=True).arrange("final")
    comma = word("", ",", "relative_clause")
    acts = noun.kind == "person" and draw.chance(0.6)
    main = clause(
        draw,
        about=join(head, comma, side, comma),
        verbs=ACTIONS["intransitive"] if acts else VERBS["being"],
        brief=True,
    )
    return join(main.arrange("statement"), STOP)


def existing(draw: Draw) -> Phrase:
    """There are three cats in the garden. In the garden there are three cats."""
    noun = draw.noun("person", "animal", "thing", "landmark")
    found = draw.phrase(noun, "accusative", "counted")
    place = draw.among(PHRASES["places"])
    is_past = draw.chance(0.3)
    english, german = (("was", "were"), "gab") if is_past else (("is", "are"), "gibt")
    there = f"there {english[found.agreement - 2]}"
    if draw.chance(0.5):
        return join(word(there, f"es {german}"), found, place, STOP)
    return join(place, word(there, f"{german} es", "verb_second"), found, STOP)


def asked_who(draw: Draw) -> Phrase:
    """Who buys a red car?"""
    return join(clause(draw, about=word("who", "wer")).arrange("statement"), ASK)


def question(draw: Draw) -> Phrase:
    """Does the teacher buy a red car? Why does he not sleep? What does he buy?"""
    asked, verbs = draw.one_of(QUESTIONS)
    if asked.english == "what":
        asked, verbs = _asked_object(draw)
    adverbs = 0.0 if asked.english == "when" else 0.2
    main = clause(draw, verbs=verbs, adverbs=adverbs, brief=bool(verbs))
    return join(asked, main.arrange("question"), ASK)


def _asked_object(draw: Draw) -> tuple[Phrase, tuple[Verb, ...]]:
    """Draw "what", "whom" or "how many cars", and a verb that governs it."""
    verb = draw.one_of(ACTIONS["object"])
    noun, verbs = draw.noun(*verb.objects), _without_object(verb)
    if "person" in verb.objects:
        german = {"accusative": "wen", "dative": "wem"}[verb.case]
        return word("whom", german, verb.case), verbs
    if not noun.english_plural or draw.chance(0.5):
        return word("what", "was"), verbs
    german = f"wie viele {noun.forms['p', 'accusative']}"
    many = word(f"how many {noun.english_plural}", german, "accusative", "plural")
    return many._replace(pairs=((verb.english, noun.english),)), verbs


# Patterns that repeat are likelier.
PATTERNS = (
    *((statement,) * 7 + (fronted,) * 5 + (subordinate,) * 5 + (question,) * 6),
    *((reported,) * 2 + (planned,) * 2 + (relative,) * 3),
    *(coordinated, existing, asked_who),
)
