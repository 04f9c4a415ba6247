"""The built-in corpus: its German is right, and its splits are what they promise."""

import itertools
import re
import time

import pytest

from jaxformer.data import grammar
from jaxformer.data.grammar import (
    SPLITS,
    Pair,
    accuracy_by_phenomenon,
    adjectives,
    clauses,
    determiners,
    generate,
    is_held_out,
    nouns,
    verbs,
)
from jaxformer.data.grammar.clauses import Clause, conjugate_german
from jaxformer.data.grammar.phrases import Phrase, decline, own, prepositional
from jaxformer.data.grammar.predicates import Predicate
from jaxformer.errors import InputError

NOUN = {n.english: n for kind in nouns.LEXICON.values() for n in kind}
ADJECTIVE = {a.english: a for kind in adjectives.DESCRIPTIONS.values() for a in kind}
VERB = {
    governs: {verb.english: verb for verb in table}
    for governs, table in verbs.LEXICON.items()
}
MY, MY_PLURAL = determiners.POSSESSIVES[:2]
TWO = determiners.NUMBERS[0]
MANY = determiners.QUANTIFIERS[0]


def phrase(case, determiner, adjective, noun, negated=False):
    described = ADJECTIVE[adjective] if adjective else None
    return decline(NOUN[noun], case, determiner, described, negated=negated)


@pytest.mark.parametrize(
    ("determiner", "adjective", "noun", "english", "forms"),
    [
        (
            *(determiners.THE, "old", "man", "the old man"),
            ["der alte Mann", "den alten Mann", "dem alten Mann", "des alten Mannes"],
        ),
        (
            *(determiners.THE, "young", "woman", "the young woman"),
            [
                *("die junge Frau", "die junge Frau"),
                *("der jungen Frau", "der jungen Frau"),
            ],
        ),
        (
            *(determiners.THE, "tired", "child", "the tired child"),
            [
                *("das müde Kind", "das müde Kind"),
                *("dem müden Kind", "des müden Kindes"),
            ],
        ),
        (
            *(determiners.THE_PLURAL, "sick", "child", "the sick children"),
            [
                *("die kranken Kinder", "die kranken Kinder"),
                *("den kranken Kindern", "der kranken Kinder"),
            ],
        ),
        (
            *(determiners.A, "old", "man", "an old man"),
            [
                *("ein alter Mann", "einen alten Mann"),
                *("einem alten Mann", "eines alten Mannes"),
            ],
        ),
        (
            *(determiners.A, "young", "woman", "a young woman"),
            [
                *("eine junge Frau", "eine junge Frau"),
                *("einer jungen Frau", "einer jungen Frau"),
            ],
        ),
        (
            *(determiners.A, "small", "pig", "a small pig"),
            ["ein kleines Schwein", "ein kleines Schwein", "einem kleinen Schwein"],
        ),
        (
            *(MY, "expensive", "coat", "my expensive coat"),
            ["mein teurer Mantel", "meinen teuren Mantel", "meinem teuren Mantel"],
        ),
        (
            *(MY_PLURAL, "dark", "kitchen", "my dark kitchens"),
            ["meine dunklen Küchen", "meine dunklen Küchen", "meinen dunklen Küchen"],
        ),
        (
            *(determiners.BARE, "red", "flower", "red flowers"),
            ["rote Blumen", "rote Blumen", "roten Blumen"],
        ),
        (
            *(TWO, "big", "dog", "two big dogs"),
            ["zwei große Hunde", "zwei große Hunde", "zwei großen Hunden"],
        ),
        (
            *(MANY, "new", "car", "many new cars"),
            ["viele neue Autos", "viele neue Autos", "vielen neuen Autos"],
        ),
        (
            *(determiners.MASS, "cold", "water", "cold water"),
            ["kaltes Wasser", "kaltes Wasser", "kaltem Wasser"],
        ),
        (
            *(determiners.MASS, "fresh", "milk", "fresh milk"),
            ["frische Milch", "frische Milch", "frischer Milch"],
        ),
        (
            *(determiners.MASS, "warm", "tea", "warm tea"),
            ["warmer Tee", "warmen Tee", "warmem Tee"],
        ),
        (
            *(determiners.THIS, "lazy", "boy", "this lazy boy"),
            [
                *("dieser faule Junge", "diesen faulen Jungen"),
                *("diesem faulen Jungen", "dieses faulen Jungen"),
            ],
        ),
        (
            *(determiners.EVERY, "wild", "bear", "every wild bear"),
            ["jeder wilde Bär", "jeden wilden Bären", "jedem wilden Bären"],
        ),
        (
            *(determiners.THE, "", "student", "the student"),
            ["der Student", "den Studenten", "dem Studenten", "des Studenten"],
        ),
    ],
)
def test_noun_phrases_agree_in_gender_case_and_number(
    determiner, adjective, noun, english, forms
):
    for case, german in zip(nouns.CASES, forms, strict=False):
        made = phrase(case, determiner, adjective, noun)
        assert (made.english, made.german) == (english, german)


