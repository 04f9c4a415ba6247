"""Where heads look: what charts and the page carry is what the model computed."""

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
from jaxformer.reports.attention import AttentionView
from jaxformer.reports.attention_charts import head_colours
from jaxformer.reports.attention_data import (
    LEVELS,
    changes,
    legible,
    look,
    looks_of,
    pack,
    rows_of,
)

from .looks import HEADS, LAYERS, attention, pieces, viewed

SOURCE = "Two foxes wander home"
TARGETS = ("Zwei Füchse wandern heim", "Zwei Füchse gehen heim")


@pytest.fixture
def view() -> AttentionView:
    return AttentionView(
        [viewed(SOURCE, *TARGETS), viewed("It rains", "Es regnet")], "Attention"
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


def unpack(text: str, shape: tuple[int, ...]) -> np.ndarray:
    levels = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return levels.reshape(shape) / LEVELS


# Pieces and weights -----------------------------------------------------------------


def test_pieces_lose_their_mark_and_those_inside_a_word_have_a_dot():
    marked = ["\u2581extra", "ordin", "ary", ",", "\u2581", "\u25813", "4", "</s>"]
    assert legible(marked) == [
        "extra", "·ordin", "·ary", ",", "\u2423", "3", "·4", "<end>",
    ]  # fmt: skip
    assert legible(["\u2581犬", "が", "走る", "</s>"]) == ["犬", "が", "走る", "<end>"]
    assert legible(["Wort", "</s>"]) == ["Wort", "<end>"]
    assert legible(["</s>"]) == ["<end>"]


def test_each_attention_has_its_queries_and_keys():
    found = attention(SOURCE, TARGETS[0])
    source, target = legible(found.source), legible(found.target)
    sides = {"encoder": (source, source), "cross": (target, source)}
    sides["decoder"] = (target, ["<start>", *target[:-1]])
    for kind, (queries, keys) in sides.items():
        looks = looks_of(found, kind, 2)
        assert (looks.queries, looks.keys) == (queries, keys)
        np.testing.assert_array_equal(looks.weights, getattr(found, kind)[1])
        assert looks.weights.shape == (HEADS, len(queries), len(keys))


def test_rows_are_the_weights_of_the_chosen_heads():
    looks = looks_of(attention(SOURCE, TARGETS[0]), "cross", 3)
    rows = rows_of(looks, [2, 4], least=0.1)
    assert {row["head"] for row in rows} == {2, 4}
    for row in rows:
        expected = looks.weights[row["head"] - 1, row["query"], row["key"]]
        assert row["weight"] == pytest.approx(expected, abs=0.0005)
    assert len(rows) == (looks.weights[[1, 3]] >= 0.1).sum()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 7, 5)])
def test_packed_weights_come_back_within_half_a_level(shape):
    weights = np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])
    back = unpack(pack(weights.astype(np.float32)), shape)
    assert np.abs(back - weights).max() <= 0.5 / LEVELS + 1e-6
    ends = np.array([[[[0.0, 1.0]]]], np.float32)
    np.testing.assert_array_equal(unpack(pack(ends), ends.shape), ends)


def test_sixteen_heads_have_sixteen_colours():
    assert len(set(head_colours(16))) == 16
    assert head_colours(17)[16] == head_colours(1)[0]
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in head_colours(16))


def test_words_that_changed_are_told_apart():
    assert changes("a b c", "a b c") == [("same", "a b c")]
    assert changes("a b c", "a x c") == [("same", "a"), ("new", "x"), ("same", "c")]
    assert changes("a b c", "a c") == [("same", "a"), ("gone", "b"), ("same", "c")]
    assert changes("a", "a b") == [("same", "a"), ("new", "b")]
    assert changes("a", "") == [("gone", "a")]
    assert changes("", "") == []


# Charts -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_lines_have_the_weights_and_the_pieces_of_the_pair(view, kind):
    found = view.viewed[0].alternatives[1].attention
    chart = view.lines(attention=kind, layer=1, heads=[3], alternative=2)
    looks = looks_of(found, kind, 1)
    rows = data_of(chart, "weights")
    weights = looks.weights[2]
    assert len(rows) == (weights >= 0.01).sum()
    for row in rows:
        assert row["head"] == 3
        expected = weights[row["query"], row["key"]]
        assert row["weight"] == pytest.approx(expected, abs=0.0005)
    tokens = data_of(chart, "tokens")
    for side, expected in (("query", looks.queries), ("key", looks.keys)):
        shown = [each["text"] for each in tokens if each["side"] == side]
        assert shown == expected


def test_a_heat_map_has_every_weight_and_one_panel_a_head(view):
    looks = looks_of(view.viewed[1].alternatives[0].attention, "cross", LAYERS)
    chart = view.heat_map(sentence=2)
    rows = data_of(chart, "weights")
    assert {row["head"] for row in rows} == set(range(1, HEADS + 1))
    sums = {}
    for row in rows:
        place = (row["head"], row["query"])
        sums[place] = sums.get(place, 0) + row["weight"]
    assert len(sums) == HEADS * len(looks.queries)
    assert all(total == pytest.approx(1, abs=0.01) for total in sums.values())
    spec = chart.to_dict()
    assert spec["facet"]["field"] == "head"
    values = {param["name"]: param["value"] for param in spec["params"]}
    assert (values["queries"], values["keys"]) == (looks.queries, looks.keys)
    assert "facet" not in view.heat_map(heads=2).to_dict()


