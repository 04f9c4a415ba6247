"""The words of the built-in corpus, as tables of text that `inflection` reads.

A line that is not indented starts a section, named before its colon. Commas part the
entries of a section. A form is listed only where the rules of `inflection` are wrong.
"""

# Sections are classes. english[/plural] article german [plural]; a mass noun has none.
# A plural is an ending ("-n"), an ending with an umlaut ("¨er"), or the whole word.
NOUNS = """
person: man/men der Mann ¨er, woman/women die Frau -en, boy der Junge -n,
    girl das Mädchen -, child/children das Kind -er, baby das Baby -s,
    aunt die Tante -n, teacher der Lehrer -, student der Student -en,
    doctor der Arzt ¨e, king der König -e, nurse die Krankenschwester -n,
    farmer der Bauer -n, baker der Bäcker -, neighbor der Nachbar -n,
    friend der Freund -e, father der Vater ¨, mother die Mutter ¨, brother der Bruder ¨,
    sister die Schwester -n, son der Sohn ¨e, daughter die Tochter ¨, uncle der Onkel -,
    grandmother die Großmutter ¨, queen die Königin -nen, customer der Kunde -n,
    policeman/policemen der Polizist -en, artist der Künstler -,
    waitress die Kellnerin -nen, tourist der Tourist -en
animal: dog der Hund -e, cat die Katze -n, horse das Pferd -e, cow die Kuh ¨e,
    bird der Vogel ¨, mouse/mice die Maus ¨e, bear der Bär -en, lion der Löwe -n,
    elephant der Elefant -en, pig das Schwein -e, monkey der Affe -n
text: book das Buch ¨er, letter der Brief -e, story die Geschichte -n,
    poem das Gedicht -e, report der Bericht -e, message die Nachricht -en,
    novel der Roman -e
thing: key der Schlüssel -, bottle die Flasche -n, lamp die Lampe -n, clock die Uhr -en,
    picture das Bild -er, bag die Tasche -n, suitcase der Koffer -, cup die Tasse -n,
    umbrella der Regenschirm -e, gift das Geschenk -e, knife/knives das Messer -,
    glass das Glas ¨er, guitar die Gitarre -n, ball der Ball ¨e, flower die Blume -n,
    box die Kiste -n
clothes: coat der Mantel ¨, shirt das Hemd -en, dress das Kleid -er, hat der Hut ¨e,
    jacket die Jacke -n, skirt der Rock ¨e, sweater der Pullover -
food: apple der Apfel ¨, egg das Ei -er, cake der Kuchen -, potato die Kartoffel -n,
    tomato die Tomate -n, orange die Orange -n, salad der Salat -e, bread das Brot,
    cheese der Käse, meat das Fleisch, rice der Reis, butter die Butter
drink: water das Wasser, milk die Milch, coffee der Kaffee, tea der Tee, juice der Saft,
    wine der Wein, beer das Bier
vehicle: car das Auto -s, bicycle das Fahrrad ¨er, bus der Bus -se, train der Zug ¨e,
    ship das Schiff -e, truck der Lastwagen -, taxi das Taxi -s
machine: computer der Computer -, television der Fernseher -, radio das Radio -s,
    machine die Maschine -n, printer der Drucker -
place: garden der Garten ¨, school die Schule -n, city die Stadt ¨e, hotel das Hotel -s,
    restaurant das Restaurant -s, park der Park -s, forest der Wald ¨er,
    house das Haus ¨er, church die Kirche -n, museum das Museum Museen,
    hospital das Krankenhaus ¨er, village das Dorf ¨er, castle das Schloss ¨er,
    shop der Laden ¨, kitchen die Küche -n, cellar der Keller -, office das Büro -s,
    garage die Garage -n, bedroom das Schlafzimmer -
furniture: table der Tisch -e, chair der Stuhl ¨e, sofa das Sofa -s, bed das Bett -en,
    shelf/shelves das Regal -e, bench die Bank ¨e, desk der Schreibtisch -e
landmark: tree der Baum ¨e, bridge die Brücke -n, fountain der Brunnen -,
    wall die Mauer -n, statue die Statue -n
entrance: door die Tür -en, window das Fenster -, gate das Tor -e
"""