@pytest.mark.parametrize(
    ("case", "determiner", "noun", "german"),
    [
        ("accusative", determiners.A, "coat", "keinen warmen Mantel"),
        ("accusative", determiners.A, "jacket", "keine warme Jacke"),
        ("accusative", determiners.A, "shirt", "kein warmes Hemd"),
        ("accusative", determiners.BARE, "shirt", "keine warmen Hemden"),
        ("accusative", determiners.MASS, "beer", "kein warmes Bier"),
        ("dative", determiners.BARE, "shirt", "keinen warmen Hemden"),
        ("accusative", determiners.THE, "coat", "den warmen Mantel"),
    ],
)
def test_an_indefinite_phrase_is_negated_by_kein(case, determiner, noun, german):
    made = phrase(case, determiner, "warm", noun, negated=True)
    assert made.german == german
    assert made.is_negative == german.startswith("kein")


def test_an_owner_stands_in_the_genitive():
    farmer = phrase("genitive", determiners.THE, "rich", "farmer")
    made = own(farmer, NOUN["car"], "dative", ADJECTIVE["new"], plural=False)
    assert made.english == "the rich farmer's new car"
    assert made.german == "dem neuen Auto des reichen Bauern"
    waitress = phrase("genitive", MY, "", "waitress")
    made = own(waitress, NOUN["cat"], "nominative", None, plural=False)
    assert made.english == "my waitress's cat"


@pytest.mark.parametrize(
    ("english", "german", "case", "determiner", "noun", "expected"),
    [
        ("in", "in", "dative", determiners.THE, "garden", "im Garten"),
        ("in", "in", "dative", determiners.THE, "kitchen", "in der Küche"),
        ("into", "in", "accusative", determiners.THE, "house", "ins Haus"),
        ("into", "in", "accusative", determiners.THE, "garden", "in den Garten"),
        ("to", "zu", "dative", determiners.THE, "school", "zur Schule"),
        ("to", "zu", "dative", determiners.THE, "park", "zum Park"),
        ("at", "an", "dative", determiners.THE, "window", "am Fenster"),
        ("in", "in", "dative", determiners.THIS, "garden", "in diesem Garten"),
        ("on", "auf", "dative", determiners.THE, "table", "auf dem Tisch"),
        ("on", "auf", "accusative", determiners.THE, "table", "auf den Tisch"),
    ],
)
def test_prepositions_govern_a_case_and_contract(
    english, german, case, determiner, noun, expected
):
    made = prepositional(english, german, phrase(case, determiner, "", noun))
    assert made.german == expected


@pytest.mark.parametrize(
    ("governs", "english", "finite", "participle", "zu_infinitive"),
    [
        ("accusative", "buy", "kaufe kaufst kauft kaufen", "gekauft", "zu kaufen"),
        ("accusative", "read", "lese liest liest lesen", "gelesen", "zu lesen"),
        (
            *("accusative", "repair", "repariere reparierst repariert reparieren"),
            *("repariert", "zu reparieren"),
        ),
        ("accusative", "visit", "besuche besuchst besucht besuchen", "besucht", None),
        ("accusative", "have", "habe hast hat haben", "gehabt", None),
        ("accusative", "eat", "esse isst isst essen", "gegessen", None),
        (
            *("accusative", "invite", "lade lädst lädt laden"),
            *("eingeladen", "einzuladen"),
        ),
        (
            *("accusative", "open", "mache machst macht machen"),
            *("aufgemacht", "aufzumachen"),
        ),
        (
            *("accusative", "find", "finde findest findet finden"),
            *("gefunden", None),
        ),
        ("activity", "dance", "tanze tanzt tanzt tanzen", "getanzt", None),
        (
            *("activity", "work", "arbeite arbeitest arbeitet arbeiten"),
            *("gearbeitet", None),
        ),
        ("reporting", "know", "weiß weißt weiß wissen", "gewusst", None),
    ],
)
def test_verbs_are_conjugated(governs, english, finite, participle, zu_infinitive):
    verb = VERB[governs][english]
    assert verb.finite == tuple(finite.split())
    assert verb.participle == participle
    assert zu_infinitive in (None, verb.zu_infinitive)


