"""Documents: only their text changes, and tags and placeholders are all kept."""

import itertools
import math
import re
import time
from collections import Counter

import polib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.decoding.parts import Hypothesis
from jaxformer.decoding.placeholders import PATTERNS, SYMBOL, Placeholders
from jaxformer.documents import links
from jaxformer.documents.document import Document
from jaxformer.documents.links import nearest_pairs
from jaxformer.documents.tokens import html_tokens, xml_tokens
from jaxformer.system.errors import InputError


def pieces_of(words):
    """Pieces of a tokeniser: runs of up to 4 letters, and single marks."""
    found = []
    for number, word in enumerate(words):
        own = re.findall(r"\w{1,4}|\W", word)
        own[0] = f"\u2581{own[0]}"
        found += [(piece, number) for piece in own]
    return [*found, ("</s>", -1)]


def translated(markup, text, order=sorted, change=str, symbols=(), is_aligned=True):
    """Translate a document word by word; `order` chooses among the words' indices."""
    document = Document(text, markup, Placeholders(PATTERNS, symbols))
    found, links = [], {}
    for source in document.texts:
        words = source.split()
        chosen = list(order(range(len(words))))
        target = [change(words[number]) for number in chosen]
        sides = pieces_of(words), pieces_of(target)
        first = {n: at for at, (_, n) in reversed([*enumerate(sides[0])])}
        pieces = [[piece for piece, _ in side] for side in sides]
        found.append(Hypothesis(" ".join(target), 0.0, 0.0, 1, *pieces))
        links[id(found[-1])] = [
            (first[chosen[n]], at) for at, (_, n) in enumerate(sides[1][:-1])
        ]
    links_of = (lambda best: links[id(best)]) if is_aligned else None
    return document.write(found, links_of)


HTML = (
    "<!DOCTYPE html><p class=x>Hello <b>big, bad</b> world, <a href='?a&amp;b'>see "
    "<i>this</i> page</a>!\n <script>if (a<b) x</script><p translate=no>No <b>x</b></p>"
    "Tom &amp; <code>foo()</code>&lt;end <!-- a > b --> of it<br>1 &lt; 2<pre> a </pre>"
)


def test_html_keeps_all_but_its_text():
    assert translated("html", HTML) == (HTML, [])
    found, _ = translated("html", HTML, order=reversed)
    assert found == (
        "<!DOCTYPE html><p class=x><a href='?a&amp;b'>page! <i>this</i> see</a> world, "
        "<b>bad big</b>, Hello\n <script>if (a<b) x</script><p translate=no>No <b>x</b>"
        "</p>it <!-- a > b --> of <code>foo()</code>&lt;end &amp; Tom<br>1 &lt; 2"
        "<pre> a </pre>"
    )


def test_tags_without_their_other_tag_end_a_sentence():
    parts = Document("<li>A<li>b <i>c</i><p>d<td>e</p>f<b>g<div>h", "html").texts
    assert parts == ["A", "b c", "d", "e", "fg", "h"]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("One.</p>Two.<div>three", ["One.", "Two.", "three"]),
        ("<p translate=NO>no<p>yes", ["yes"]),
        ("<html translate=no><body>no", []),
        ("<p translate=no>a<menu><li>yes</menu>", ["yes"]),
        ("<table><caption translate=no>a<tr><td>yes</table>", ["yes"]),
        ("AT&T or Q&A", ["AT&T or Q&A"]),
        ("one &# two <i>three</i> &", ["one &# two three &"]),
        ("I&#8217d go <i>home</i>;<p>so", ["I\u2019d go home;", "so"]),
    ],
)
def test_html_may_be_as_people_write_it(text, texts):
    assert Document(text, "html").texts == texts
    text = text.replace("&#8217", "\u2019")
    assert translated("html", text) == (text.replace("&", "&amp;"), [])