def test_a_head_has_the_same_colour_whatever_is_beside_it(view):
    def colours(chart):
        found = re.search(r'"domain": (\[[1-9, ]*\]), "range": (\[[^]]*\])', str(chart))
        return dict(zip(*map(json.loads, found.groups()), strict=True))

    alone = colours(json.dumps(view.lines(heads=2).to_dict()))
    together = colours(json.dumps(view.heat_map().to_dict()))
    assert alone[2] == together[2] == head_colours(HEADS)[1]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 4}, "no layer 4: choose from 1 to 3"),
        ({"layer": 0}, "no layer 0"),
        ({"heads": [1, 5]}, "no head 5: choose from 1 to 4"),
        ({"heads": 0}, "no head 0"),
        ({"heads": []}, "names none"),
        ({"sentence": 3}, "no sentence 3: choose from 1 to 2"),
        ({"alternative": 3}, "no alternative 3: choose from 1 to 2"),
        ({"attention": "self"}, "encoder, decoder, cross"),
        ({"view": "pie"}, "lines, heat_map"),
    ],
)
def test_what_there_is_not_is_said(view, choice, message):
    for wish in (view.chart, view.html):
        with pytest.raises(InputError, match=message):
            wish(**choice)


# Pages and pictures -----------------------------------------------------------------


def test_the_page_has_all_weights_and_begins_with_what_was_chosen(view):
    html = view.html(layer=2, heads=[4, 1], attention="decoder", sentence=2)
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["begin"] == {
        "view": "lines", "attention": "decoder", "layer": 2, "heads": [1, 4],
        "sentence": 2, "alternative": 1,
    }  # fmt: skip
    assert [each["text"] for each in data["sentences"]] == [SOURCE, "It rains"]
    for shown, pair in zip(data["sentences"], view.viewed, strict=True):
        best = pair.alternatives[0].attention
        back = unpack(shown["encoder"], best.encoder.shape)
        np.testing.assert_allclose(back, best.encoder, atol=0.5 / LEVELS + 1e-6)
        for told, each in zip(shown["alternatives"], pair.alternatives, strict=True):
            for kind in ("decoder", "cross"):
                expected = getattr(each.attention, kind)
                back = unpack(told[kind], expected.shape)
                np.testing.assert_allclose(back, expected, atol=0.5 / LEVELS + 1e-6)
            assert told["score"] == each.score
            assert told["pieces"] == legible(each.attention.target)


def test_markup_in_a_sentence_stays_text():
    bad = "</script><script>alert(1)</script> <b>"
    html = AttentionView([viewed(bad, bad)], "<i>title</i>").html()
    assert "<script>alert" not in html
    assert "<i>title" not in html


def test_a_long_sentence_is_a_page_of_a_few_megabytes():
    text = " ".join(f"word{n}" for n in range(59))
    page = AttentionView([viewed(text, text, text, text, text)]).html()
    assert 200_000 < len(page) < 4_000_000


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_pictures_are_of_the_kind_that_their_name_says(view, tmp_path, ending):
    path = tmp_path / "new" / f"picture{ending}"
    view.save(path, view="heat_map", heads=[1, 2], sentence=2)
    begins = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(begins[ending])
    if ending == ".png":
        assert view.png(view="heat_map", heads=[1, 2], sentence=2) == path.read_bytes()


def test_a_file_that_cannot_be_is_said(view, tmp_path):
    with pytest.raises(InputError, match=r"not called \.html, \.png"):
        view.save(tmp_path / "picture.gif")
    (tmp_path / "file").write_text("")
    for name in ("x.html", "x.svg"):
        with pytest.raises(InputError, match="cannot be written"):
            view.save(tmp_path / "file" / name)


def test_a_notebook_shows_the_lines(view):
    bundle = view._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    assert TARGETS[0].split()[0] in json.dumps(bundle, ensure_ascii=False)


# From a translator ------------------------------------------------------------------


class Fake:
    """Turns words around; a piece is a word or a part of it."""

    longest = 6
    tokenizer = SimpleNamespace(
        encode=lambda texts: [pieces(text) for text in texts],
        encode_target=lambda texts: [pieces(text) for text in texts],
    )

    def translate(self, sentences):
        return [
            [Hypothesis(f"{text[::-1]}{'!' * n}", -n, -2 * n, n) for n in (1, 2)]
            for text in sentences
        ]

    def attention(self, source, target):
        return attention(source, target)

    def score(self, sources, targets):
        return [PairScore(pieces(text), [-0.5] * len(pieces(text))) for text in targets]


def test_sentences_are_translated_and_blank_ones_left_out():
    found = look(Fake(), ["ab cd", " ", "ef"])
    assert [each.source for each in found] == ["ab cd", "ef"]
    first, second = found[0].alternatives
    assert (first.text, first.score, first.log_probability) == ("dc ba!", -1, -2)
    assert second.text == "dc ba!!"
    assert second.attention.target == pieces("dc ba!!")


def test_given_translations_are_looked_at_as_they_are():
    (found,) = look(Fake(), ["", "ab cd"], ["", "x"])
    (only,) = found.alternatives
    assert (only.text, only.score, only.tokens) == ("x", None, 2)
    assert only.log_probability == pytest.approx(-1.0)
    assert only.attention.source == pieces("ab cd")


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([], None, "no sentence"),
        ([" ", ""], None, "no sentence"),
        (["a"] * 51, None, "51 sentences are too many.* at most 50"),
        (["a", "b c d e f g"], None, "the sentence of line 2 has 7 pieces.* than 6"),
        (["", "a"], ["", "b c d e f g"], "the translation of line 2 has 7 pieces"),
    ],
)
def test_what_cannot_be_looked_at_is_said(sources, targets, message):
    with pytest.raises(InputError, match=message):
        look(Fake(), sources, targets)
