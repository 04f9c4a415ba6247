"""Where heads look, as two charts: lines between two rows of pieces, and heat maps.

The lines are those of the paper's Figures 3-5: a colour for each head, and the stronger
the darker. Used by `jaxformer.reports.attention`, whose page puts other weights into
the same charts.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.reports.page import COLOURS, alt

KINDS = {  # who looks, and at what
    "encoder": ("sentence", "sentence"),
    "decoder": ("translation", "translation so far"),
    "cross": ("translation", "sentence"),
}
VIEWS = ("lines", "heat_map")
START, END = "<start>", "<end>"
LEAST = 0.01  # no line is drawn for a weight below

_LETTER = 6.8  # pixels, of a letter of size 12 among others
_LABELS = 9  # pixels of a cell of a heat map, from which its pieces can be read
# What the charts take as parameters, so that a page can set them anew.
_ASIDE = "apart * (indexof(heads, datum.head) - (length(heads) - 1) / 2)"
_SELECTED = "(side == '' || at == (side == 'query' ? datum.query : datum.key))"


class Looks(NamedTuple):
    """One of the three attentions of a layer, in words that can be read."""

    queries: list[str]  # Q pieces that look
    keys: list[str]  # K pieces that are looked at
    weights: np.ndarray  # f32 [H, Q, K]


def legible(pieces: Sequence[str]) -> list[str]:
    """Pieces without SentencePiece's mark; one that goes on with a word has a dot.

    The last piece, the end of the sentence, becomes <end>.
    """
    shown = []
    for piece in pieces[:-1]:
        text = piece.replace("\u2581", " ").strip() or "\u2423"
        goes_on = shown and not piece.startswith("\u2581")
        # Scripts from Thai on write no spaces: there nothing is to be told apart.
        dotted = goes_on and text[0].isalnum() and text[0] < "\u0e00"
        shown.append(f"\u00b7{text}" if dotted else text)
    return [*shown, END]


def looks_of(attention: Attention, kind: str, layer: int) -> Looks:
    """One of the three attentions in one layer, which counts from 1.

    A row of the decoder's is named by the piece that it predicts, and its columns by
    what it has seen before: the start, and the pieces up to then.
    """
    source, target = legible(attention.source), legible(attention.target)
    queries, keys = {
        "encoder": (source, source),
        "decoder": (target, [START, *target[:-1]]),
        "cross": (target, source),
    }[kind]
    return Looks(queries, keys, np.asarray(getattr(attention, kind)[layer - 1]))


def head_colours(heads: int) -> list[str]:
    """A colour for each of so many heads; from the ninth on paler, then again."""

    def paler(colour: str) -> str:
        parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return "#" + "".join(f"{(part + 200) // 2:02x}" for part in parts)

    both = [*COLOURS, *map(paler, COLOURS)]
    return [both[head % len(both)] for head in range(heads)]


def rows_of(
    looks: Looks, heads: Sequence[int], least: float = 0.0
) -> list[dict[str, Any]]:
    """Weights above 0, and not below `least`, as a chart's data; heads count from 1."""
    rows = []
    for head in heads:
        weights = looks.weights[head - 1]
        for query, key in np.argwhere(weights >= max(least, 0.0005)).tolist():
            weight = round(float(weights[query, key]), 3)
            rows.append({"head": head, "query": query, "key": key, "weight": weight})
    return rows


def lines_chart(
    looks: Looks, heads: Sequence[int], *, title: Any = None, legend: bool = True
) -> Any:
    """Draw lines from the pieces that look, above, to those looked at, below.

    Returns an Altair chart; `heads` count from 1. A line is as opaque as its weight;
    those of several heads lie side by side.
    """
    columns = max(len(looks.queries), len(looks.keys))
    above, below = (_depth(side) for side in (looks.queries, looks.keys))
    between = 220 if columns > 20 else 160
    data = alt.InlineData(values=rows_of(looks, heads, LEAST), name="weights")
    tokens = alt.InlineData(
        values=[
            {"side": side, "place": place, "text": text}
            for side, pieces in (("query", looks.queries), ("key", looks.keys))
            for place, text in enumerate(pieces)
        ],
        name="tokens",
    )
    scale = alt.Scale(
        domainMin=-0.5, domainMax=alt.ExprRef("columns - 0.5"), nice=False, zero=False
    )
    upper, lower = alt.ExprRef("above"), alt.ExprRef("above + between")
    lines = (
        alt.Chart(data)
        .mark_rule(strokeWidth=2, strokeCap="round", clip=True)
        .encode(
            x=alt.X("begin:Q", scale=scale, axis=None),
            x2="end:Q",
            y=alt.value(upper),
            y2=alt.value(lower),
            color=_colour(looks, heads, legend=legend and len(heads) > 1),
            opacity=alt.Opacity(
                "weight:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
            ),
        )
        .transform_filter(_SELECTED)
        .transform_calculate(begin=f"datum.query + {_ASIDE}")
        .transform_calculate(end=f"datum.key + {_ASIDE}")
    )
    places = alt.Chart(tokens).transform_calculate(
        left="datum.place - 0.5",
        right="datum.place + 0.5",
        top="datum.side == 'query' ? 0 : above + between + 3",
        bottom="datum.side == 'query' ? above - 3 : above + between + below",
        edge="datum.side == 'query' ? above - 7 : above + between + 7",
    )
    pixels = alt.Y(scale=None, axis=None)
    touched = "side == datum.side && at == datum.place"
    boxes = places.mark_rect(cornerRadius=3, fill="#8a8378").encode(
        x=alt.X("left:Q", scale=scale, axis=None),
        x2="right:Q",
        y=pixels.field("top").type("quantitative"),
        y2="bottom:Q",
        fillOpacity=alt.condition(touched, alt.value(0.35), alt.value(0)),
    )
    texts = {
        side: places.transform_filter(f"datum.side == '{side}'")
        .mark_text(angle=270, align=align, baseline="middle", fontSize=12)
        .encode(
            x=alt.X("place:Q", scale=scale, axis=None),
            y=pixels.field("edge").type("quantitative"),
            text="text:N",
        )
        for side, align in (("query", "left"), ("key", "right"))
    }
    chart = alt.layer(boxes, lines, *texts.values())
    step = _step(640, columns, 16, 44)
    return _finish(
        chart.properties(
            width=columns * step,
            height=above + between + below,
            view=alt.ViewConfig(stroke=None),
        ),
        title,
        columns=columns,
        above=above,
        below=below,
        between=between,
        heads=list(heads),
        apart=min(3 / step, 0.8 / len(heads)),
    )


