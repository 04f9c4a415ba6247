"""Two charts of attention: lines between two rows of pieces, and heat maps.

The lines are those of the paper's Figures 3-5: one colour for each head, opacity by
weight. The charts are Vega-Lite specifications in `pages/attention_charts.json`, to
which this module adds data and sizes; so does the page's script, for its window.
"""

import copy
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from itertools import cycle, islice

from jaxformer.reports.attention_data import AttentionMatrix
from jaxformer.reports.page import COLOURS, Json, alt

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
MIN_WEIGHT = 0.01  # of a line that is drawn
SPECIFICATIONS = json.loads(
    files(__package__).joinpath("pages/attention_charts.json").read_text("utf-8")
)
SPECIFICATIONS["heat_maps"]["spec"] = SPECIFICATIONS["heat_map"]  # of several heads

_LETTER = 6.8  # pixels: average width of a letter of size 12
_LEGIBLE = 9  # pixels: the smallest cell of a heat map whose rows have names


def head_colours(heads: int) -> list[str]:
    """Return a colour for each head; they repeat if there are too few."""
    return list(islice(cycle(COLOURS), heads))


def chart_rows(
    matrix: AttentionMatrix, heads: Sequence[int], minimum: float = 0.0005
) -> list[Json]:
    """Return the weights of at least `minimum` as a chart's data."""
    return [
        {"head": head, "query": query, "key": key, "weight": round(weight, 3)}
        for head in heads
        for query, weights in enumerate(matrix.weights[head - 1].tolist())
        for key, weight in enumerate(weights)
        if weight >= minimum
    ]


def lines_chart(matrix: AttentionMatrix, heads: Sequence[int]) -> Chart:
    """Draw lines from the queries, above, to the keys, below; heads count from 1.

    Lines of several heads lie side by side. Both rows of pieces have the same width.
    """
    columns = max(len(matrix.queries), len(matrix.keys))
    above, below = (14 + _LETTER * max(map(len, side)) for side in matrix[:2])
    between = 220 if columns > 20 else 160
    spec = copy.deepcopy(SPECIFICATIONS["lines"])
    spec["width"] = columns * min(max(640 / columns, 16), 44)
    spec["height"] = above + between + below
    colour = spec["layer"][1]["encoding"]["color"]
    if len(heads) > 1:
        symbol = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}
        layout = {"title": "head", "titleOrient": "left", "orient": "top"}
        colour["legend"] = {"values": list(heads), **layout, **symbol}
    tokens = [
        {"side": side, "index": index, "text": text, "count": len(pieces)}
        for side, pieces in (("query", matrix.queries), ("key", matrix.keys))
        for index, text in enumerate(pieces)
    ]
    data = {"weights": chart_rows(matrix, heads, MIN_WEIGHT), "tokens": tokens}
    sizes = {"above": above, "between": between, "below": below, "heads": list(heads)}
    return _fill(spec, colour, matrix, data, **sizes)


def heat_map(matrix: AttentionMatrix, heads: Sequence[int]) -> Chart:
    """Draw a heat map for each head: rows are queries; heads count from 1.

    A cell is as opaque as its weight. Small cells, of several heads with more than 26
    pieces, have no names.
    """
    several = len(heads) > 1
    width, least, most = (240, 4, 24) if several else (640, 12, 34)
    step = min(max(width / len(matrix.keys), least), most)
    spec = copy.deepcopy(SPECIFICATIONS["heat_maps" if several else "heat_map"])
    if several:
        spec["columns"] = math.ceil(len(heads) / math.ceil(len(heads) / 4))
    cell = spec["spec"] if several else spec
    cell["width"] = cell["height"] = {"step": step}
    for channel, pieces in (("x", matrix.keys), ("y", matrix.queries)):
        each = cell["encoding"][channel]
        each["scale"]["domain"] = list(range(len(pieces)))
        each["axis"] |= {"labels": step >= _LEGIBLE, "labelFontSize": min(12, step)}
    data = {"weights": chart_rows(matrix, heads)}
    return _fill(spec, cell["encoding"]["color"], matrix, data)


def _fill(
    spec: Json, colour: Json, matrix: AttentionMatrix, data: Json, **sizes: object
) -> Chart:
    """Add data, parameters and the colours of all heads, shown or hidden.

    The parameters `side` and `at` are the piece that is pointed at: "" and -1 for none.
    """
    count = len(matrix.weights)
    domain = list(range(1, count + 1))
    colour["scale"] = {"domain": domain, "range": head_colours(count)}
    names = {"queries": matrix.queries, "keys": matrix.keys}
    values = {"side": "", "at": -1, **names, **sizes}
    spec["params"] = [{"name": name, "value": v} for name, v in values.items()]
    spec |= {"data": {"name": "weights"}, "datasets": data}
    return alt.Chart.from_dict(spec)
