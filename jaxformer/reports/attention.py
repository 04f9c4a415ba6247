"""The attention viewer: a page, pictures for papers, and charts in a notebook.

The lines are those of the paper's Figures 3-5: one colour for each head, opacity by
weight. The charts are Vega-Lite specifications in `pages/attention_charts.json`, to
which this module adds data and sizes; so does the page's script, for its window.
"""

import copy
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jaxformer.reports import page
from jaxformer.reports.attention_data import (
    KINDS,
    AttendedSentence,
    AttentionMatrix,
    matrix_of,
)
from jaxformer.reports.page import COLOURS, Json, alt
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output, write_atomically

ENDINGS = (".html", ".png", ".svg", ".pdf")
Chart = alt.Chart | alt.LayerChart | alt.FacetChart
MIN_WEIGHT = 0.01  # of a line that is drawn
SPECIFICATIONS = json.loads(
    files(__package__).joinpath("pages/attention_charts.json").read_text("utf-8")
)
SPECIFICATIONS["heat_maps"]["spec"] = SPECIFICATIONS["heat_map"]  # of several heads

_LETTER = 6.8  # pixels: average width of a letter of size 12
_LEGIBLE = 9  # pixels: the smallest cell of a heat map whose rows have names


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
    colour["scale"] = {"domain": domain, "range": list(COLOURS)}
    names = {"queries": matrix.queries, "keys": matrix.keys}
    values = {"side": "", "at": -1, **names, **sizes}
    spec["params"] = [{"name": name, "value": v} for name, v in values.items()]
    spec |= {"data": {"name": "weights"}, "datasets": data}
    return alt.Chart.from_dict(spec)


VIEWS = {  # the chart, and where it has queries and keys
    "lines": (lines_chart, "above", "below"),
    "heat_map": (heat_map, "rows", "columns"),
}


class Choice(NamedTuple):
    """The content of a chart, and of a page when it opens; numbers count from 1."""

    view: str = "lines"
    attention: str = "cross"
    layer: int | None = None  # the last
    heads: Sequence[int] | int | None = None  # all
    sentence: int = 1
    alternative: int = 1


class AttentionView:
    """Attention of sentences as charts, pictures and a page; a notebook displays it.

    Methods take choices by keyword: view ("lines" or "heat_map"), attention ("cross",
    "encoder" or "decoder"), layer (the last by default), heads (all by default),
    sentence and alternative. Numbers count from 1. Methods raise InputError for a
    choice that does not exist, such as head 5 of 4.
    """

    def __init__(
        self, viewed: Sequence[AttendedSentence], title: str = "Attention"
    ) -> None:
        self.viewed, self.title = list(viewed), title
        attention = self.viewed[0].alternatives[0].attention
        counts = {kind: len(getattr(attention, kind)) for kind in KINDS}
        self.layers = {kind: count for kind, count in counts.items() if count}
        self.heads = attention.cross.shape[1]

    def lines(self, **choice: object) -> Chart:
        """Draw lines as in the paper's Figures 3-5; returns an Altair chart."""
        return self.chart(**choice, view="lines")

    def heat_map(self, **choice: object) -> Chart:
        """Draw a heat map for each head; returns an Altair chart."""
        return self.chart(**choice, view="heat_map")

    def chart(self, **choice: object) -> Chart:
        """Draw one attention of one pair; returns an Altair chart."""
        chosen = self._complete(Choice(**choice))
        pair = self.viewed[chosen.sentence - 1].alternatives[chosen.alternative - 1]
        matrix = matrix_of(pair.attention, chosen.attention, chosen.layer)
        draw, at_queries, at_keys = VIEWS[chosen.view]
        name, queries, keys = KINDS[chosen.attention].values()
        heads = ", ".join(map(str, chosen.heads))
        title = page.alt.Title(
            f"{name}, layer {chosen.layer} of {self.layers[chosen.attention]}, "
            f"head{'s' * (len(chosen.heads) > 1)} {heads}",
            subtitle=f"{queries} ({at_queries}) attends to {keys} ({at_keys})",
            anchor="start",
            offset=8,
        )
        return draw(matrix, chosen.heads).properties(title=title)

    def save(self, path: str | Path, **choice: object) -> None:
        """Write the page (.html), or a picture of one chart: .png, .svg or .pdf.

        Replaces an existing file. Raises InputError for another ending and a folder
        that is not writable.
        """
        path = Path(path)
        require_output(path, ENDINGS)
        if path.suffix == ".html":
            write_atomically(path, self.html(**choice))
        else:
            write_atomically(path, page.picture(self.chart(**choice), path.suffix[1:]))

    def png(self, *, scale: float = 2, **choice: object) -> bytes:
        """Draw a chart as the bytes of a PNG, for programs that run no script."""
        return page.picture(self.chart(**choice), "png", scale=scale)

    def html(self, **choice: object) -> str:
        """Return the page, which opens with the choice."""
        data = {
            "begin": self._complete(Choice(**choice))._asdict(),
            "heads": self.heads,
            "kinds": {kind: KINDS[kind] for kind in self.layers},
            "layers": self.layers,
            "min_weight": MIN_WEIGHT,
            "charts": SPECIFICATIONS,
            "sentences": [each.packed() for each in self.viewed],
        }
        return page.render("attention.html", data=data, title=self.title)

    def _repr_mimebundle_(self, **wanted: object) -> page.Json:
        return self.lines()._repr_mimebundle_(**wanted)

    def _complete(self, choice: Choice) -> Choice:
        """Fill in layer and heads; check that all choices exist."""
        for name, known in (("attention", self.layers), ("view", VIEWS)):
            value = getattr(choice, name)
            if value not in known:
                raise InputError(f"{name}={value!r} is none of: {', '.join(known)}")
        _require_number("sentence", choice.sentence, len(self.viewed))
        alternatives = self.viewed[choice.sentence - 1].alternatives
        _require_number("alternative", choice.alternative, len(alternatives))
        layers = self.layers[choice.attention]
        layer = layers if choice.layer is None else choice.layer
        _require_number("layer", layer, layers)
        heads = range(1, self.heads + 1) if choice.heads is None else choice.heads
        heads = sorted({heads} if isinstance(heads, int) else {*heads})
        if not heads:
            raise InputError("heads is empty; choose at least one, or leave it out")
        for head in heads:
            _require_number("head", head, self.heads)
        return choice._replace(layer=layer, heads=heads)


def _require_number(name: str, number: int, count: int) -> None:
    if not 1 <= number <= count:
        raise InputError(f"there is no {name} {number}: choose from 1 to {count}")
