"""Where each head looks, for sentences and the candidates of their search: to be seen.

One page with everything in it, pictures for papers, and charts in a notebook. Used by
`jaxformer.commands.visualize` and `jaxformer.api`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import InputError
from jaxformer.reports import page
from jaxformer.reports.attention_charts import (
    LEAST,
    VIEWS,
    head_colours,
    heat_map,
    lines_chart,
)
from jaxformer.reports.attention_data import (
    END,
    KINDS,
    LEVELS,
    START,
    Alternative,
    Looks,
    Viewed,
    changes,
    legible,
    looks_of,
    pack,
)

PICTURES = (".png", ".svg", ".pdf")


class Choice(NamedTuple):
    """What of the looked-at is shown; all but `view` and `attention` from 1."""

    view: str
    attention: str
    layer: int
    heads: list[int]
    sentence: int
    alternative: int


class AttentionView:
    """Looked-at sentences, as charts, pictures and a page; shows itself in a notebook.

    Sentences, candidates, layers and heads count from 1. `attention` is "cross",
    "encoder" or "decoder"; without a layer it is the last, without heads all of them.
    """

    def __init__(self, viewed: Sequence[Viewed], title: str = "Attention") -> None:
        self.viewed, self.title = list(viewed), title
        self.layers, self.heads = self._first.attention.cross.shape[:2]

    @property
    def _first(self) -> Alternative:
        return self.viewed[0].alternatives[0]

    def lines(self, **choice: Any) -> Any:
        """The paper's Figures 3-5 as an Altair chart; choices as `chart` takes them."""
        return self.chart(view="lines", **choice)

    def heat_map(self, **choice: Any) -> Any:
        """A heat map for each head as an Altair chart; choices as of `chart`."""
        return self.chart(view="heat_map", **choice)

    def chart(self, **choice: Any) -> Any:
        """Draw one attention of one pair as an Altair chart.

        Choices are view ("lines" or "heat_map"), attention, layer, heads, sentence and
        alternative. Raises InputError for what there is not, such as head 5 of 4.
        """
        chosen = self._choose(**choice)
        pair = self.viewed[chosen.sentence - 1].alternatives[chosen.alternative - 1]
        looks = looks_of(pair.attention, chosen.attention, chosen.layer)
        draw = lines_chart if chosen.view == "lines" else heat_map
        return draw(looks, chosen.heads, title=self._title(chosen))

    def _choose(
        self,
        *,
        view: str = "lines",
        attention: str = "cross",
        layer: int | None = None,
        heads: Sequence[int] | int | None = None,
        sentence: int = 1,
        alternative: int = 1,
    ) -> Choice:
        """Complete a choice. Raises InputError for what there is not."""
        for name, value, known in (
            ("attention", attention, KINDS),
            ("view", view, VIEWS),
        ):
            if value not in known:
                raise InputError(f"{name}={value!r} is none of: {', '.join(known)}")
        _require_one_of(sentence, len(self.viewed), "sentence")
        count = len(self.viewed[sentence - 1].alternatives)
        _require_one_of(alternative, count, "alternative")
        layer, heads = choose(self.layers, self.heads, layer, heads)
        return Choice(view, attention, layer, heads, sentence, alternative)

    def _title(self, chosen: Choice) -> Any:
        looks, seen = KINDS[chosen.attention]
        where = ("above", "below") if chosen.view == "lines" else ("rows", "columns")
        numbers = ", ".join(map(str, chosen.heads))
        which = f"head{'s' * (len(chosen.heads) > 1)} {numbers}"
        if len(chosen.heads) == self.heads > 1:
            which = f"all {self.heads} heads"
        return page.alt.TitleParams(
            f"{NAMES[chosen.attention]}, layer {chosen.layer} of {self.layers}, "
            f"{which}",
            subtitle=f"{looks} ({where[0]}) looks at {seen} ({where[1]})",
            anchor="start",
            fontSize=13,
            subtitleFontSize=11,
            offset=8,
        )

    def save(self, path: str | Path, **choice: Any) -> None:
        """Write the page (.html), or a picture: .png, .svg or .pdf of one chart.

        Choices are those of `chart`; the page begins with them. What is there already
        is written over. Raises InputError for another ending, and if the file cannot be
        written.
        """
        path = Path(path)
        if path.suffix == ".html":
            page.write(path, self.html(**choice))
        else:
            require_ending(path)
            page.save_picture(self.chart(**choice), path)

    def png(self, *, scale: float = 2, **choice: Any) -> bytes:
        """A chart as the bytes of a PNG, for what runs no script."""
        return page.picture(self.chart(**choice), "png", scale=scale)

    def html(self, **choice: Any) -> str:
        """The page, which begins with what is chosen; choices as of `chart`."""
        begin = self._choose(**choice)._asdict()
        return page.render(
            "attention.html", data=self._page_data(begin), title=self.title
        )

    def _page_data(self, begin: dict[str, Any]) -> dict[str, Any]:
        nothing = Looks([START, END], [START, END], np.zeros((self.heads, 2, 2)))
        everyone = list(range(1, self.heads + 1))
        charts = {
            "lines": lines_chart(nothing, everyone, legend=False),
            "heat_map": heat_map(nothing, [1]),
            "heat_maps": heat_map(nothing, [1, 1]),  # of several heads
        }
        return {
            "begin": begin,
            "layers": self.layers,
            "heads": self.heads,
            "colours": head_colours(self.heads),
            "kinds": {
                kind: {"name": NAMES[kind], "looks": looks, "seen": seen}
                for kind, (looks, seen) in KINDS.items()
            },
            "levels": LEVELS,
            "least": LEAST,
            "start": START,
            "charts": {name: chart.to_dict() for name, chart in charts.items()},
            "sentences": [_sentence_data(each) for each in self.viewed],
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """What a notebook shows: the lines of the first pair, as Altair shows them."""
        return self.lines()._repr_mimebundle_(include, exclude)


NAMES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}


def choose(
    layers: int, count: int, layer: int | None, heads: Sequence[int] | int | None
) -> tuple[int, list[int]]:
    """The layer and the heads meant of so many. Raises InputError if they are not."""
    layer = layers if layer is None else layer
    _require_one_of(layer, layers, "layer")
    if heads is None:
        return layer, list(range(1, count + 1))
    heads = sorted({heads} if isinstance(heads, int) else set(heads))
    if not heads:
        raise InputError("heads names none; choose at least one, or leave it out")
    for head in heads:
        _require_one_of(head, count, "head")
    return layer, heads


def require_ending(path: Path) -> None:
    """Raise InputError unless a file of that name can be a page or a picture."""
    if path.suffix not in (".html", *PICTURES):
        raise InputError(
            f"{path} is not called .html, .png, .svg or .pdf: choose one of them"
        )


def _require_one_of(number: int, count: int, what: str) -> None:
    if not 1 <= number <= count:
        raise InputError(f"there is no {what} {number}: choose from 1 to {count}")


def _sentence_data(viewed: Viewed) -> dict[str, Any]:
    best = viewed.alternatives[0]
    return {
        "text": viewed.source,
        "pieces": legible(best.attention.source),
        "encoder": pack(best.attention.encoder),
        "alternatives": [
            {
                "parts": changes(best.text, each.text),
                "score": each.score,
                "log_probability": each.log_probability,
                "tokens": each.tokens,
                "pieces": legible(each.attention.target),
                "decoder": pack(each.attention.decoder),
                "cross": pack(each.attention.cross),
            }
            for each in viewed.alternatives
        ],
    }
