"""The corpus report of --mode=check as a page: lengths as charts, the rest as text."""

from collections.abc import Sequence
from typing import Any

from jaxformer.reports.page import render


def make_corpus_page(
    corpus: dict[str, Any],
    title: str,
    warnings: Sequence[str],
    sections: dict[str, Sequence[str]],
) -> str:
    """Return the HTML of what `inspect_corpus` found.

    `sections` are lines of text by the name of their section.
    """
    splits = corpus["splits"]
    return render(
        "corpus.html",
        data={name: split["lengths"] for name, split in splits.items()},
        title=title,
        warnings=warnings,
        splits=splits,
        left_out=dict.fromkeys(corpus["left_out"].values()),
        sections=sections,
    )