@pytest.mark.parametrize(
    ("markup", "text", "expected"),
    [
        (
            "html",
            "<ul><li>One <b>two</b><li translate=no>no<li><p>a<p>b</ul><p>c <div>d"
            "</div><tr><td>e<td>f<tr><th>g</table><div>h <i>i </p> j<dl><dt>k<dd>l",
            "<ul><li>ONE <b>TWO</b><li translate=no>no<li><p>A<p>B</ul><p>C <div>D"
            "</div><tr><td>E<td>F<tr><th>G</table><div>H <i>I </p> J<dl><dt>K<dd>L",
        ),
        (
            "xml",
            "<d><p>One <e>two</e> &amp; a<x/>.</p><l><i>Three four</i><i/></l>"
            "<code>five</code><q>Six <![CDATA[<seven>]]> eight</q></d>\r\n",
            "<d><p>ONE <e>TWO</e> &amp; A<x/>.</p><l><i>THREE FOUR</i><i/></l>"
            "<code>five</code><q>SIX <![CDATA[<seven>]]> EIGHT</q></d>\r\n",
        ),
        (
            "srt",
            "1\r\n00:01 --> 00:02\r\n<i>Tom & Jerry\r\nsleep.</i>\r\n2\n"
            "00:03 --> 00:04\n<i>- Who {x}\nis it?</i>\r- I.\n\nAnd {n}\rmore.\n",
            "1\r\n00:01 --> 00:02\r\n<i>TOM & JERRY\r\nSLEEP.</i>\r\n2\n"
            "00:03 --> 00:04\n<i>- WHO {x}\nIS IT?</i>\r- I.\n\nAND {n}\rMORE.\n",
        ),
        (
            "vtt",
            "\ufeffWEBVTT\n\nNOTE no text\n\nid\n00:01 --> 00:02\n<v Bob>Hello "
            "<00:01.500>my &amp; <c.x>your</c> dog\n\nSTYLE\nno text\n",
            "\ufeffWEBVTT\n\nNOTE no text\n\nid\n00:01 --> 00:02\n<v Bob>HELLO "
            "<00:01.500>MY &amp; <c.x>YOUR</c> DOG\n\nSTYLE\nno text\n",
        ),
        (
            "txt",
            "Title\n=====\n\n- one\n  2. two\n"
            + "A paragraph that its author broke at "
            "sixty characters, for\nthe reader.\n\tverse\n\tverse",
            "TITLE\n=====\n\n- ONE\n  2. TWO\n"
            + "A PARAGRAPH THAT ITS AUTHOR BROKE AT "
            "SIXTY CHARACTERS, FOR\nTHE READER.\n\tVERSE\n\tVERSE",
        ),
        (
            "xliff",
            "<xliff><u:trans-unit xmlns:u='x'>\n <u:source>One <ph>no</ph> two"
            "</u:source>\n</u:trans-unit><segment state='initial'><source>Three"
            "</source><target>x</target></segment><segment><source>a</source><target>b"
            "</target></segment><segment><source>c</source><target s='1'/></segment>"
            "</xliff>",
            "<xliff><u:trans-unit xmlns:u='x'>\n <u:source>One <ph>no</ph> two"
            "</u:source>\n <u:target>ONE <ph>no</ph> TWO</u:target>\n</u:trans-unit>"
            "<segment state='translated'><source>Three</source><target>THREE</target>"
            "</segment><segment><source>a</source><target>b</target></segment><segment>"
            "<source>c</source><target s='1'>C</target></segment></xliff>",
        ),
    ],
)
def test_other_documents_keep_all_but_their_text(markup, text, expected):
    if markup != "xliff":
        assert translated(markup, text) == (text, [])
    assert translated(markup, text, change=upper) == (expected, [])


def upper(word):
    return word if re.search(r"[{}%<]", word) else word.upper()


