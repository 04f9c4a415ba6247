"""The corpus report of --mode=check as a page: lengths as charts, the rest as text."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from jaxformer.reports.page import COLOURS, render

SIDES = ("source", "target")


def make_corpus_page(
    corpus: dict[str, Any],
    *,
    title: str,
    warnings: Sequence[str],
    sections: dict[str, Sequence[str]],
) -> str:
    """The HTML of what `inspect_corpus` found.

    `sections` are lines of text by the name of their section.
    """
    charts = {
        f"{name}-{unit}": _draw_lengths(split["lengths"], unit)
        for name, split in corpus["splits"].items()
        for unit in split["lengths"]["source"]  # words, and pieces if prepared
    }
    return render(
        "corpus.html",
        charts=charts,
        title=title,
        warnings=warnings,
        splits=corpus["splits"],
        left_out=list(dict.fromkeys(corpus["left_out"].values())),
        sections=sections,
    )


def _draw_lengths(lengths: dict[str, Any], unit: str) -> alt.Chart:
    """How many sentences of either side have which length."""
    rows = [
        {"side": side, "length": length, "sentences": counts.get(length, 0)}
        for side, counts in ((side, lengths[side][unit]) for side in SIDES)
        for length in range(max(counts) + 2)
    ]
    return (
        alt.Chart(alt.Data(values=rows), title=f"{unit} a sentence")
        .mark_area(interpolate="step", opacity=0.35, line=True)
        .encode(
            x=alt.X("length:Q", title=unit),
            y=alt.Y("sentences:Q", title="sentences", stack=None),
            color=alt.Color(
                "side:N",
                scale=alt.Scale(domain=list(SIDES), range=list(COLOURS[:2])),
                legend=alt.Legend(title=None, orient="top-right"),
            ),
            tooltip=["side:N", "length:Q", "sentences:Q"],
        )
        .properties(width=330, height=190)
    )
