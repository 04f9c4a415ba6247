"""The verbs of the built-in corpus, by what they govern, and their finite forms.

A verb whose English past equals its present ("read", "put"), or whose past would not
be a perfect in German ("had", "knew"), has "-" for it and stays in the present, so that
a sentence has one translation. `clauses` builds clauses of these.
"""

from typing import NamedTuple

# english, past | infinitive [3rd person, participle [sein]] | objects | preposition
# A hyphen parts a separable prefix from its verb; regular forms are left out.
VERBS = {
    "accusative": """
        buy, bought | kaufen | thing text clothes food groceries drink vehicle machine
        sell, sold | verkaufen | thing text clothes food groceries vehicle machine
        see, saw | sehen sieht gesehen | person animal vehicle place landmark
        find, found | finden findet gefunden | thing animal clothes place
        look for, looked for | suchen | thing person animal clothes place
        love, loved | lieben | person animal
        visit, visited | besuchen | person place
        know, - | kennen kennt gekannt | person place text
        meet, met | treffen trifft getroffen | person
        ask, asked | fragen | person
        greet, greeted | begrüßen | person
        hear, heard | hören | person animal
        read, - | lesen liest gelesen | text
        write, wrote | schreiben schreibt geschrieben | text
        translate, translated | übersetzen übersetzt übersetzt | text
        understand, understood | verstehen versteht verstanden | person text
        eat, ate | essen isst gegessen | food groceries
        drink, drank | trinken trinkt getrunken | drink
        wash, washed | waschen wäscht gewaschen | clothes vehicle
        wear, wore | tragen trägt getragen | clothes
        hide, hid | verstecken | thing text
        lose, lost | verlieren verliert verloren | thing clothes text
        steal, stole | stehlen stiehlt gestohlen | thing vehicle animal
        need, needed | brauchen | thing clothes vehicle machine furniture
        have, - | haben hat gehabt | thing animal vehicle furniture
        use, used | benutzen | machine thing vehicle
        repair, repaired | reparieren | machine vehicle furniture
        paint, painted | malen | animal landmark place
        build, built | bauen | place furniture
        feed, fed | füttern | animal
        catch, caught | fangen fängt gefangen | animal
        watch, watched | beobachten | person animal
        describe, described | beschreiben beschreibt beschrieben | person place
        open, opened | auf-machen | entrance
        close, closed | zu-machen | entrance
        turn on, turned on | ein-schalten | machine
        turn off, turned off | aus-schalten | machine
        call, called | an-rufen ruft angerufen | person
        invite, invited | ein-laden lädt eingeladen | person
        fetch, fetched | ab-holen | person
        look at, looked at | an-sehen sieht angesehen | person animal place landmark
        bring along, brought along | mit-bringen bringt mitgebracht | thing food drink
        throw away, threw away | weg-werfen wirft weggeworfen | thing clothes food
        pick up, picked up | auf-heben hebt aufgehoben | thing clothes
        put on, - | an-ziehen zieht angezogen | clothes
        take off, took off | aus-ziehen zieht ausgezogen | clothes
        clean up, cleaned up | auf-räumen | room
        give back, gave back | zurück-geben gibt zurückgegeben | thing text clothes""",
    "dative": """
        help, helped | helfen hilft geholfen | person animal
        thank, thanked | danken | person
        follow, followed | folgen folgt gefolgt sein | person animal vehicle
        trust, trusted | vertrauen | person
        answer, answered | antworten | person
        congratulate, congratulated | gratulieren | person
        forgive, forgave | verzeihen verzeiht verziehen | person
        listen to, listened to | zu-hören | person""",
    "prepositional": """
        wait for, waited for | warten | person vehicle | auf
        think of, thought of | denken denkt gedacht | person place | an
        talk about, talked about | sprechen spricht gesprochen | person text | über
        laugh about, laughed about | lachen | person text | über
        dream of, dreamed of | träumen | person animal place | von
        ask about, asked about | fragen | person animal | nach""",
    "ditransitive": """
        give, gave | geben gibt gegeben | thing text clothes
        show, showed | zeigen | thing text clothes vehicle animal
        send, sent | schicken | thing text clothes
        lend, lent | leihen leiht geliehen | thing text vehicle
        bring, brought | bringen bringt gebracht | thing text food drink groceries
        offer, offered | an-bieten bietet angeboten | food drink groceries""",
    "placing": """
        lay, laid | legen | thing text clothes
        throw, threw | werfen wirft geworfen | thing clothes
        push, pushed | schieben schiebt geschoben | thing""",
    "activity": """
        sing, sang | singen singt gesungen
        dance, danced | tanzen
        work, worked | arbeiten
        play, played | spielen
        laugh, laughed | lachen
        talk, talked | sprechen spricht gesprochen
        cook, cooked | kochen
        study, studied | lernen""",
    "state": """
        sleep, slept | schlafen schläft geschlafen
        cry, cried | weinen
        wait, waited | warten
        sit, sat | sitzen sitzt gesessen
        stand, stood | stehen steht gestanden
        dream, dreamed | träumen""",
    "separable": """
        get up, got up | auf-stehen steht aufgestanden sein
        wake up, woke up | auf-wachen wacht aufgewacht sein
        fall asleep, fell asleep | ein-schlafen schläft eingeschlafen sein
        arrive, arrived | an-kommen kommt angekommen sein
        come back, came back | zurück-kommen kommt zurückgekommen sein
        go away, went away | weg-gehen geht weggegangen sein
        run away, ran away | weg-laufen läuft weggelaufen sein
        watch television, watched television | fern-sehen sieht ferngesehen
        go shopping, went shopping | ein-kaufen""",
    "motion": """
        go, went | gehen geht gegangen sein
        run, ran | laufen läuft gelaufen sein
        drive, drove | fahren fährt gefahren sein
        come, came | kommen kommt gekommen sein
        travel, traveled | reisen reist gereist sein""",
    "lying": """
        lie, - | liegen liegt gelegen""",
    "existing": """
        be, - | sein ist gewesen sein""",
    "reporting": """
        know, - | wissen weiß gewusst
        believe, - | glauben
        hope, - | hoffen
        say, - | sagen
        think, - | denken denkt gedacht""",
    "planning": """
        try, - | versuchen
        hope, - | hoffen
        forget, - | vergessen vergisst vergessen
        promise, - | versprechen verspricht versprochen
        plan, - | planen""",
    "costing": """
        cost, - | kosten""",
}