def test_po_entries_without_a_translation_get_one():
    text = (
        '# x\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        'msgid "%(n)s has a\\n"\n"<b>dog</b>\\n"\nmsgstr ""\n\n'
        '#, fuzzy\nmsgid "done"\nmsgstr "fertig"\n\n'
        'msgid "a file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    found, _ = translated("po", text.replace("\n", "\r\n"), change=upper)
    assert found.count("\n") == found.count("\r\n")
    first, second, third = polib.pofile(found)
    assert first.msgstr == "%(n)s HAS A\n<b>DOG</b>\n"
    assert (second.msgstr, second.flags) == ("fertig", ["fuzzy"])
    assert third.msgstr_plural == {0: "A FILE", 1: "%d FILES"}
    done = text[: text.index('msgid "%')]
    done += 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n'
    done = done.replace("Content", 'Plural-Forms: nplurals=1; plural=x;\\n"\n"Content')
    assert translated("po", done) == (done, [])


@pytest.mark.parametrize(
    ("plural", "one", "forms"),
    [
        ("nplurals=1; plural=0;", "One file", ["%d files"]),
        ("nplurals=1; plural=0;", "%d file", ["%d file"]),
        ("nplurals=1; plural=0;", "%d file of 1", ["%d files"]),
        ("nplurals=2; plural=n > 1;", "One file", ["%d files"] * 2),
        ("nplurals=2; plural=n == 1 ? 0 : 1;", "One file", ["One file", "%d files"]),
        ("nplurals=3; plural=n%10==1 ? 0 : n < 5 ? 1 : 2;", "%d file", ["%d file"]),
        ("nplurals=3; plural=n < 2 ? 0 : n ? 2 : 1;", "%d file", ["%d file"]),
        ("nplurals=INTEGER; plural=EXPRESSION;", "One file", ["One file", "%d files"]),
    ],
)
def test_each_plural_form_is_translated_from_the_text_of_its_numbers(
    plural, one, forms
):
    header = f'msgid ""\nmsgstr ""\n"Plural-Forms: {plural}\\n"\n'
    header += '"Content-Type: text/plain; charset=CHARSET\\n"\n\n'
    entry = f'msgid "{one}"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    found, _ = translated("po", header + entry)
    if "nplurals=3" in plural:
        forms = [*forms, "%d files", "%d files"]
    file = polib.pofile(found)
    assert file[0].msgstr_plural == dict(enumerate(forms))
    assert file.metadata["Content-Type"] == "text/plain; charset=UTF-8"


# Properties ---------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["a", "Bc", "d.", "(e)", "f,g", "&amp;", "&lt;", "{x}", "{y}", "%s.", "1", "你好"]
)
TEXTS = st.lists(WORDS | st.sampled_from([" ", "\n", "\u00a0"])).map(" ".join)
TAGS = st.sampled_from(
    ["b", "i", "code", "div", "p", "x translate='no'", "x translate='yes'"]
)


def element(content):
    return st.builds(
        lambda tag, inside: f"<{tag}>{inside}</{tag.split()[0]}>", TAGS, content
    )


TREES = st.recursive(
    TEXTS | st.sampled_from(["<br/>", "<!-- c -->", "<code>\u00a0</code>"]),
    lambda inner: st.lists(inner | element(inner)).map("".join),
    max_leaves=20,
)


@st.composite
def order_of(draw):
    chosen = draw(st.lists(st.integers(0, 30), max_size=30))
    return lambda numbers: [n for n in chosen if n < len(numbers)]


@settings(max_examples=60, deadline=None)
@given(
    TREES, order_of(), st.booleans(), st.sampled_from([(), (SYMBOL,)]),
    st.sampled_from(["html", "xml"]),
)  # fmt: skip
def test_what_is_well_formed_stays_so_with_the_same_tags_and_placeholders(
    inside, order, is_aligned, symbols, markup
):
    """Whatever the translation: words are lost, repeated and in any order."""
    text = f"<doc>{inside}</doc>"
    found, messages = translated(markup, text, order, str, symbols, is_aligned)
    read = {"html": html_tokens, "xml": xml_tokens}[markup]
    tokens = xml_tokens(text), xml_tokens(found)
    tags = [[each.raw.strip() for each in own if each.kind != "text"] for own in tokens]
    assert Counter(filter(None, tags[0])) == Counter(filter(None, tags[1]))
    blocks = [
        [each for each in own if re.match("</?(div|p|doc)", each)] for own in tags
    ]
    if markup == "html":
        assert blocks[0] == blocks[1]
    plain = ["".join(each.text for each in read(own)) for own in (text, found)]
    for name in ("{x}", "{y}", "%s"):
        counts = [each.count(name) for each in plain]
        assert counts[0] <= counts[1]
        assert counts[0] == counts[1] or messages


@settings(max_examples=60, deadline=None)
@given(TREES, st.sampled_from(["html", "xml"]))
def test_a_translation_that_is_the_source_changes_nothing_but_spaces(inside, markup):
    inside = inside.replace("\u00a0", " ")  # which a translation loses
    inside = inside.replace("code", "em")  # code may also be in the text around it
    text = re.sub("(<[^>]*>)", r" \1 ", f"<doc>{inside}</doc>")  # no tag in a word
    found, messages = translated(markup, text)
    assert (re.sub(r"\s", "", found), messages) == (re.sub(r"\s", "", text), [])


