"""Attention charts and the page hold what the model computed."""

import base64
import json
import re
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.decoding.forced import PairScore
from jaxformer.decoding.translate import Hypothesis
from jaxformer.errors import InputError
from jaxformer.reports import page
from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_charts import (
    MIN_WEIGHT,
    head_colours,
    heat_map,
    lines_chart,
)
from jaxformer.reports.attention_data import LEVELS, Matrix, attend, readable, word_diff

from .synthetic_attention import HEADS, LAYERS, attended, attention, pieces

SOURCE = "Two foxes wander home"
TARGETS = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim")


@pytest.fixture(scope="module")
def view() -> AttentionView:
    return AttentionView(
        [attended(SOURCE, *TARGETS), attended("It rains", "Es regnet")]
    )


def data_of(chart, name: str) -> list[dict]:
    """The rows that a chart has under a name, wherever it has them."""

    def search(node):
        if node.get("data", {}).get("name") == name:
            return node["data"]["values"]
        inner = [*node.get("layer", ()), *([node["spec"]] if "spec" in node else ())]
        return next((found for found in map(search, inner) if found), None)

    spec = chart.to_dict()
    return search(spec) or spec["datasets"][name]


@pytest.mark.parametrize(
    ("marked", "shown"),
    [
        (["\u2581extra", "ordin", ",", "\u2581", "\u25813", "4", "</s>"],
         ["extra", "·ordin", ",", "\u2423", "3", "·4", "<end>"]),
        (["\u2581犬", "が", "走る", "</s>"], ["犬", "が", "走る", "<end>"]),
        (["Wort", "</s>"], ["Wort", "<end>"]),
        (["</s>"], ["<end>"]),
    ],
)  # fmt: skip
def test_pieces_that_continue_a_word_begin_with_a_dot(marked, shown):
    assert readable(marked) == shown


def test_words_that_changed_are_told_apart():
    parts = [("same", "a"), ("new", "x"), ("same", "c"), ("gone", "d")]
    assert word_diff("a b c d", "a x c") == parts
    assert word_diff("a", "a b") == [("same", "a"), ("new", "b")]
    assert word_diff("", "") == []


# Charts -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_lines_have_the_weights_and_the_pieces_of_the_pair(view, kind):
    found = view.viewed[0].alternatives[1].attention
    chart = view.lines(attention=kind, layer=1, heads=[3], alternative=2)
    weights = getattr(found, kind)[0, 2]
    rows = data_of(chart, "weights")
    assert len(rows) == (weights >= MIN_WEIGHT).sum()
    for row in rows:
        expected = pytest.approx(weights[row["query"], row["key"]], abs=0.0005)
        assert (row["head"], row["weight"]) == (3, expected)
    source, target = readable(found.source), readable(found.target)
    sides = {
        "encoder": (source, source),
        "decoder": (target, ["<start>", *target[:-1]]),
        "cross": (target, source),
    }
    tokens = data_of(chart, "tokens")
    for side, expected in zip(("query", "key"), sides[kind], strict=True):
        assert [each["text"] for each in tokens if each["side"] == side] == expected


def test_a_heat_map_has_every_weight_and_one_panel_for_each_head(view):
    found = view.viewed[1].alternatives[0].attention
    chart = view.heat_map(sentence=2)
    sums = np.zeros((HEADS, len(found.target)))
    for row in data_of(chart, "weights"):
        sums[row["head"] - 1, row["query"]] += row["weight"]
    np.testing.assert_allclose(sums, 1, atol=0.01)
    spec = chart.to_dict()
    assert spec["facet"]["field"] == "head"
    values = {param["name"]: param["value"] for param in spec["params"]}
    sides = readable(found.target), readable(found.source)
    assert (values["queries"], values["keys"]) == sides
    assert "facet" not in view.heat_map(heads=2).to_dict()


def test_lines_and_cells_are_drawn_at_their_pieces():
    weights = np.zeros((1, 3, 2))
    weights[0, 2, 0] = 1  # cc attends to xx
    matrix = Matrix(["aa", "bb", "cc"], ["xx", "yy"], weights)

    def draw(chart):
        svg = page.picture(chart, "svg").decode()
        texts = re.findall(r"translate\(([-\d.]+),([-\d.]+)\)[^>]*>(\w\w)</text>", svg)
        return svg, {text: (float(x), float(y)) for x, y, text in texts}

    svg, at = draw(lines_chart(matrix, [1]))
    ((x, dx),) = re.findall(r'<line[^>]*translate\(([-\d.]+),[^>]*x2="([-\d.]+)"', svg)
    assert (float(x), float(x) + float(dx)) == (at["cc"][0], at["xx"][0])
    svg, at = draw(heat_map(matrix, [1]))
    cells = re.findall(r'rect mark" d="M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)', svg)
    ((x, y, width, height),) = (map(float, cell) for cell in cells)
    assert x < at["xx"][0] < x + width
    assert y < at["cc"][1] < y + height