def made_clause(subject, verb, tense, negated=False, **parts):
    return Clause(subject, Predicate(verb, **parts), tense, negated)


SHE = Phrase("she", "sie")
TODAY = Phrase("today", "heute")
DOOR = phrase("accusative", determiners.THE, "", "door")
OPEN = VERB["accusative"]["open"]


@pytest.mark.parametrize(
    ("tense", "main", "inverted", "final", "english", "question"),
    [
        (
            "present",
            "sie macht heute die Tür auf",
            "macht sie heute die Tür auf",
            "sie heute die Tür aufmacht",
            "she opens the door today",
            "does she open the door today",
        ),
        (
            "past",
            "sie hat heute die Tür aufgemacht",
            "hat sie heute die Tür aufgemacht",
            "sie heute die Tür aufgemacht hat",
            "she opened the door today",
            "did she open the door today",
        ),
        (
            "want to",
            "sie will heute die Tür aufmachen",
            "will sie heute die Tür aufmachen",
            "sie heute die Tür aufmachen will",
            "she wants to open the door today",
            "does she want to open the door today",
        ),
        (
            "can",
            "sie kann heute die Tür aufmachen",
            "kann sie heute die Tür aufmachen",
            "sie heute die Tür aufmachen kann",
            "she can open the door today",
            "can she open the door today",
        ),
    ],
)
def test_the_verb_stands_second_first_or_last(
    tense, main, inverted, final, english, question
):
    made = made_clause(SHE, OPEN, tense, object=DOOR)._replace(time=TODAY)
    assert made.german() == main
    assert made.german_inverted() == inverted
    assert made.german_final() == final
    assert made.english() == english
    assert made.english_question() == question
    assert made.german_infinitive() == "heute die Tür aufzumachen"


def test_negation_stands_before_places_and_behind_definite_objects():
    book = phrase("accusative", determiners.THE, "", "book", negated=True)
    table = phrase("accusative", determiners.THE, "", "table", negated=True)
    on_table = prepositional("on", "auf", table)
    lay, sleep = VERB["placing"]["lay"], VERB["state"]["sleep"]
    made = made_clause(SHE, lay, "present", True, object=book, tail=on_table)
    assert made.german() == "sie legt das Buch nicht auf den Tisch"
    assert made.english() == "she does not lay the book on the table"
    made = made_clause(SHE, lay, "can", True, object=book)
    assert made.german() == "sie kann das Buch nicht legen"
    assert made.english() == "she cannot lay the book"
    made = made_clause(SHE, sleep, "past", True)
    assert made.german() == "sie hat nicht geschlafen"
    made = made_clause(SHE, OPEN, "present", True, object=DOOR)
    assert made.german() == "sie macht die Tür nicht auf"
    novel = phrase("accusative", determiners.A, "", "novel", negated=True)
    made = made_clause(SHE, VERB["accusative"]["read"], "present", True, object=novel)
    assert made.german() == "sie liest keinen Roman"


def test_motion_takes_sein_in_the_perfect():
    assert conjugate_german(VERB["motion"]["go"], "past", 0).final == "gegangen bin"
    assert conjugate_german(VERB["separable"]["arrive"], "past", 3).finite == "sind"
    assert conjugate_german(VERB["accusative"]["see"], "past", 1).finite == "hast"
    assert conjugate_german(VERB["existing"]["be"], "past", 1).final == "warst"


def test_numbers_say_the_units_first():
    spoken = dict(determiners.NUMBER_WORDS)
    assert len(spoken) == 98
    assert spoken["twenty-one"] == "einundzwanzig"
    assert spoken["thirty-six"] == "sechsunddreißig"
    assert spoken["seventeen"] == "siebzehn"
    assert spoken["ninety-nine"] == "neunundneunzig"
    assert spoken["twelve"] == "zwölf"


# ------------------------------------------------------------------------ corpus


@pytest.fixture(scope="module")
def corpus():
    sizes = {"train": 20_000, "dev": 1_000, "test": 1_000, "unseen": 1_000}
    return {split: list(generate(split, sizes[split], 1)) for split in SPLITS}


def words_of(text):
    return re.findall(r"[\w'-]+", text.lower())


