"""Where each head looks, for sentences and the candidates of their search: to be seen.

One page with everything in it, pictures for papers, and charts in a notebook. Used by
`jaxformer.modes.visualize` and `jaxformer.api`.
"""

import base64
import difflib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.decoding.forced import Attention
from jaxformer.decoding.translate import Translator
from jaxformer.errors import InputError
from jaxformer.reports import page
from jaxformer.reports.attention_charts import (
    END,
    KINDS,
    LEAST,
    START,
    VIEWS,
    Looks,
    head_colours,
    heat_map,
    legible,
    lines_chart,
    looks_of,
)

MOST_SENTENCES = 50  # of a page; each has the attention of all its candidates
LEVELS = 255  # a page has weights as bytes: this many stand for 1
PICTURES = (".png", ".svg", ".pdf")


class Alternative(NamedTuple):
    """A translation, what the model thinks of it, and where it looks."""

    text: str
    score: float | None  # log P / length penalty; None if it was given, not found
    log_probability: float  # natural logarithm, of the text and its end
    tokens: int  # pieces, end of sentence included
    attention: Attention


class Viewed(NamedTuple):
    """A sentence and its translations, the best first."""

    source: str
    alternatives: list[Alternative]


def look(
    translator: Translator, sources: Sequence[str], targets: Sequence[str] | None = None
) -> list[Viewed]:
    """Translate sentences, or take their given translations, and look at all of them.

    A translation's attention is that of its text, cut into pieces anew. Blank sentences
    are left out. Raises InputError if none is left, if there are too many for a page,
    and for one that is longer than the translator takes.
    """
    pairs = [
        (line, source, None if targets is None else targets[line - 1])
        for line, source in enumerate(sources, start=1)
        if source.strip()
    ]
    if not pairs:
        raise InputError("there is no sentence to look at; give at least one")
    if len(pairs) > MOST_SENTENCES:
        raise InputError(
            f"{len(pairs)} sentences are too many to look at: give at most "
            f"{MOST_SENTENCES}, such as the output of head -n {MOST_SENTENCES}"
        )
    lines, chosen, given = zip(*pairs, strict=True)
    _require_short(translator, translator.tokenizer.encode(chosen), lines, "sentence")
    if targets is None:
        found = translator.translate(chosen)
        return [
            Viewed(
                source,
                [
                    Alternative(*each, translator.attention(source, each.text))
                    for each in hypotheses
                ],
            )
            for source, hypotheses in zip(chosen, found, strict=True)
        ]
    ids = translator.tokenizer.encode_target(given)
    _require_short(translator, ids, lines, "translation")
    return [
        Viewed(
            source,
            [
                Alternative(
                    target,
                    None,
                    forced.log_probability,
                    len(forced.pieces),
                    translator.attention(source, target),
                )
            ],
        )
        for source, target, forced in zip(
            chosen, given, translator.score(chosen, given), strict=True
        )
    ]


def _require_short(
    translator: Translator,
    ids: Sequence[Sequence[int]],
    lines: Sequence[int],
    side: str,
) -> None:
    """Raise InputError for what is longer than the translator takes."""
    longest = translator.longest
    for line, sequence in zip(lines, ids, strict=True):
        if longest is not None and len(sequence) > longest:
            raise InputError(
                f"the {side} of line {line} has {len(sequence)} pieces, end included, "
                f"more than {longest}; shorten it, or set max_source_length"
            )


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

    def chart(
        self,
        *,
        view: str = "lines",
        attention: str = "cross",
        layer: int | None = None,
        heads: Sequence[int] | int | None = None,
        sentence: int = 1,
        alternative: int = 1,
    ) -> Any:
        """Draw one attention of one pair as an Altair chart.

        Raises InputError for what there is not, such as head 5 of 4.
        """
        layer, heads = self._choose(
            view, attention, layer, heads, sentence, alternative
        )
        chosen = self.viewed[sentence - 1].alternatives[alternative - 1]
        looks = looks_of(chosen.attention, attention, layer)
        draw = lines_chart if view == "lines" else heat_map
        return draw(looks, heads, title=self._title(view, attention, layer, heads))

    def _choose(
        self,
        view: str,
        attention: str,
        layer: int | None,
        heads: Sequence[int] | int | None,
        sentence: int,
        alternative: int,
    ) -> tuple[int, list[int]]:
        """The layer and the heads meant. Raises InputError for what there is not."""
        for name, value, known in (
            ("attention", attention, KINDS),
            ("view", view, VIEWS),
        ):
            if value not in known:
                raise InputError(f"{name}={value!r} is none of: {', '.join(known)}")
        _require_one_of(sentence, len(self.viewed), "sentence")
        count = len(self.viewed[sentence - 1].alternatives)
        _require_one_of(alternative, count, "alternative")
        return choose(self.layers, self.heads, layer, heads)

    def _title(self, view: str, attention: str, layer: int, heads: list[int]) -> Any:
        looks, seen = KINDS[attention]
        where = ("above", "below") if view == "lines" else ("rows", "columns")
        which = f"head {heads[0]}" if len(heads) == 1 else f"{len(heads)} heads"
        return page.alt.TitleParams(
            f"{NAMES[attention]}, layer {layer} of {self.layers}, {which}",
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

    def html(
        self,
        *,
        view: str = "lines",
        attention: str = "cross",
        layer: int | None = None,
        heads: Sequence[int] | int | None = None,
        sentence: int = 1,
        alternative: int = 1,
    ) -> str:
        """The page, which begins with what is chosen here."""
        layer, heads = self._choose(
            view, attention, layer, heads, sentence, alternative
        )
        begin = {
            "view": view,
            "attention": attention,
            "layer": layer,
            "heads": heads,
            "sentence": sentence,
            "alternative": alternative,
        }
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


def pack(weights: np.ndarray) -> str:
    """Weights between 0 and 1 as bytes, each 1/255 or a multiple, small, as text."""
    levels = np.rint(np.asarray(weights, np.float64) * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


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


def changes(best: str, other: str) -> list[tuple[str, str]]:
    """Cut a translation into words that the best one has, too, and those it has not.

    Each part is "same", "new" or, for words of the best one alone, "gone".
    """
    a, b = best.split(), other.split()
    parts = []
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "delete":
            parts.append(("gone", " ".join(a[a0:a1])))
        else:
            same = "same" if kind == "equal" else "new"
            parts.append((same, " ".join(b[b0:b1])))
    return parts