# The verbs that also take animals as their subjects.
ANIMAL_VERBS = frozenset(
    (
        *("see", "find", "look for", "hear", "follow", "watch"),
        *("sleep", "wait", "play", "stand", "run", "come"),
        *("wake up", "fall asleep", "come back", "run away"),
    )
)

# Forms for ich, du, er, wir; "sie" of the plural is the form for wir.
IRREGULAR_FINITE = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
}
WAR = ("war", "warst", "war", "waren")
MODALS = {
    "can": ("kann", "kannst", "kann", "können"),
    "must": ("muss", "musst", "muss", "müssen"),
    "should": ("sollte", "solltest", "sollte", "sollten"),
    "may": ("darf", "darfst", "darf", "dürfen"),
    "will": ("werde", "wirst", "wird", "werden"),
    "want to": ("will", "willst", "will", "wollen"),
}

INSEPARABLE = ("be", "ge", "ver", "er", "zer", "ent")


class Verb(NamedTuple):
    """One verb; a finite form is indexed by agreement: ich, du, er, wir."""

    english: str
    past: str  # empty: present only
    finite: tuple[str, ...]  # without the separable prefix
    prefix: str  # separable, empty if there is none
    infinitive: str  # prefix included
    zu_infinitive: str
    participle: str
    auxiliary: str  # "haben" or "sein"
    governs: str  # the section of the tables: "accusative", "dative", "motion", ...
    objects: tuple[str, ...]  # classes of nouns
    preposition: str

    @property
    def third(self) -> str:
        """The English third person singular: "looks for", "goes away"."""
        first, *rest = self.english.split()
        return " ".join([english_third(first), *rest])


def english_third(verb: str) -> str:
    """The third person singular of a verb in the English present."""
    if verb in ("have", "be"):
        return {"have": "has", "be": "is"}[verb]
    if verb.endswith(("s", "x", "ch", "sh", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def finite_forms(infinitive: str, third: str) -> tuple[str, ...]:
    """The present for ich, du, er, wir, from the infinitive and the form for er."""
    if infinitive in IRREGULAR_FINITE:
        return IRREGULAR_FINITE[infinitive]
    stem = _stem(infinitive)
    second = third[:-1]
    second += "t" if second.endswith(("s", "ß", "z", "x")) else "st"
    return stem + "e", second, third, infinitive


def _stem(infinitive: str) -> str:
    return infinitive.removesuffix("n").removesuffix("e")


def _with_t(stem: str) -> str:
    return stem + ("et" if stem.endswith(("t", "d")) else "t")


def _regular_participle(prefix: str, base: str) -> str:
    takes_ge = not base.startswith(INSEPARABLE) and not base.endswith("ieren")
    return prefix + ("ge" if takes_ge else "") + _with_t(_stem(base))


def _read_verb(line: str, governs: str) -> Verb:
    """One line of the tables as an entry."""
    columns = [column.strip() for column in line.split("|")] + ["", ""]
    english, past = columns[0].split(", ")
    infinitive, *forms = columns[1].split()
    prefix, _, base = infinitive.rpartition("-")
    third = forms[0] if forms else _with_t(_stem(base))
    return Verb(
        english=english,
        past="" if past == "-" else past,
        finite=finite_forms(base, third),
        prefix=prefix,
        infinitive=prefix + base,
        zu_infinitive=f"{prefix}zu{base}" if prefix else f"zu {base}",
        participle=forms[1] if forms else _regular_participle(prefix, base),
        auxiliary=forms[2] if len(forms) > 2 else "haben",
        governs=governs,
        objects=tuple(columns[2].split()),
        preposition=columns[3],
    )


LEXICON: dict[str, tuple[Verb, ...]] = {
    governs: tuple(_read_verb(line, governs) for line in table.strip().splitlines())
    for governs, table in VERBS.items()
}