# Placeholders -------------------------------------------------------------------------


def test_a_placeholder_is_one_symbol_and_is_put_back_where_it_is_aligned():
    text = "<p>Send {a} to {b}, or to x@y.org!</p>"
    document = Document(text, "html", Placeholders(PATTERNS, [SYMBOL]))
    assert document.texts == ["Send __PH__ to __PH__, or to __PH__!"]
    found, _ = translated("html", text, order=reversed, symbols=[SYMBOL])
    assert found == "<p>x@y.org! to or {b}, to {a} Send</p>"


def test_a_lost_placeholder_is_put_back_and_one_too_many_is_reported():
    found = translated("txt", "see {a} here", order=lambda _: [0, 2])
    assert found == ("see {a} here", [])
    text, (message,) = translated("txt", "see {a} here", order=lambda _: [0, 1, 1, 2])
    assert (text, "has '{a}' more often" in message) == ("see {a} {a} here", True)
    found = translated(
        "txt", "see {A} here", change=lambda word: word.replace("A", "a")
    )
    assert found == ("see {A} here", [])


@pytest.mark.parametrize("target", ["", "Hallo.", "Hallo, oder (mail)!", "da %d."])
def test_placeholders_stand_apart_from_words_and_from_each_other(target):
    """An address that meets a word would be another address."""
    own = "{name}", "https://x.org/a?b=1", "me@x.org", "%d"
    source = f"Hello {own[0]}, see {own[1]} or (mail) {own[2]} {own[3]}."
    text, _ = Document(source, "txt").write([Hypothesis(target, 0.0, 0.0, 1)])
    assert {*own} <= {word.strip(",.!()") for word in text.split()}, text
    assert not re.search(r"\s[,.!)]|\(\s", text), text


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("{name}'s dog", "{name}s Hund", "{name}s Hund"),
        ("to {city} now", "{city}ba", "{city}ba"),
        ("to {name} now", "\u05dc{name} now", "\u05dc{name} now"),
        ("see www.x.org now", "sieh__PH__jetzt", "sieh www.x.org jetzt"),
        ("see this one {x}.", "sieh dies", "sieh {x} dies"),
        ("see (a) {x}{y}", "sieh (a)", "sieh {x}{y} (a)"),
        ("{x} a (b)", "__PH__ a __PH__(b) __PH__.", "{x} a (b)."),
        ("{x} a b c", '__PH__ a "b __PH__" __PH__"c" -5', '{x} a "b" "c" -5'),
        ("{x} a b c d e f g h", "__PH__ a __PH__$ __PH__-5 __PH__%", "{x} a $ -5%"),
    ],
)
def test_the_spaces_of_a_translation_stay(source, target, expected):
    """A space is added where a placeholder would become another one, or was lost."""
    symbols = [SYMBOL] if SYMBOL in target else []
    document = Document(source, "txt", Placeholders(PATTERNS, symbols))
    assert document.write([Hypothesis(target, 0.0, 0.0, 1)])[0] == expected


