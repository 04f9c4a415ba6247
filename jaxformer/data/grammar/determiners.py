"""The determiners of the built-in corpus: articles, possessives, numbers, quantities.

A determiner has forms of its own and leaves the adjective behind it one of three sets
of endings. `phrases` builds noun phrases of these.
"""

from typing import NamedTuple

from jaxformer.data.grammar.adjectives import GENDERS, MIXED, STRONG, WEAK

DEFINITE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
    "genitive": ("des", "der", "des", "der"),
}
RELATIVE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "denen"),
}


class Determiner(NamedTuple):
    """One determiner: its forms, and the endings it leaves to an adjective."""

    english: str
    forms: dict[str, tuple[str, ...]]  # case -> forms in the order of GENDERS
    adjective_endings: dict[str, tuple[str, ...]]
    is_plural: bool
    is_indefinite: bool = False  # negated by "kein", not by "nicht"
    tags: frozenset[str] = frozenset()


def _like_der(stem: str) -> dict[str, tuple[str, ...]]:
    """The forms of dies-, jed-, viel-; their genitive is strong throughout."""
    forms = {case: tuple(stem + e for e in STRONG[case]) for case in STRONG}
    return {**forms, "genitive": tuple(stem + e for e in ("es", "er", "es", "er"))}


def _like_ein(stem: str) -> dict[str, tuple[str, ...]]:
    """The forms of ein, mein, kein: no ending in three places, else like dies-."""
    forms = _like_der(stem)
    for case, bare in (("nominative", "mn"), ("accusative", "n")):
        forms[case] = tuple(
            stem if gender in bare else form
            for gender, form in zip(GENDERS, forms[case], strict=True)
        )
    return forms


def _unchanged(word: str) -> dict[str, tuple[str, ...]]:
    return {case: (word,) * 4 for case in DEFINITE}


def _possessive(english: str, german: str) -> tuple[Determiner, Determiner]:
    forms, tags = _like_ein(german), frozenset(["possessive"])
    return (
        Determiner(english, forms, MIXED, is_plural=False, tags=tags),
        Determiner(english, forms, MIXED, is_plural=True, tags=tags),
    )


SMALL_NUMBERS = {
    **{"two": "zwei", "three": "drei", "four": "vier", "five": "fünf"},
    **{"six": "sechs", "seven": "sieben", "eight": "acht", "nine": "neun"},
    **{"ten": "zehn", "eleven": "elf", "twelve": "zwölf"},
}
TEENS = {
    **{"thirteen": "dreizehn", "fourteen": "vierzehn", "fifteen": "fünfzehn"},
    **{"sixteen": "sechzehn", "seventeen": "siebzehn", "eighteen": "achtzehn"},
    **{"nineteen": "neunzehn"},
}
TENS = {
    **{"twenty": "zwanzig", "thirty": "dreißig", "forty": "vierzig"},
    **{"fifty": "fünfzig", "sixty": "sechzig", "seventy": "siebzig"},
    **{"eighty": "achtzig", "ninety": "neunzig"},
}
QUANTITIES = {"many": "viel", "some": "einig", "several": "mehrer", "few": "wenig"}


def _number_words() -> tuple[tuple[str, str], ...]:
    """The numbers from 2 to 99 in both languages; German says the units first."""
    units = [("one", "ein"), *list(SMALL_NUMBERS.items())[:8]]
    tens = [
        (f"{ten}-{unit}", f"{german_unit}und{german_ten}")
        for ten, german_ten in TENS.items()
        for unit, german_unit in units
    ]
    return (*SMALL_NUMBERS.items(), *TEENS.items(), *TENS.items(), *tens)


NUMBER_WORDS = _number_words()

THE = Determiner("the", DEFINITE, WEAK, is_plural=False)
THE_PLURAL = Determiner("the", DEFINITE, WEAK, is_plural=True)
THIS = Determiner("this", _like_der("dies"), WEAK, is_plural=False)
THESE = Determiner("these", _like_der("dies"), WEAK, is_plural=True)
EVERY = Determiner("every", _like_der("jed"), WEAK, is_plural=False)
A = Determiner("a", _like_ein("ein"), MIXED, is_plural=False, is_indefinite=True)
BARE = Determiner("", _unchanged(""), STRONG, is_plural=True, is_indefinite=True)
MASS = Determiner("", _unchanged(""), STRONG, is_plural=False, is_indefinite=True)
NO = _like_ein("kein")
POSSESSIVES = (
    *_possessive("my", "mein"),
    *_possessive("your", "dein"),
    *_possessive("his", "sein"),
    *_possessive("her", "ihr"),
    *_possessive("our", "unser"),
    *_possessive("their", "ihr"),
)
NUMBERS = tuple(
    Determiner(
        number, _unchanged(german), STRONG, is_plural=True, tags=frozenset(["number"])
    )
    for number, german in SMALL_NUMBERS.items()
)
QUANTIFIERS = tuple(
    Determiner(english, _like_der(stem), STRONG, is_plural=True)
    for english, stem in QUANTITIES.items()
)

# Choose a pool, then a determiner of it: all numbers together weigh one pool.
DEFINITES = ((THE,), (THE,), (THE_PLURAL,), (THIS, THESE), POSSESSIVES)
_INDEFINITES = ((A,), (A,), (BARE,))
ANY = (*DEFINITES, *_INDEFINITES, (EVERY,), NUMBERS, QUANTIFIERS)
PLAIN = (*DEFINITES, *_INDEFINITES)  # these negate without ambiguity
COUNTED = ((A,), NUMBERS, QUANTIFIERS)
MASSES = ((MASS,), (MASS,), (THE,), (THIS,), POSSESSIVES[::2])
OWNERS = ((THE,), (THE,), (THIS,), POSSESSIVES[::2])
