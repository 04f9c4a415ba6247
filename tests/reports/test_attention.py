"""Attention charts and the page hold what the model computed."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from jaxformer.reports import attention as charts
from jaxformer.reports import page
from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_data import (
    LEVELS,
    AttentionMatrix,
    readable,
    word_diff,
)
from jaxformer.system.errors import InputError

from .synthetic_attention import LAYERS, attended

SOURCE = "Two foxes wander home"
TARGETS = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim")
VIEW = AttentionView([attended(SOURCE, *TARGETS), attended("It rains", "Es regnet")])


@pytest.mark.parametrize(
    ("marked", "shown"),
    [
        (
            "\u2581extra ordin , \u2581 \u25813 4 </s>",
            "extra ·ordin , \u2423 3 ·4 <end>",
        ),
        ("\u2581犬 が 走る </s>", "犬 が 走る <end>"),
        ("Wort </s>", "Wort <end>"),
    ],
)
def test_pieces_that_continue_a_word_begin_with_a_dot(marked, shown):
    assert readable(marked.split(" ")) == shown.split(" ")


def test_words_that_changed_are_told_apart():
    parts = [("same", "a"), ("new", "x"), ("same", "c"), ("gone", "d")]
    assert word_diff("a b c d", "a x c") == parts
    assert word_diff("a", "a b") == [("same", "a"), ("new", "b")]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize(
    ("draw", "least"), [(VIEW.lines, charts.MIN_WEIGHT), (VIEW.heat_map, 0.0005)]
)
def test_charts_have_the_weights_and_the_pieces_of_the_pair(draw, least, kind):
    found = VIEW.viewed[0].alternatives[1].attention
    weights = getattr(found, kind)[0, 2]
    spec = draw(attention=kind, layer=1, heads=3, alternative=2).to_dict()
    rows = spec["datasets"]["weights"]
    drawn = {(row["head"], row["query"], row["key"]): row["weight"] for row in rows}
    assert drawn == {
        (3, *at): pytest.approx(weight, abs=0.0005)
        for at, weight in np.ndenumerate(weights)
        if weight >= least
    }
    source, target = readable(found.source), readable(found.target)
    sides = {
        "encoder": [source, source],
        "decoder": [target, ["<start>", *target[:-1]]],
        "cross": [target, source],
    }
    values = {param["name"]: param["value"] for param in spec["params"]}
    assert [values["queries"], values["keys"]] == sides[kind]


def test_lines_and_cells_are_drawn_at_their_pieces():
    weights = np.zeros((1, 3, 2))
    weights[0, 2, 0] = 1  # cc attends to xx
    matrix = AttentionMatrix(["aa", "bb", "cc"], ["xx", "yy"], weights)

    def draw(chart):
        svg = page.picture(chart, "svg").decode()
        texts = re.findall(r"translate\(([-\d.]+),([-\d.]+)\)[^>]*>(\w\w)</text>", svg)
        return svg, {text: (float(x), float(y)) for x, y, text in texts}

    svg, at = draw(charts.lines_chart(matrix, [1]))
    ((x, dx),) = re.findall(r'<line[^>]*translate\(([-\d.]+),[^>]*x2="([-\d.]+)"', svg)
    assert (float(x), float(x) + float(dx)) == (at["cc"][0], at["xx"][0])
    svg, at = draw(charts.heat_map(matrix, [1]))
    cells = re.findall(r'rect mark" d="M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)', svg)
    ((x, y, width, height),) = (map(float, cell) for cell in cells)
    assert x < at["xx"][0] < x + width
    assert y < at["cc"][1] < y + height


def test_a_head_has_the_same_colour_in_every_chart():
    scale = {"domain": [1, 2, 3, 4], "range": [*charts.COLOURS]}
    _, lines, _ = VIEW.lines(heads=2).to_dict()["layer"]
    for each in (lines, VIEW.heat_map().to_dict()["spec"]):
        assert each["encoding"]["color"]["scale"] == scale


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
def test_a_choice_that_does_not_exist_is_refused(choice, message):
    with pytest.raises(InputError, match=message):
        VIEW.chart(**choice)


def test_the_page_has_all_weights_and_begins_with_what_was_chosen():
    choice = {"layer": 2, "attention": "decoder", "sentence": 2}
    html = VIEW.html(**choice, heads=[4, 1])
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    begin = {"view": "lines", "heads": [1, 4], "alternative": 1}
    assert data["begin"] == {**choice, **begin}
    assert data["layers"] == {"encoder": LAYERS + 1, "decoder": LAYERS, "cross": LAYERS}
    assert [each["text"] for each in data["sentences"]] == [SOURCE, "It rains"]
    for shown, pair in zip(data["sentences"], VIEW.viewed, strict=True):
        for told, each in zip(shown["alternatives"], pair.alternatives, strict=True):
            for kind in data["layers"]:
                expected = getattr(each.attention, kind)
                levels = zlib.decompress(base64.b64decode({**shown, **told}[kind]))
                back = np.frombuffer(levels, np.uint8).reshape(expected.shape) / LEVELS
                np.testing.assert_allclose(back, expected, atol=0.5 / LEVELS + 1e-6)
            assert told["score"] == each.found.score


def test_markup_in_a_sentence_stays_text_and_a_long_page_is_small():
    bad = "</script><script>alert(1)</script> <b>"
    long = " ".join(f"word{n}" for n in range(59))
    sentences = [attended(bad, bad), attended(long, *[long] * 4)]
    html = AttentionView(sentences, "<i>title</i>").html()
    assert "<script>alert" not in html
    assert "<i>title" not in html
    assert 200_000 < len(html) < 4_000_000


def test_files_are_of_the_kind_that_their_name_says(tmp_path):
    choice = {"view": "heat_map", "heads": [1, 2], "sentence": 2}
    for ending, begin in ("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF"):
        path = tmp_path / f"picture.{ending}"
        VIEW.save(path, **choice)
        assert path.read_bytes().startswith(begin)
    assert VIEW.png(**choice) == path.with_suffix(".png").read_bytes()
    assert "Zwei" in str(VIEW._repr_mimebundle_())  # in a notebook
    with pytest.raises(InputError, match="cannot be written"):
        VIEW.save(path / "x.html")
