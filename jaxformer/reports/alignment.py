"""Where the pieces of a sentence and of its translation are drawn, joined by lines.

Two rows of text of a fixed width: the source above, the translation below. Used by the
template of `jaxformer.reports.run`.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

LETTER = 7.8  # widths, in pixels of the drawing
GAP = 9  # between words
SEAM = 2  # between pieces of a word
WORD_START = "\u2581"  # SentencePiece's mark of a space


def lay_out(alignment: Mapping[str, Any]) -> dict[str, Any]:
    """Places for a drawing: width, source and target pieces, links from x to x.

    A piece is {"text", "x", "width"}; both rows are centred.
    """
    source, target = (_row(alignment[side]) for side in ("source", "target"))
    width = max((row[-1]["x"] + row[-1]["width"] for row in (source, target) if row),
                default=0)  # fmt: skip
    for row in (source, target):
        if row:
            shift = (width - row[-1]["x"] - row[-1]["width"]) / 2
            for piece in row:
                piece["x"] = round(piece["x"] + shift, 1)
    return {
        "width": round(width, 1),
        "source": source,
        "target": target,
        "links": [
            {
                "from": _centre(source[s]),
                "to": _centre(target[t]),
                "says": f"{source[s]['text']} - {target[t]['text']}",
            }
            for s, t in alignment["links"]
        ],
    }


def _row(pieces: Sequence[str]) -> list[dict[str, Any]]:
    """Pieces one behind the other, from 0."""
    row: list[dict[str, Any]] = []
    x = 0.0
    for number, piece in enumerate(pieces):
        text = piece.replace(WORD_START, "") or "\u2423"  # a space by itself
        if number:
            x += GAP if piece.startswith(WORD_START) else SEAM
        width = LETTER * sum(
            2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text
        )
        row.append({"text": text, "x": x, "width": round(width, 1)})
        x += width
    return row


def _centre(piece: Mapping[str, Any]) -> float:
    return round(piece["x"] + piece["width"] / 2, 1)