@pytest.mark.parametrize(
    ("source", "target", "words", "expected"),
    [
        (
            "{a}, your {b} ships on {c}",
            "votre __PH__ le __PH__ part",
            [1, 2, 4, 5, 3],
            "{a} votre {b} le {c} part",
        ),
        (
            "copy {a} one two {b} end",
            "copie __PH__ __PH__ un deux __PH__ fin",
            [0, 1, 1, 2, 3, 4, 5],
            "copie {a} un deux {b} fin",
        ),
        (
            "use {{ name }} or {{ the name }}",
            "{{ The name }} or {{ name }}",
            [4, 5, 6, 0, 1, 2, 3],
            "{{ the name }} or {{ name }}",
        ),
        ("{n}MB of", "MB __PH__MB of __PH__", [0, 0, 1, 0], "MB {n}MB of"),
        ("page {n} of {N}", "{N} pages, {n}", [1, 0, 3], "{N} pages, {n}"),
        ("page {n} of {N}", "{n} pages, {n}", [1, 0, 3], "{n} pages, {N}"),
    ],
)
def test_a_place_gets_the_placeholder_that_is_nearest(source, target, words, expected):
    symbols = [SYMBOL] if SYMBOL in target else []
    document = Document(source, "txt", Placeholders(PATTERNS, symbols))
    pieces = document.texts[0].split(), target.split()
    found = Hypothesis(target, 0.0, 0.0, 1, *pieces)
    links = [(word, at) for at, word in enumerate(words)]
    assert document.write([found], lambda _: links) == (expected, [])


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=5).map(sorted),
    st.lists(st.integers(0, 99) | st.just(math.inf), min_size=1, max_size=5),
)
def test_places_are_paired_with_the_least_distance(middles, linked):
    """As by trying all choices in the order of the source."""
    pairs = nearest_pairs(middles, linked)
    farthest = max([*middles, *(each for each in linked if each < math.inf)])
    ends = [min(each, farthest) for each in linked]
    assert [middle for middle, _ in pairs] == sorted({middle for middle, _ in pairs})
    assert [ends[at] for _, at in pairs] == sorted(ends[at] for _, at in pairs)
    count = min(len(middles), len(linked))
    assert len({at for _, at in pairs}) == len(pairs) == count
    found = sum(abs(middles[middle] - ends[at]) for middle, at in pairs)
    assert found == min(
        sum(abs(one - other) for one, other in zip(own, others, strict=True))
        for own in itertools.combinations(middles, count)
        for others in itertools.combinations(sorted(ends), count)
    )


def test_a_placeholder_needs_no_space_around_it():
    """Chinese has none, and Python formats %(n)sMB."""
    for text in ("\u5171%s\u4e2a\uff0c$1\u4e2a %(n)d\u4e2a", "%(n)sMB of %(n)sGB"):
        assert translated("txt", text) == (text, [])
    document = Document("%d files of %(n)s", "txt")
    target = "%(n)s\u7684%d\u4e2a\u6587\u4ef6"
    assert document.write([Hypothesis(target, 0.0, 0.0, 1)]) == (target, [])
    text = "(see https://x.org/a_(b).) www.x.org, [a](http://a.b/c?d=(e),f)."
    found = [shown for _, _, shown in Placeholders().find(text)]
    assert found == ["https://x.org/a_(b)", "www.x.org", "http://a.b/c?d=(e),f"]
    text = "\u89c1https://x.org/a\uff0c\u8c22\u8c22\u5230a@b.org\u8c22%s\u4e2a"
    found = [shown for _, _, shown in Placeholders().find(text)]
    assert found == ["https://x.org/a", "a@b.org", "%s"]


def test_patterns_of_ones_own():
    own = Placeholders([r"\d+", "__N__\t#\\w+"], ["__N__"])
    assert [*own.find("12 #x __N__")] == [
        (0, 2, "12"), (3, 5, "__N__"), (6, 11, "__N__"),
    ]  # fmt: skip
    both = Placeholders(["__N__\ta", "__N__2\tb"], ["__N__", "__N__2"])
    assert [*both.find("__N__2")] == [(0, 6, "__N__2")]
    for pattern, problem in (("(", "unterminated"), ("x*", "empty"), ("", "empty")):
        with pytest.raises(InputError, match=f"placeholders, line 2: .*{problem}"):
            Placeholders(["a", pattern])