def heat_map(looks: Looks, heads: Sequence[int], *, title: Any = None) -> Any:
    """Draw a heat map, or one for each of several heads: rows look at columns.

    Returns an Altair chart; `heads` count from 1. A cell is as opaque as its weight. In
    several of more than 25 pieces these are too small to be named.
    """
    rows, columns = len(looks.queries), len(looks.keys)
    several = len(heads) > 1
    step = _step(*((240, columns, 4, 24) if several else (640, columns, 12, 34)))
    data = alt.InlineData(values=rows_of(looks, heads), name="weights")
    named = {
        "title": None,
        "grid": False,
        "ticks": False,
        "domain": False,
        "labelOverlap": False,
        "labelPadding": 4,
        "labels": step >= _LABELS,
        "labelFontSize": min(12, step),
    }
    cells = (
        alt.Chart(data)
        .transform_calculate(
            left="datum.key - 0.5",
            right="datum.key + 0.5",
            top="datum.query - 0.5",
            bottom="datum.query + 0.5",
            Looks="queries[datum.query]",
            At="keys[datum.key]",
        )
        .mark_rect()
        .encode(
            x=alt.X(
                "left:Q",
                scale=alt.Scale(
                    domainMin=-0.5,
                    domainMax=alt.ExprRef("columns - 0.5"),
                    nice=False,
                    zero=False,
                ),
                axis=alt.Axis(
                    values=alt.ExprRef("sequence(columns)"),
                    labelExpr="keys[datum.value]",
                    labelAngle=-90,
                    orient="top",
                    **named,
                ),
            ),
            x2="right:Q",
            y=alt.Y(
                "top:Q",
                scale=alt.Scale(
                    domainMin=-0.5,
                    domainMax=alt.ExprRef("rows - 0.5"),
                    reverse=True,
                    nice=False,
                    zero=False,
                ),
                axis=alt.Axis(
                    values=alt.ExprRef("sequence(rows)"),
                    labelExpr="queries[datum.value]",
                    **named,
                ),
            ),
            y2="bottom:Q",
            color=_colour(looks, heads, legend=False),
            opacity=alt.Opacity(
                "shown:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
            ),
            tooltip=[
                "head:N", "Looks:N", "At:N", alt.Tooltip("weight:Q", format=".0%"),
            ],
        )
        .transform_calculate(shown=f"{_SELECTED} ? datum.weight : datum.weight / 6")
        .properties(
            width=columns * step,
            height=rows * step,
            view=alt.ViewConfig(stroke="#8a8378", strokeOpacity=0.6),
        )
    )  # fmt: skip
    if several:
        cells = cells.facet(
            alt.Facet(
                "head:N",
                header=alt.Header(title=None, labelExpr="'head ' + datum.value"),
            ),
            columns=math.ceil(len(heads) / math.ceil(len(heads) / 4)),
            spacing=14,
        ).resolve_axis(x="independent", y="independent")
    return _finish(
        cells, title, queries=looks.queries, keys=looks.keys, columns=columns, rows=rows
    )


def _finish(chart: Any, title: str, **values: Any) -> Any:
    """Give a chart its parameters: its measures, and no piece that is pointed at."""
    given = {"side": "", "at": -1, **values}
    chart = chart.add_params(
        *(alt.param(name=name, value=value) for name, value in given.items())
    )
    return chart if title is None else chart.properties(title=title)


def _colour(looks: Looks, heads: Sequence[int], *, legend: bool) -> Any:
    count = len(looks.weights)
    shown = alt.Legend(
        title="head",
        titleOrient="left",
        orient="top",
        values=list(heads),
        symbolType="stroke",
        symbolStrokeWidth=3,
        symbolOpacity=1,
    )
    return alt.Color(
        "head:N",
        scale=alt.Scale(domain=list(range(1, count + 1)), range=head_colours(count)),
        legend=shown if legend else None,
    )


def _step(wanted: float, pieces: int, least: float, most: float) -> float:
    """Pixels for each of so many pieces, which together should take `wanted`."""
    return min(max(wanted / pieces, least), most)


def _depth(pieces: Sequence[str]) -> float:
    """Pixels that turned pieces take, ends included."""
    return 14 + _LETTER * max(map(len, pieces))
