"""Two charts of attention: lines between two rows of pieces, and heat maps.

The lines are those of the paper's Figures 3-5: one colour for each head, opacity by
weight. Sentence and weights are data and parameters of the chart, which the page of
`jaxformer.reports.attention` replaces.
"""

import math
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from jaxformer.reports.attention_data import Matrix, chart_rows
from jaxformer.reports.page import COLOURS, alt

MIN_WEIGHT = 0.01  # of a line that is drawn

_LETTER = 6.8  # pixels: average width of a letter of size 12
_LEGIBLE = 9  # pixels: the smallest cell of a heat map whose rows have names
_GREY = "#8a8378"
# `side` and `at` are the piece that is pointed at: "" and -1 for none.
_SELECTED = "(side == '' || at == (side == 'query' ? datum.query : datum.key))"


def head_colours(heads: int) -> list[str]:
    """Return a colour for each head; they repeat if there are too few."""
    return list(islice(cycle(COLOURS), heads))


def lines_chart(matrix: Matrix, heads: Sequence[int]) -> alt.LayerChart:
    """Draw lines from the queries, above, to the keys, below; heads count from 1.

    Lines of several heads lie side by side. Both rows of pieces have the same width.
    """
    columns = max(len(matrix.queries), len(matrix.keys))
    above, below = (14 + _LETTER * max(map(len, side)) for side in matrix[:2])
    between = 220 if columns > 20 else 160
    offset = (
        "min(3, 0.8 * width / max(length(queries), length(keys)) / length(heads))"
        " * (indexof(heads, datum.head) - (length(heads) - 1) / 2)"
    )
    weights = alt.InlineData(chart_rows(matrix, heads, MIN_WEIGHT), name="weights")
    lines = alt.Chart(weights).mark_rule(strokeWidth=2, strokeCap="round")
    lines = lines.transform_filter(_SELECTED).encode(
        x=_pixels(f"width * (datum.query + 0.5) / length(queries) + {offset}"),
        x2=_pixels(f"width * (datum.key + 0.5) / length(keys) + {offset}"),
        y=_pixels("above"),
        y2=_pixels("above + between"),
        color=_colour(matrix, heads, legend=len(heads) > 1),
        opacity=_opacity("weight"),
    )
    boxes, names = _pieces(matrix)
    chart = alt.layer(boxes, lines, names).properties(
        width=columns * min(max(640 / columns, 16), 44),
        height=above + between + below,
        view=alt.ViewConfig(stroke=None),
    )
    sizes = {"above": above, "between": between, "below": below, "heads": list(heads)}
    return _with_params(chart, matrix, **sizes)


def _pieces(matrix: Matrix) -> tuple[alt.Chart, alt.Chart]:
    """Return the boxes of both rows, shaded when pointed at, and their texts."""
    tokens = [
        {"side": side, "index": index, "text": text}
        for side, pieces in (("query", matrix.queries), ("key", matrix.keys))
        for index, text in enumerate(pieces)
    ]

    def by_side(query: str, key: str) -> str:
        return f"(datum.side == 'query' ? {query} : {key})"

    count = by_side("length(queries)", "length(keys)")
    touched = "side == datum.side && at == datum.index"
    chart = alt.Chart(alt.InlineData(tokens, name="tokens"))
    boxes = chart.mark_rect(cornerRadius=3, fill=_GREY).encode(
        x=_pixels(f"width * datum.index / {count}"),
        x2=_pixels(f"width * (datum.index + 1) / {count}"),
        y=_pixels(by_side("0", "above + between + 3")),
        y2=_pixels(by_side("above - 3", "above + between + below")),
        fillOpacity=alt.condition(touched, alt.value(0.35), alt.value(0)),
    )
    align = alt.ExprRef(by_side("'left'", "'right'"))
    texts = chart.mark_text(angle=270, align=align, baseline="middle", fontSize=12)
    return boxes, texts.encode(
        x=_pixels(f"width * (datum.index + 0.5) / {count}"),
        y=_pixels(by_side("above - 7", "above + between + 7")),
        text="text:N",
    )


def heat_map(matrix: Matrix, heads: Sequence[int]) -> alt.Chart | alt.FacetChart:
    """Draw a heat map for each head: rows are queries; heads count from 1.

    A cell is as opaque as its weight. Small cells, of several heads with more than 25
    pieces, have no names.
    """
    several = len(heads) > 1
    width, least, most = (240, 4, 24) if several else (640, 12, 34)
    step = min(max(width / len(matrix.keys), least), most)
    weights = alt.InlineData(chart_rows(matrix, heads), name="weights")
    weight = alt.Tooltip("weight:Q", format=".0%")
    chart = alt.Chart(weights, width=alt.Step(step), height=alt.Step(step)).mark_rect()
    chart = chart.transform_calculate(
        Query="queries[datum.query]",
        Key="keys[datum.key]",
        shown=f"{_SELECTED} ? datum.weight : datum.weight / 6",
    ).encode(
        x=_pieces_axis(alt.X, "key", "keys", len(matrix.keys), step),
        y=_pieces_axis(alt.Y, "query", "queries", len(matrix.queries), step),
        color=_colour(matrix, heads, legend=False),
        opacity=_opacity("shown"),
        tooltip=["head:N", "Query:N", "Key:N", weight],
    )
    chart.view = alt.ViewConfig(stroke=_GREY, strokeOpacity=0.6)
    if several:
        header = alt.Header(title=None, labelExpr="'head ' + datum.value")
        columns = math.ceil(len(heads) / math.ceil(len(heads) / 4))
        facet = alt.Facet("head:N", header=header)
        chart = chart.facet(facet, columns=columns, spacing=14)
        chart = chart.resolve_axis(x="independent", y="independent")
    return _with_params(chart, matrix)


def _pieces_axis(channel: Any, field: str, names: str, count: int, step: float) -> Any:
    """Return an axis with a cell a piece, named by the chart's parameter `names`."""
    sides = {"labelAngle": -90, "orient": "top"} if channel is alt.X else {}
    labels = {"labels": step >= _LEGIBLE, "labelFontSize": min(12, step)}
    labels |= {"labelExpr": f"{names}[datum.value]", "labelOverlap": False}
    axis = alt.Axis(ticks=False, domain=False, labelPadding=4, **labels, **sides)
    scale = alt.Scale(domain=list(range(count)), padding=0)
    return channel(f"{field}:O", title=None, scale=scale, axis=axis)


def _with_params(chart: Any, matrix: Matrix, **values: Any) -> Any:
    values = {"side": "", "at": -1} | matrix._asdict() | values
    del values["weights"]
    return chart.add_params(*(alt.param(name=k, value=v) for k, v in values.items()))


def _pixels(expression: str) -> Any:
    """Return a position in pixels, computed for each datum."""
    return alt.value(alt.ExprRef(expression))


def _opacity(field: str) -> alt.Opacity:
    scale = alt.Scale(domain=[0, 1], range=[0, 1])
    return alt.Opacity(f"{field}:Q", scale=scale, legend=None)


def _colour(matrix: Matrix, heads: Sequence[int], *, legend: bool) -> alt.Color:
    """Return the colour of each head, the same whichever heads are shown."""
    every = range(1, len(matrix.weights) + 1)
    symbol = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}
    layout = {"title": "head", "titleOrient": "left", "orient": "top"}
    return alt.Color(
        "head:N",
        scale=alt.Scale(domain=list(every), range=head_colours(len(every))),
        legend=alt.Legend(values=list(heads), **layout, **symbol) if legend else None,
    )