@pytest.mark.parametrize(
    ("markup", "text", "expected"),
    [
        (
            "html",
            "<p>{% if n > 1 %} many {{ a && b }} &lt;b&gt; c",
            "<p>{% if n > 1 %} MANY {{ a && b }} &lt;b&gt; C",
        ),
        ("html", "<p>{% if n > 1 %} a", "<p>{% if n > 1 %} A"),
        ("html", "a &amp;lt; &lt; b", "A &amp;lt; &lt; B"),
        ("html", "<meta charset='{{ x }}'>a", "<meta charset='{{ x }}'>A"),
        (
            "html",
            "<meta http-equiv=Content-Type content='a; charset=\"UTF-8\";'>a",
            "<meta http-equiv=Content-Type content='a; charset=\"UTF-8\";'>A",
        ),
        (
            "html",
            "<meta charset=utf8><meta charset=x>b",
            "<meta charset=utf8><meta charset=x>B",
        ),
        (
            "html",
            "{{ a &lt; b }} {{ a < b }} &bar; &amp;foo; &foo; a",
            "{{ a &lt; b }} {{ a < b }} &bar; &amp;foo; &amp;foo; A",
        ),
        ("xml", "<p>{{ a > &amp; }} b</p>", "<p>{{ a &gt; &amp; }} B</p>"),
        (
            "vtt",
            "WEBVTT\n\n-->\nat &lt;10:30&gt; b",
            "WEBVTT\n\n-->\nAT &lt;10:30&gt; B",
        ),
        ("vtt", "WEBVTT\n\n-->\na&#10;b c\nd\n", "WEBVTT\n\n-->\nA B C\nD\n"),
        ("txt", "on {d, date, short} a {n,number}", "ON {d, date, short} A {n,number}"),
        (
            "txt",
            "a {g, select, x {is {n, plural, one {# b} other {# c}}} other {d}} b",
            "A {g, select, x {is {n, plural, one {# b} other {# c}}} other {d}} B",
        ),
    ],
)
def test_what_is_no_text_stays_as_it_stands(markup, text, expected):
    def change(word):
        return word.upper() if word.isalpha() else word

    assert translated(markup, text, change=change) == (expected, [])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("<source>a</source><target><![CDATA[b]]></target>", None),
        ("<source>a</source><target><x id='1'/></target>", None),
        ("<source><![CDATA[a]]></source><target state='new'/>", None),
        (
            "<source><g id='1'>a</g><![CDATA[b]]></source><target><mrk/></target>",
            "<source><g id='1'>a</g><![CDATA[b]]></source>"
            "<target><g id='1'>A</g><![CDATA[b]]></target>",
        ),
        (
            "<source>a b</source><seg-source><mrk mtype='seg'>a</mrk> <mrk mtype='seg'>"
            "b</mrk></seg-source>",
            "<source>a b</source><seg-source><mrk mtype='seg'>a</mrk> <mrk mtype='seg'>"
            "b</mrk></seg-source><target><mrk mtype='seg'>A</mrk> <mrk mtype='seg'>B"
            "</mrk></target>",
        ),
        (
            "<source>a <mrk mtype='protected'>b</mrk> c</source>",
            "<source>a <mrk mtype='protected'>b</mrk> c</source>"
            "<target>A <mrk mtype='protected'>b</mrk> C</target>",
        ),
    ],
)
def test_xliff_keeps_what_is_translated_and_what_cannot_be(unit, expected):
    """`expected` None: nothing changes."""
    form = "<xliff><trans-unit>{}</trans-unit></xliff>"
    found, _ = translated("xliff", form.format(unit), change=upper)
    assert found == form.format(expected or unit)
    form = "<xliff><segment{}><source>a</source>{}</segment></xliff>"
    text = form.format(" state='initial' subState='x:y'", "")
    found, _ = translated("xliff", text, change=upper)
    assert found == form.format(" state='translated'", "<target>A</target>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>the m<wbr>ost good", "<p>the most<wbr> good"),
        ("<p>see o<wbr>ne now", "<p>see one<wbr> now"),
    ],
)
def test_a_tag_inside_a_word_stays_at_the_word(text, expected):
    assert translated("html", text)[0] == expected


@pytest.mark.parametrize("markup", ["html", "xml"])
def test_white_space_of_unicode_stays(markup):
    text = "<p>\u00a0a <code>\u2003</code> b <i class='notranslate'>\u00a0</i> c</p>"
    assert translated(markup, text) == (text, [])


@pytest.mark.parametrize("markup", ["html", "xml"])
def test_what_is_within_protected_text_moves_with_it(markup):
    kept = "<b translate='no'>b <i translate='yes'>c</i> d</b>"
    found, _ = translated(markup, f"<r>a {kept} e</r>", lambda _: [4, 0], upper)
    assert sorted(re.split(f"({kept})", found)[1::2]) == [kept]
    text = "<div translate=no>a <p translate=yes>b <b translate=no>c</b></div>"
    assert translated("html", text, change=upper)[0] == text.replace("b <b", "B <b")


