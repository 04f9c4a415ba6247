"""The adjectives of the built-in corpus and the endings German gives them.

An adjective's ending follows from the determiner before it, the case, and the gender
("m", "f", "n") or the plural ("p"). `phrases` builds noun phrases of these.
"""

from typing import NamedTuple

# english comparative | german comparative | classes of nouns it describes
ADJECTIVES = """
    old older | alt älter | person animal text goods building
    young younger | jung jünger | person animal
    small smaller | klein kleiner | animal goods building room
    big bigger | groß größer | animal goods building room
    new newer | neu neuer | text goods building
    beautiful - | schön schöner | animal text thing clothes building room
    expensive - | teuer teurer | goods food groceries
    cheap cheaper | billig billiger | goods drink
    good better | gut besser | text food groceries drink machine
    bad worse | schlecht schlechter | text food groceries drink
    tired - | müde müder | person animal
    friendly friendlier | freundlich freundlicher | person
    sick sicker | krank kränker | person animal
    happy happier | glücklich glücklicher | person
    famous - | berühmt berühmter | person place text
    strong stronger | stark stärker | person animal machine
    poor poorer | arm ärmer | person
    rich richer | reich reicher | person
    clever cleverer | klug klüger | person animal
    lazy lazier | faul fauler | person animal
    brave braver | mutig mutiger | person
    sad sadder | traurig trauriger | person text
    hungry hungrier | hungrig hungriger | person animal
    wild wilder | wild wilder | animal
    dangerous - | gefährlich gefährlicher | animal vehicle machine
    long longer | lang länger | text clothes
    short shorter | kurz kürzer | text clothes
    interesting - | interessant interessanter | text place
    funny funnier | lustig lustiger | text
    heavy heavier | schwer schwerer | thing machine furniture entrance
    red - | rot - | goods
    blue - | blau - | goods
    green - | grün - | goods
    black - | schwarz - | animal clothes vehicle
    white - | weiß - | animal clothes furniture
    brown - | braun - | animal clothes furniture
    warm warmer | warm wärmer | clothes room food drink
    cold colder | kalt kälter | room food drink groceries
    fresh fresher | frisch frischer | food groceries drink
    sweet sweeter | süß süßer | food drink
    dark darker | dunkel dunkler | place room
    modern - | modern moderner | machine place room vehicle
    clean cleaner | sauber sauberer | room clothes vehicle
    fast faster | schnell schneller | vehicle machine animal
"""

GROUPS = {
    "goods": ("thing", "clothes", "vehicle", "machine", "furniture"),
    "building": ("place", "landmark", "entrance"),
}

# Endings in the order of GENDERS. STRONG also inflects dies-, jed-, viel-, einig-.
GENDERS = "mfnp"
STRONG = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("en", "er", "en", "er"),
}
WEAK = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
    "genitive": ("en", "en", "en", "en"),
}
MIXED = {
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
    "genitive": ("en", "en", "en", "en"),
}


class Adjective(NamedTuple):
    """One adjective; the comparatives are empty where none is used."""

    english: str
    english_comparative: str
    german: str
    german_comparative: str

    @property
    def stem(self) -> str:
        """What endings are added to: "dunkel", "teuer" and "müde" lose an e."""
        if self.german.endswith(("el", "euer")):
            return self.german[:-2] + self.german[-1]
        return self.german.removesuffix("e")


def _read_adjective(line: str) -> tuple[Adjective, list[str]]:
    """One line of ADJECTIVES as an entry and the classes it describes."""
    english, german, kinds = (column.split() for column in line.split("|"))
    compared = "" if german[1] == "-" else german[1]
    more = english[1] if english[1] != "-" else f"more {english[0]}"
    adjective = Adjective(english[0], more if compared else "", german[0], compared)
    return adjective, [k for name in kinds for k in GROUPS.get(name, (name,))]


def _by_kind() -> dict[str, tuple[Adjective, ...]]:
    entries = [_read_adjective(line) for line in ADJECTIVES.strip().splitlines()]
    kinds = {kind for _, described in entries for kind in described}
    return {
        kind: tuple(adjective for adjective, described in entries if kind in described)
        for kind in sorted(kinds)
    }


DESCRIPTIONS: dict[str, tuple[Adjective, ...]] = _by_kind()