# The adjectives that describe the nouns of a class.
DESCRIPTIONS = """
person: old, young, tired, friendly, sick, happy, famous, strong, poor, rich, clever,
    lazy, brave, sad, hungry
animal: old, young, small, big, beautiful, tired, sick, strong, clever, lazy, hungry,
    wild, dangerous, black, white, brown, fast
text: old, new, beautiful, good, bad, famous, sad, long, short, interesting, funny
thing: old, small, big, new, beautiful, expensive, cheap, heavy, red, blue, green
clothes: old, small, big, new, beautiful, expensive, cheap, long, short, red, blue,
    green, black, white, brown, warm, clean
food: expensive, good, bad, cold, fresh, sweet
drink: cheap, good, bad, warm, cold, fresh, sweet
vehicle: old, small, big, new, expensive, cheap, dangerous, red, blue, green, black,
    modern, clean, fast
machine: old, small, big, new, expensive, cheap, good, strong, dangerous, heavy, red,
    blue, green, modern, fast
place: old, small, big, new, beautiful, famous, interesting, dark, modern, clean
furniture: old, small, big, new, expensive, cheap, heavy, red, blue, green, white, brown
landmark: old, small, big, new, beautiful
entrance: old, small, big, new, beautiful, heavy
"""

# Sections say what a verb governs. english[/past] = german [er-form participle] [sein]
# [: classes of objects [: preposition, its case]]. A hyphen ends a separable prefix. A
# past "-" is not used, because its German is no perfect ("knew").
VERBS = """
accusative: buy/bought = kaufen : thing text clothes food drink vehicle machine,
    sell/sold = verkaufen : thing text clothes food vehicle machine,
    see/saw = sehen sieht gesehen : person animal vehicle place landmark,
    find/found = finden findet gefunden : thing animal clothes place,
    look for = suchen : thing person animal clothes place,
    love = lieben : person animal, visit = besuchen : person place,
    know/- = kennen kennt gekannt : person place text,
    meet/met = treffen trifft getroffen : person, ask = fragen : person,
    greet = begrüßen : person, hear/heard = hören : person animal,
    read/read = lesen liest gelesen : text, hide/hid = verstecken : thing text,
    write/wrote = schreiben schreibt geschrieben : text, clean up = auf-räumen : place,
    translate = übersetzen übersetzt übersetzt : text, feed/fed = füttern : animal,
    understand/understood = verstehen versteht verstanden : person text,
    eat/ate = essen isst gegessen : food, use = benutzen : machine thing vehicle,
    drink/drank = trinken trinkt getrunken : drink, open = auf-machen : entrance,
    wash = waschen wäscht gewaschen : clothes vehicle, close = zu-machen : entrance,
    wear/wore = tragen trägt getragen : clothes, turn on = ein-schalten : machine,
    lose/lost = verlieren verliert verloren : thing clothes text,
    fetch = ab-holen : person,
    steal/stole = stehlen stiehlt gestohlen : thing vehicle animal,
    need = brauchen : thing clothes vehicle machine furniture,
    have/- = haben hat gehabt : thing animal vehicle furniture,
    repair = reparieren : machine vehicle furniture, turn off = aus-schalten : machine,
    paint = malen : animal landmark place, build/built = bauen : place furniture,
    catch/caught = fangen fängt gefangen : animal, watch = beobachten : person animal,
    describe = beschreiben beschreibt beschrieben : person place,
    call = an-rufen ruft angerufen : person,
    invite = ein-laden lädt eingeladen : person,
    look at = an-sehen sieht angesehen : person animal place landmark,
    bring/brought along = mit-bringen bringt mitgebracht : thing food drink,
    throw/threw away = weg-werfen wirft weggeworfen : thing clothes food,
    pick up = auf-heben hebt aufgehoben : thing clothes,
    put/put on = an-ziehen zieht angezogen : clothes,
    take/took off = aus-ziehen zieht ausgezogen : clothes,
    give/gave back = zurück-geben gibt zurückgegeben : thing text clothes
dative: help = helfen hilft geholfen : person animal, thank = danken : person,
    follow = folgen sein : person animal vehicle, trust = vertrauen : person,
    answer = antworten : person, congratulate = gratulieren : person,
    forgive/forgave = verzeihen verzeiht verziehen : person,
    listen to = zu-hören : person
prepositional: wait for = warten : person vehicle : auf accusative,
    think/thought of = denken denkt gedacht : person place : an accusative,
    talk about = sprechen spricht gesprochen : person text : über accusative,
    laugh about = lachen : person text : über accusative,
    dream of = träumen : person animal place : von dative,
    ask about = fragen : person animal : nach dative
ditransitive: give/gave = geben gibt gegeben : thing text clothes,
    show = zeigen : thing text clothes vehicle animal,
    send/sent = schicken : thing text clothes,
    offer = an-bieten bietet angeboten : food drink,
    lend/lent = leihen leiht geliehen : thing text vehicle,
    bring/brought = bringen bringt gebracht : thing text food drink
placing: lay/laid = legen : thing text clothes,
    push = schieben schiebt geschoben : thing,
    throw/threw = werfen wirft geworfen : thing clothes
activity: sing/sang = singen singt gesungen, dance = tanzen, work = arbeiten,
    study = lernen, play = spielen, talk = sprechen spricht gesprochen, cook = kochen
state: sleep/slept = schlafen schläft geschlafen, cry = weinen, wait = warten,
    sit/sat = sitzen sitzt gesessen, stand/stood = stehen steht gestanden,
    dream = träumen
alone: laugh = lachen, get/got up = auf-stehen steht aufgestanden sein,
    wake/woke up = auf-wachen sein, arrive = an-kommen kommt angekommen sein,
    fall/fell asleep = ein-schlafen schläft eingeschlafen sein,
    come/came back = zurück-kommen kommt zurückgekommen sein,
    go/went away = weg-gehen geht weggegangen sein,
    run/ran away = weg-laufen läuft weggelaufen sein,
    watch television = fern-sehen sieht ferngesehen, go/went shopping = ein-kaufen
motion: go/went = gehen geht gegangen sein, run/ran = laufen läuft gelaufen sein,
    drive/drove = fahren fährt gefahren sein, travel = reisen sein,
    come/came = kommen kommt gekommen sein
being: be/was = sein ist gewesen sein
lying: be/was = sein ist gewesen sein, lie/- = liegen liegt gelegen
costing: cost/cost = kosten
reporting: know/- = wissen weiß gewusst, believe = glauben, hope = hoffen,
    say/- = sagen, think/- = denken denkt gedacht
planning: try = versuchen, hope = hoffen, forget/- = vergessen vergisst vergessen,
    promise = versprechen verspricht versprochen, plan = planen
"""
# The verbs that animals may be the subject of.
ANIMAL_VERBS = (
    "be, see, find, look for, hear, follow, watch, sleep, wait, play, stand, run, "
    "come, wake up, fall asleep, come back, run away"
)

