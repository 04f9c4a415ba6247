"""The corpus report of --mode=check as a page: lengths as charts, the rest as tables.

It is given what was found, and the words for it; it looks at no text itself.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from jaxformer.reports.page import COLOURS, render

SIDES = ("source", "target")


def make_corpus_page(
    corpus: dict[str, Any],
    *,
    title: str,
    things: Sequence[str],
    sections: dict[str, str],
) -> str:
    """The HTML of what `inspect_corpus` found.

    `things` are what to look at, a sentence each; `sections` are the further sections
    by name, as text of a terminal.
    """
    charts = {}
    for name, split in corpus["splits"].items():
        for unit in ("words", "pieces"):
            charts[f"{name}-{unit}"] = _draw_lengths(split, unit)
        charts[f"{name}-ratio"] = _draw_ratios(split)
    return render(
        "corpus.html",
        charts=charts,
        title=title,
        things=things,
        splits=corpus["splits"],
        left_out=list(dict.fromkeys(corpus["left_out"].values())),
        sections=sections,
    )


def _draw_lengths(split: dict[str, Any], unit: str) -> alt.Chart:
    """How many sentences of either side have which length, none included."""
    counts = {side: split[side]["lengths"][unit] for side in SIDES}
    rows = [
        {"side": side, "length": length, "sentences": counts[side].get(length, 0)}
        for side in SIDES
        for length in range(max(counts[side]) + 2)
    ]
    return (
        alt.Chart(alt.Data(values=rows), title=f"{unit} a sentence")
        .mark_area(interpolate="step", opacity=0.35, line=True)
        .encode(
            x=alt.X("length:Q", title=unit),
            y=alt.Y("sentences:Q", title="sentences", stack=None),
            color=_by_side(),
            tooltip=["side:N", "length:Q", "sentences:Q"],
        )
        .properties(width=330, height=190)
    )


def _draw_ratios(split: dict[str, Any]) -> alt.Chart:
    """How many pairs have how many target pieces for a source piece."""
    rows = [
        {"ratio": round(2**power, 2), "pairs": count}
        for power, count in split["ratio"]["histogram_log2"].items()
    ]
    return (
        alt.Chart(
            alt.Data(values=rows), title="target pieces for a source piece, about"
        )
        .mark_bar(color=COLOURS[2])
        .encode(
            x=alt.X("ratio:O", title="ratio", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("pairs:Q", title="pairs"),
            tooltip=["ratio:Q", "pairs:Q"],
        )
        .properties(width=330, height=190)
    )


def _by_side() -> alt.Color:
    return alt.Color(
        "side:N",
        scale=alt.Scale(domain=list(SIDES), range=list(COLOURS[:2])),
        legend=alt.Legend(title=None, orient="top-right"),
    )
