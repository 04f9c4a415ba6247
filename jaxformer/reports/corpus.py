"""The corpus report of --mode=check as a page: lengths as charts, the rest as text."""

from collections.abc import Sequence
from typing import Any

from jaxformer.reports.page import COLOURS, alt, render


def make_corpus_page(
    corpus: dict[str, Any],
    title: str,
    warnings: Sequence[str],
    sections: dict[str, Sequence[str]],
) -> str:
    """Return the HTML of what `inspect_corpus` found.

    `sections` are lines of text by the name of their section.
    """
    charts = {
        f"{name}-{unit}": _draw_lengths(split["lengths"], unit)
        for name, split in corpus["splits"].items()
        for unit in split["lengths"]["source"]  # words, and pieces if prepared
    }
    left_out = list(dict.fromkeys(corpus["left_out"].values()))
    values = {"title": title, "warnings": warnings, "splits": corpus["splits"]}
    values |= {"left_out": left_out, "sections": sections}
    return render("corpus.html", charts=charts, **values)


def _draw_lengths(lengths: dict[str, Any], unit: str) -> alt.Chart:
    rows = [
        {"side": side, "length": length, "sentences": counts[unit].get(length, 0)}
        for side, counts in lengths.items()
        for length in range(max(counts[unit]) + 2)
    ]
    colours = alt.Scale(domain=list(lengths), range=list(COLOURS[: len(lengths)]))
    legend = alt.Legend(title=None, orient="top-right")
    chart = alt.Chart(
        alt.Data(values=rows), title=f"{unit} a sentence", width=330, height=190
    )
    return chart.mark_area(interpolate="step", opacity=0.35, line=True).encode(
        x=alt.X("length:Q", title=unit),
        y=alt.Y("sentences:Q", title="sentences", stack=None),
        color=alt.Color("side:N", scale=colours, legend=legend),
        tooltip=["side:N", "length:Q", "sentences:Q"],
    )