# Words that only translate, or whose endings are in ENDINGS: english = german. Pronouns
# have their agreement; "I" and "you" come twice, as no other subject has their verbs.
WORDS = """
present: today = heute, now = jetzt, every day = jeden Tag, in the evening = am Abend,
    on Sunday = am Sonntag, in summer = im Sommer, in winter = im Winter,
    at night = nachts, this week = diese Woche
past: yesterday = gestern, last week = letzte Woche, on Monday = am Montag,
    last year = letztes Jahr, this morning = heute Morgen,
    two days ago = vor zwei Tagen, last month = letzten Monat, recently = neulich
modal: tomorrow = morgen, next week = nächste Woche, soon = bald,
    on Friday = am Freitag, tonight = heute Abend, next year = nächstes Jahr,
    today = heute, now = jetzt
frequency: often = oft, always = immer, sometimes = manchmal,
    almost always = fast immer, rarely = selten, usually = meistens
manner: quietly = leise, slowly = langsam, well = gut, badly = schlecht, alone = allein,
    happily = fröhlich
name: Anna = Anna, Peter = Peter, Maria = Maria, Paul = Paul, Julia = Julia,
    Thomas = Thomas
city: Berlin = Berlin, Vienna = Wien, Munich = München, Cologne = Köln,
    Hamburg = Hamburg, Rome = Rom
quantity: many = viel, some = einig, several = mehrer, few = wenig
possessive: my = mein, your = dein, his = sein, her = ihr, our = unser, their = ihr
in: in = in
at: at = an
into: into = in
near: in front of = vor, behind = hinter, next to = neben
on: on = auf, under = unter, behind = hinter, next to = neben
onto: onto = auf, under = unter, behind = hinter, next to = neben
compare person: older = älter, younger = jünger, richer = reicher, poorer = ärmer,
    happier = glücklicher, stronger = stärker, more famous = berühmter, lazier = fauler,
    friendlier = freundlicher, cleverer = klüger, more tired = müder, sadder = trauriger
compare animal: older = älter, bigger = größer, smaller = kleiner, wilder = wilder,
    faster = schneller, more dangerous = gefährlicher, more beautiful = schöner
compare vehicle: newer = neuer, more expensive = teurer, cheaper = billiger,
    faster = schneller, more modern = moderner, bigger = größer
compare clothes: longer = länger, shorter = kürzer, warmer = wärmer,
    more expensive = teurer, cheaper = billiger, more beautiful = schöner
adjective: old = alt, young = jung, small = klein, big = groß, new = neu,
    beautiful = schön, expensive = teuer, cheap = billig, good = gut, bad = schlecht,
    tired = müde, friendly = freundlich, sick = krank, happy = glücklich,
    famous = berühmt, strong = stark, poor = arm, rich = reich, clever = klug,
    lazy = faul, brave = mutig, sad = traurig, hungry = hungrig, wild = wild,
    dangerous = gefährlich, long = lang, short = kurz, interesting = interessant,
    funny = lustig, heavy = schwer, red = rot, blue = blau, green = grün,
    black = schwarz, white = weiß, brown = braun, warm = warm, cold = kalt,
    fresh = frisch, sweet = süß, dark = dunkel, modern = modern, clean = sauber,
    fast = schnell
pronoun: I = ich 0, I = ich 0, you = du 1, you = du 1, he = er 2, she = sie 2,
    we = wir 3, they = sie 3
accusative: me = mich, you = dich, us = uns, him = ihn, her = sie, them = sie
dative: me = mir, you = dir, us = uns, him = ihm, her = ihr, them = ihnen
number: two = zwei, three = drei, four = vier, five = fünf, six = sechs, seven = sieben,
    eight = acht, nine = neun, ten = zehn, eleven = elf, twelve = zwölf,
    thirteen = dreizehn, fourteen = vierzehn, fifteen = fünfzehn, sixteen = sechzehn,
    seventeen = siebzehn, eighteen = achtzehn, nineteen = neunzehn
tens: twenty = zwanzig, thirty = dreißig, forty = vierzig, fifty = fünfzig,
    sixty = sechzig, seventy = siebzig, eighty = achtzig, ninety = neunzig
finite: sein = bin bist ist sind, haben = habe hast hat haben,
    wissen = weiß weißt weiß wissen, war = war warst war waren,
    be present = am are is are, be past = was were was were
modals: can = kann kannst kann können, must = muss musst muss müssen,
    should = sollte solltest sollte sollten, may = darf darfst darf dürfen,
    will = werde wirst wird werden, want to = will willst will wollen
"""

# Articles and endings: an entry for each case, in it a form for m, f, n and the plural.
ENDINGS = """
der: der die das die, den die das die, dem der dem den, des der des der
relative: der die das die, den die das die, dem der dem denen, dessen deren dessen deren
dies-: er e es e, en e es e, em er em en, es er es er
ein-: - e - e, en e - e, em er em en, es er es er
none: - - - -, - - - -, - - - -, - - - -
strong: er e es e, en e es e, em er em en, en er en er
weak: e e e en, en e e en, en en en en, en en en en
mixed: er e es en, en e es en, en en en en, en en en en
"""