@pytest.mark.parametrize(
    ("markup", "text", "first", "last"),
    [
        ("txt", "a {% if x %} b {% endif %} c", "{% if x %}", "{% endif %}"),
        ("txt", "a {{#x}} b {{/x}} c", "{{#x}}", "{{/x}}"),
        ("html", "a <!-- x --> b <!-- /x --> c", "<!-- x -->", "<!-- /x -->"),
        ("vtt", "WEBVTT\n\n0 --> 1\na <0:1> b <0:2> c\n", "<0:1>", "<0:2>"),
        (
            "xliff",
            "<segment><source>a <bpt>x</bpt> b <ept>y</ept> c</source></segment>",
            "<bpt>x</bpt>",
            "<ept>y</ept>",
        ),
        (
            "xliff",
            "<segment><source>a <bpt id='1' x=\"&lt;b id='n'>\">x</bpt> b "
            "<ept id='1'/> c</source></segment>",
            "<bpt",
            "<ept",
        ),
    ],
)
def test_halves_keep_their_order(markup, text, first, last):
    found, _ = translated(markup, text, reversed)
    assert found != text
    assert found.rindex(first) < found.rindex(last)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <x> b <y> c <z> d", "d <z> c <y> b <x> a"),
        ("a {%u 1%} b {%u 2%} c", "c {%u 2%} b {%u 1%} a"),
        ("a <br> b <b>c</b> <i>d</i>", "<i>d</i> <b>c</b> b <br> a"),
        # No value: what begins or ends in another text.
        ("a {% endfor %} b {% endif %} c", "c {% endfor %} b {% endif %} a"),
        ("a {% else %} b {% endif %} c", "c {% else %} b {% endif %} a"),
        ("a {% if x %} b {% else %} c", "c {% if x %} b {% else %} a"),
        ("a {% x %} b {% else %} c", "c {% x %} b {% else %} a"),
        ("a {% if x %} b {% for y %} c", "c {% if x %} b {% for y %} a"),
        ("a {% x %} b {% end %} c", "c {% x %} b {% end %} a"),
        ("a {%~ if x %} b {%~ endif %} c", "c {%~ if x %} b {%~ endif %} a"),
        (
            "a {%if%} b {%for%} c {%else%} d {%endif%} e",
            "e {%if%} d {%for%} c {%else%} b {%endif%} a",
        ),
        ("a {{#>x}} b {{/x}} c", "c {{#>x}} b {{/x}} a"),
        ("a {{#x}} b {{else}} c {{/x}}", "{{#x}} c {{else}} b {{/x}} a"),
        ("a </b> b </i> c", "c </b> b </i> a"),
    ],
)
def test_values_alone_move_with_their_words(text, expected):
    symbols = [SYMBOL] if "%" in text else []
    assert translated("txt", text, reversed, str, symbols) == (expected, [])


def test_pairs_may_change_their_order():
    found, _ = translated("txt", "<b>a</b> and <i>c</i>", reversed)
    assert found == "<i>c</i> and <b>a</b>"
    text = "go {% if a %} now {% endif %} or {% if b %} later {% endif %}"
    found, _ = translated(
        "txt", text, lambda _: [0, 2, 1, 3, 6, 7, 5, 4], str, [SYMBOL]
    )
    halves = [re.findall("{%.*?%}", each) for each in (text, found)]
    assert halves[0] == halves[1]
    text = " or ".join(
        f"{{% if {x} %}} {x} {{% else %}} no {x} {{% endif %}}" for x in "ab"
    )
    order = [7, 8, 9, 10, 11, 12, 6, *range(6)]
    found, _ = translated("txt", text, lambda _: order, str, [SYMBOL])
    assert found == " or ".join(reversed(text.split(" or ")))
    ids = "bpt id='1'", "bpt id='2'", "ept id='2'", "ept id='1'"
    a, b, c, d = (f"<{each}>x</{each[:3]}>" for each in ids)
    form = "<segment><source>{0}</source><target>{0}</target></segment>"
    text = form.replace("{0}", f"1 {a} 2 {b} 3 {c} 4 {d}", 1).replace("{0}", "")
    found, _ = translated("xliff", text, reversed, str, [SYMBOL])
    places = [found.rindex(each) for each in (a, b, c, d)]
    assert places == sorted(places)


@pytest.mark.parametrize("target", ["", "Was?", "Was gibt's?", "Was ist denn da los?"])
def test_no_line_of_a_cue_becomes_empty(target):
    begin = "WEBVTT\n\n0 --> 1\n"
    document = Document(f"{begin}What\n<i>is</i>\nup?\n", "vtt")
    found, _ = document.write([Hypothesis(target, 0.0, 0.0, 1)])
    lines = found.removeprefix(begin).removesuffix("\n").split("\n")
    assert all(lines), lines


