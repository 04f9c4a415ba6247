"""The nouns of the built-in corpus, by class, and their forms in four cases.

A class says what a noun may do in a sentence: be eaten, be opened, contain people.
Nouns whose English plural equals their singular are absent, so that a sentence has one
translation. `phrases` builds noun phrases of these.
"""

from typing import NamedTuple

CASES = ("nominative", "accusative", "dative", "genitive")

# english [irregular plural] | article noun [-genitive ending] plural
# A genitive in -n or -en marks a weak noun: the ending stands in every oblique case.
NOUNS = {
    "person": """
        man men | der Mann -es Männer
        woman women | die Frau Frauen
        boy | der Junge -n Jungen
        girl | das Mädchen Mädchen
        child children | das Kind -es Kinder
        baby | das Baby Babys
        teacher | der Lehrer Lehrer
        student | der Student -en Studenten
        doctor | der Arzt -es Ärzte
        nurse | die Krankenschwester Krankenschwestern
        farmer | der Bauer -n Bauern
        baker | der Bäcker Bäcker
        neighbor | der Nachbar -n Nachbarn
        friend | der Freund -es Freunde
        father | der Vater Väter
        mother | die Mutter Mütter
        brother | der Bruder Brüder
        sister | die Schwester Schwestern
        son | der Sohn -es Söhne
        daughter | die Tochter Töchter
        uncle | der Onkel Onkel
        aunt | die Tante Tanten
        grandmother | die Großmutter Großmütter
        king | der König Könige
        queen | die Königin Königinnen
        customer | der Kunde -n Kunden
        policeman policemen | der Polizist -en Polizisten
        waitress | die Kellnerin Kellnerinnen
        artist | der Künstler Künstler
        tourist | der Tourist -en Touristen""",
    "animal": """
        dog | der Hund Hunde
        cat | die Katze Katzen
        horse | das Pferd Pferde
        cow | die Kuh Kühe
        bird | der Vogel Vögel
        mouse mice | die Maus Mäuse
        bear | der Bär -en Bären
        lion | der Löwe -n Löwen
        elephant | der Elefant -en Elefanten
        pig | das Schwein Schweine
        monkey | der Affe -n Affen""",
    "text": """
        book | das Buch Bücher
        letter | der Brief Briefe
        story | die Geschichte Geschichten
        poem | das Gedicht Gedichte
        report | der Bericht Berichte
        message | die Nachricht Nachrichten
        novel | der Roman Romane""",
    "thing": """
        key | der Schlüssel Schlüssel
        bottle | die Flasche Flaschen
        lamp | die Lampe Lampen
        clock | die Uhr Uhren
        picture | das Bild Bilder
        bag | die Tasche Taschen
        suitcase | der Koffer Koffer
        umbrella | der Regenschirm Regenschirme
        gift | das Geschenk Geschenke
        knife knives | das Messer Messer
        glass | das Glas Gläser
        cup | die Tasse Tassen
        guitar | die Gitarre Gitarren
        ball | der Ball Bälle
        flower | die Blume Blumen
        box | die Kiste Kisten""",
    "clothes": """
        coat | der Mantel Mäntel
        shirt | das Hemd Hemden
        dress | das Kleid Kleider
        hat | der Hut Hüte
        jacket | die Jacke Jacken
        skirt | der Rock Röcke
        sweater | der Pullover Pullover""",
    "food": """
        apple | der Apfel Äpfel
        egg | das Ei Eier
        cake | der Kuchen Kuchen
        potato potatoes | die Kartoffel Kartoffeln
        tomato tomatoes | die Tomate Tomaten
        orange | die Orange Orangen
        salad | der Salat Salate""",
    "groceries": """
        bread | das Brot
        cheese | der Käse
        meat | das Fleisch
        rice | der Reis
        butter | die Butter""",
    "drink": """
        water | das Wasser
        milk | die Milch
        coffee | der Kaffee
        tea | der Tee
        juice | der Saft
        wine | der Wein
        beer | das Bier""",
    "vehicle": """
        car | das Auto Autos
        bicycle | das Fahrrad Fahrräder
        bus | der Bus Busse
        train | der Zug Züge
        ship | das Schiff Schiffe
        truck | der Lastwagen Lastwagen
        taxi | das Taxi Taxis""",
    "machine": """
        computer | der Computer Computer
        television | der Fernseher Fernseher
        radio | das Radio Radios
        machine | die Maschine Maschinen
        printer | der Drucker Drucker""",
    "place": """
        garden | der Garten Gärten
        school | die Schule Schulen
        city | die Stadt Städte
        hotel | das Hotel Hotels
        restaurant | das Restaurant Restaurants
        park | der Park Parks
        forest | der Wald Wälder
        house | das Haus Häuser
        church | die Kirche Kirchen
        museum | das Museum Museen
        hospital | das Krankenhaus Krankenhäuser
        village | das Dorf Dörfer
        castle | das Schloss Schlösser
        shop | der Laden Läden""",
    "room": """
        kitchen | die Küche Küchen
        cellar | der Keller Keller
        office | das Büro Büros
        bedroom | das Schlafzimmer Schlafzimmer
        garage | die Garage Garagen""",
    "furniture": """
        table | der Tisch Tische
        chair | der Stuhl Stühle
        sofa | das Sofa Sofas
        bed | das Bett Betten
        shelf shelves | das Regal Regale
        bench | die Bank Bänke
        desk | der Schreibtisch Schreibtische""",
    "landmark": """
        tree | der Baum Bäume
        bridge | die Brücke Brücken
        fountain | der Brunnen Brunnen
        wall | die Mauer Mauern
        statue | die Statue Statuen""",
    "entrance": """
        door | die Tür Türen
        window | das Fenster Fenster
        gate | das Tor Tore""",
}


class Noun(NamedTuple):
    """One noun; a gender is "m", "f" or "n"; a mass noun has no plural."""

    english: str
    english_plural: str
    gender: str
    singular: dict[str, str]  # case -> German form
    plural: dict[str, str]
    kind: str  # the class, a key of NOUNS
    is_mass: bool
    is_weak: bool


def english_plural(noun: str) -> str:
    """The regular English plural of a noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _read_noun(line: str, kind: str) -> Noun:
    """One line of NOUNS as an entry."""
    english, german = (side.split() for side in line.split("|"))
    article, singular, *rest = german
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    ending = rest.pop(0)[1:] if rest and rest[0].startswith("-") else "s"
    plural = rest[0] if rest else ""
    is_weak = ending in ("n", "en")
    oblique = singular + ending if is_weak else singular
    genitive = singular if gender == "f" else singular + ending
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    return Noun(
        english=english[0],
        english_plural=english[1] if len(english) > 1 else english_plural(english[0]),
        gender=gender,
        singular=dict(zip(CASES, (singular, oblique, oblique, genitive), strict=True)),
        plural=dict(zip(CASES, (plural, plural, dative_plural, plural), strict=True)),
        kind=kind,
        is_mass=not plural,
        is_weak=is_weak,
    )


LEXICON: dict[str, tuple[Noun, ...]] = {
    kind: tuple(_read_noun(line, kind) for line in table.strip().splitlines())
    for kind, table in NOUNS.items()
}
