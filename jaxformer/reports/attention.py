"""The attention viewer: a page, pictures for papers, and charts in a notebook.

Used by `jaxformer.commands.visualize` and `jaxformer.api`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxformer.reports import attention_charts as charts
from jaxformer.reports import page
from jaxformer.reports.attention_data import KINDS, AttendedSentence, matrix_of
from jaxformer.system.errors import InputError
from jaxformer.system.files import require_output, write_atomically

ENDINGS = (".html", ".png", ".svg", ".pdf")
VIEWS = {  # the chart, and where it has queries and keys
    "lines": (charts.lines_chart, "above", "below"),
    "heat_map": (charts.heat_map, "rows", "columns"),
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

    def lines(self, **choice: object) -> charts.Chart:
        """Draw lines as in the paper's Figures 3-5; returns an Altair chart."""
        return self.chart(**choice, view="lines")

    def heat_map(self, **choice: object) -> charts.Chart:
        """Draw a heat map for each head; returns an Altair chart."""
        return self.chart(**choice, view="heat_map")

    def chart(self, **choice: object) -> charts.Chart:
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
            "min_weight": charts.MIN_WEIGHT,
            "charts": charts.SPECIFICATIONS,
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