def test_plurals_of_icu_stay():
    text = "You saw {n, plural, =0 {no cat} one {{{name}} cat} other {# cats}} here"
    assert Document(text, "txt").texts == ["You saw here"]
    assert translated("txt", text) == (text, [])
    assert Document(text[8:-5], "txt").texts == []


# Bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markup", "text", "message"),
    [
        ("xml", "<a>\n<b></a>", "line 2, column 6: this is no well-formed XML"),
        ("xml", "<?xml version='1.0' encoding='latin-1'?><a/>", "encoding 'latin-1'"),
        ("xml", "<?xml version='1.0' encoding='x-sjis'?><a/>", "encoding 'x-sjis'"),
        ("html", "<meta charset=Latin1>", "encoding 'Latin1'; make it UTF-8"),
        (
            "html",
            "<meta http-equiv='Content-Type' content='text/html; charset=big5'>",
            "encoding 'big5'",
        ),
        (
            "po",
            'msgid ""\nmsgstr "Plural-Forms: nplurals=1; plural=x;\\n"\n\n'
            'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
            "Plural-Forms is 'nplurals=1; plural=x;' .*; correct it",
        ),
        (
            "po",
            'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n;\\n"\n\n'
            'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
            "2 has form 2",
        ),
        ("xliff", "", "no element found"),
        ("html", "a\n<![<![", "line 2 has '<!\\['"),
        ("po", 'msgstr "a"\nmsgid "b"', "this is no .po file"),
        ("po", 'msgid "a"\n"b', "line 2 is no line of a .po file: '\"b'"),
        ("po", 'msgid "\\x41"', "line 1 is no line of a .po file"),
        ("po", __file__, "line 1 is no line of a .po file"),
        ("srt", "a", "no line has times"),
        ("vtt", "a --> b", "line 1 is not WEBVTT"),
        ("xml", "<a>\ud800</a>", "line 1 has a lone surrogate; remove it"),
        ("doc", "", "markup is 'doc'; use one of html, xml"),
    ],
)
def test_what_is_not_well_formed_is_refused(markup, text, message):
    with pytest.raises(InputError, match=message):
        Document(text, markup)


def test_elements_keep_their_text_when_too_many_links_were_read(monkeypatch):
    monkeypatch.setattr(links, "_MOST_READ", 2)
    text = "<p>q <i>a b c</i> and <b>d <i>e</i> f</b> z"
    assert translated("html", text) == (text, [])


@pytest.mark.parametrize(
    "unit",
    ["a<wbr>", "<a ", "<a/", "<!--", "<b>a ", "<p>a ", "{a} ", "<i>x</i> ", "&a"],
)
@pytest.mark.parametrize("markup", ["html", "txt"])
def test_the_time_is_linear_in_the_text(unit, markup):
    """Python's parser needs a minute for 32,000 characters of the first one."""
    text = unit * (32_000 // len(unit))
    translated(markup, text, is_aligned=False)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("html", "x &lt;b&gt; " * 20_000),
        ("html", "q " + "<i>" * 9_000 + "a " * 9_000 + "</i>" * 9_000 + " z"),
        ("xliff", f"<x><segment>{'<source>a</source>' * 9_000}</segment></x>"),
        ("xliff", f"<segment><source>a <bpt {'a' * 50_000}·='b'/></source></segment>"),
        ("txt", "{n,plural," + "{b}" * 20_000 + "{n,plural," * 20_000),
        ("txt", "www.((" * 50_000),
    ],
)
def test_a_document_does_not_hold_a_thread(markup, text):
    begin = time.process_time()
    translated(markup, text)
    assert (
        time.process_time() - begin < 10
    )  # a minute or more, if the time is quadratic


def test_a_plural_of_icu_that_has_no_end_takes_no_exponential_time():
    text = "{n,plural," + "y{{a}}" * 5000
    assert translated("txt", text)[0] == text


@given(st.text(alphabet="<>/!-[]x=\"' &;?{}%\n"))
def test_no_html_makes_it_fail(text):
    for markup in ("html", "srt"):
        try:
            found, _ = translated(markup, f"{text}-->")
        except InputError:
            continue
        assert found.count("x") == text.count("x")