def test_a_seed_decides_the_pairs_and_a_larger_count_continues():
    first = list(generate("train", 300, 5))
    assert list(generate("train", 500, 5))[:300] == first
    assert list(generate("train", 300, 6)) != first
    assert len({pair.source for pair in first}) == 300
    assert list(generate("dev", 0, 5)) == []


def test_generation_is_fast_enough_to_start_every_run_with_it():
    start = time.process_time()
    assert len(list(generate("train", 4_000, 3))) == 4_000
    assert time.process_time() - start < 2.0


def test_splits_share_no_sentence_whatever_their_seeds(corpus):
    sources = {split: {pair.source for pair in corpus[split]} for split in SPLITS}
    for split in SPLITS:
        sources[split] |= {pair.source for pair in generate(split, 500, 2)}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not sources[one] & sources[other]


def test_a_sentence_has_one_translation(corpus):
    translations = {}
    for pair in itertools.chain(*corpus.values(), generate("train", 10_000, 9)):
        assert translations.setdefault(pair.source, pair.target) == pair.target


def test_every_word_of_the_other_splits_occurs_in_train(corpus):
    known = {word for pair in corpus["train"] for word in words_of(pair.source)}
    for split in ("dev", "test", "unseen"):
        asked = {word for pair in corpus[split] for word in words_of(pair.source)}
        assert asked <= known


def test_every_word_keeps_combinations_that_are_not_held_out():
    for kind, described in adjectives.DESCRIPTIONS.items():
        for noun in nouns.LEXICON[kind]:
            free = [a for a in described if not is_held_out((a.english, noun.english))]
            assert len(free) >= 2
    for verb in itertools.chain(*verbs.LEXICON.values()):
        taken = [n.english for kind in verb.objects for n in nouns.LEXICON[kind]]
        free = [noun for noun in taken if not is_held_out((verb.english, noun))]
        assert not taken or len(free) >= 2


def test_unseen_combinations_are_absent_from_train(corpus):
    known = {
        two
        for pair in corpus["train"]
        for two in itertools.pairwise(words_of(pair.source))
    }
    held_out = {
        (adjective.english, noun.english)
        for kind, described in adjectives.DESCRIPTIONS.items()
        for adjective in described
        for noun in nouns.LEXICON[kind]
        if is_held_out((adjective.english, noun.english))
    }
    assert len(held_out) > 100
    assert not held_out & known


def test_every_phenomenon_occurs_in_every_split(corpus):
    names = {
        *("accusative", "dative", "genitive", "adjective", "plural", "number"),
        *("possessive", "pronoun", "weak_noun", "mass_noun", "negation", "question"),
        *("verb_second", "verb_final", "separable", "modal", "perfect"),
        *("relative_clause", "infinitive_clause", "comparative", "coordination"),
        *("location", "direction"),
    }
    for split in SPLITS:
        assert {name for pair in corpus[split] for name in pair.phenomena} == names


def test_sentences_are_well_formed_text(corpus):
    for pair in itertools.chain(*corpus.values()):
        for text in (pair.source, pair.target):
            assert text[0].isupper()
            assert text[-1] in ".?"
            assert "  " not in text
            assert not re.search(r"\s[.,?]", text)
        assert pair.source[-1] == pair.target[-1]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", pair.source.lower())
        assert not re.search(r"\b(in dem|in das|an dem|zu dem|zu der)\b", pair.target)


def test_the_vocabulary_is_several_hundred_words():
    german = {noun.singular["nominative"] for noun in NOUN.values()}
    german |= {adjective.german for adjective in ADJECTIVE.values()}
    german |= {verb.infinitive for table in VERB.values() for verb in table.values()}
    german |= {word for _, word in determiners.NUMBER_WORDS if "und" not in word}
    german |= {german for times in clauses.TIMES.values() for _, german in times}
    german |= {german for _, german in clauses.FREQUENCIES}
    assert len(german) >= 300


def test_accuracy_counts_each_phenomenon_of_a_pair():
    pairs = [
        Pair("A", "a", ("dative", "plural")),
        Pair("B", "b", ("plural",)),
        Pair("C", "c", ()),
    ]
    assert accuracy_by_phenomenon(pairs, ["a", "x", "c"]) == {
        "dative": (1, 1),
        "plural": (1, 2),
    }
    with pytest.raises(ValueError, match="shorter"):
        accuracy_by_phenomenon(pairs, ["a"])


def test_an_unknown_split_is_refused_at_once():
    with pytest.raises(InputError, match="validation"):
        generate("validation", 1, 0)
    assert grammar.SPLITS == ("train", "dev", "test", "unseen")