def test_a_head_has_the_same_colour_in_every_chart(view):
    for chart in (view.lines(heads=2), view.heat_map()):
        found = re.search(
            r'"domain": (\[[1-9, ]*\]), "range": (\["#[^]]*\])',
            json.dumps(chart.to_dict()),
        )
        colours = dict(zip(*map(json.loads, found.groups()), strict=True))
        assert colours[2] == head_colours(HEADS)[1]
    assert len(set(head_colours(16))) == 16


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 4}, "no layer 4: choose from 1 to 3"),
        ({"layer": 5, "attention": "encoder"}, "no layer 5: choose from 1 to 4"),
        ({"heads": [0, 1]}, "no head 0: choose from 1 to 4"),
        ({"heads": []}, "heads is empty"),
        ({"sentence": 3}, "no sentence 3: choose from 1 to 2"),
        ({"alternative": 3}, "no alternative 3: choose from 1 to 2"),
        ({"attention": "self"}, "encoder, decoder, cross"),
        ({"view": "pie"}, "lines, heat_map"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(view, choice, message):
    for draw in (view.chart, view.html):
        with pytest.raises(InputError, match=message):
            draw(**choice)


# Pages and pictures -----------------------------------------------------------------


def test_the_page_has_all_weights_and_begins_with_what_was_chosen(view):
    html = view.html(layer=2, heads=[4, 1], attention="decoder", sentence=2)
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["begin"] == {
        "view": "lines", "attention": "decoder", "layer": 2, "heads": [1, 4],
        "sentence": 2, "alternative": 1,
    }  # fmt: skip
    assert data["layers"] == {"encoder": LAYERS + 1, "decoder": LAYERS, "cross": LAYERS}
    assert [each["text"] for each in data["sentences"]] == [SOURCE, "It rains"]
    for shown, pair in zip(data["sentences"], view.viewed, strict=True):
        for told, each in zip(shown["alternatives"], pair.alternatives, strict=True):
            told["encoder"] = shown["encoder"]
            for kind in ("encoder", "decoder", "cross"):
                expected = getattr(each.attention, kind)
                levels = zlib.decompress(base64.b64decode(told[kind]))
                back = np.frombuffer(levels, np.uint8).reshape(expected.shape) / LEVELS
                np.testing.assert_allclose(back, expected, atol=0.5 / LEVELS + 1e-6)
            assert told["score"] == each.score
            assert told["pieces"] == readable(each.attention.target)


def test_markup_in_a_sentence_stays_text_and_a_long_page_is_small():
    bad = "</script><script>alert(1)</script> <b>"
    long = " ".join(f"word{n}" for n in range(59))
    sentences = [attended(bad, bad), attended(long, *[long] * 4)]
    html = AttentionView(sentences, "<i>title</i>").html()
    assert "<script>alert" not in html
    assert "<i>title" not in html
    assert 200_000 < len(html) < 4_000_000


def test_files_are_of_the_kind_that_their_name_says(view, tmp_path):
    choice = {"view": "heat_map", "heads": [1, 2], "sentence": 2}
    for ending, begin in ("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF"):
        path = tmp_path / "new" / f"picture.{ending}"
        view.save(path, **choice)
        assert path.read_bytes().startswith(begin)
    assert view.png(**choice) == path.with_suffix(".png").read_bytes()
    assert TARGETS[0].split()[0] in json.dumps(  # in a notebook
        view._repr_mimebundle_(), ensure_ascii=False
    )
    for name, message in (
        ("x.gif", r"end in \.html or \.png"),
        ("new/picture.png/x.html", "cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            view.save(tmp_path / name)


# From a translator ------------------------------------------------------------------

TRANSLATOR = SimpleNamespace(  # a piece is a word or a part of it
    longest=6,
    tokenizer=SimpleNamespace(
        encode=lambda texts: [pieces(text) for text in texts],
        encode_target=lambda texts: [pieces(text) for text in texts],
    ),
    translate=lambda texts: [
        [Hypothesis(f"{text[::-1]}{'!' * n}", -n, -2 * n, n) for n in (1, 2)]
        for text in texts
    ],
    attention=attention,
    score=lambda _, texts: [
        PairScore(pieces(text), [-0.5] * len(pieces(text))) for text in texts
    ],
)


def test_sentences_are_translated_or_given_and_blank_ones_left_out():
    first, last = attend(TRANSLATOR, ["ab cd", " ", "ef"])
    assert (first.source, last.source) == ("ab cd", "ef")
    assert first.alternatives[0][:4] == ("dc ba!", -1, -2, 1)
    assert first.alternatives[1].attention.target == pieces("dc ba!!")
    (found,) = attend(TRANSLATOR, ["", "ab cd"], ["", "x"])
    (only,) = found.alternatives
    assert only[:4] == ("x", None, pytest.approx(-1.0), 2)
    assert only.attention.source == pieces("ab cd")


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([" ", ""], None, "0 sentences cannot be shown"),
        (["a"] * 51, None, "51 sentences cannot be shown: give 1 to 50"),
        (["a", "b c d e f g"], None, "the sentence of line 2 has 7 pieces.* than 6"),
        (["", "a"], ["", "b c d e f g"], "the translation of line 2 has 7 pieces"),
    ],
)
def test_no_too_many_and_too_long_sentences_are_refused(sources, targets, message):
    with pytest.raises(InputError, match=message):
        attend(TRANSLATOR, sources, targets)
