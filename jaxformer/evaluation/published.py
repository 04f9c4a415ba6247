"""Published results, and which config reproduces each, read from `published.toml`."""

import tomllib
from importlib.resources import files
from typing import NamedTuple

from jaxformer.system.errors import InputError, did_you_mean

PERPLEXITY = "perplexity a piece"


class Figure(NamedTuple):
    """One published number."""

    value: float
    scorer: str  # of evaluation/metrics.py's SCORERS, or PERPLEXITY
    who: str = "Vaswani et al. 2017"
    note: str = ""


class Row(NamedTuple):
    """A config, and the results published for its experiment."""

    config: str  # a file of configs/, with its row after a colon
    test: str  # the text that is scored
    figures: list[Figure]
    differs: list[str]  # from ours, at any length of training


_DATA = tomllib.loads(files(__package__).joinpath("published.toml").read_text("utf-8"))
_ROWS = _DATA["rows"] | {
    f"table3/{name}": {
        "config": f"table3:{name}",
        "test": "newstest2013 en-de",
        "figures": [[perplexity, PERPLEXITY], [bleu, "Moses tokens, compounds split"]],
        "differs": ["pieces", "other_pieces", "script"],
    }
    for name, (perplexity, bleu) in _DATA["table3"].items()
}
ROWS = {
    name: Row(
        row["config"],
        row["test"],
        [Figure(*figure) for figure in row["figures"]],
        [_DATA["differs"][key] for key in row["differs"]],
    )
    for name, row in _ROWS.items()
}
NOT_COMPARABLE = _DATA["not_comparable"]


def row(name: str) -> Row:
    """The row of that name. Raises InputError for an unknown name."""
    if name not in ROWS:
        hint = did_you_mean(name, ROWS, otherwise=f"rows are {', '.join(ROWS)}")
        raise InputError(f"there is no published row {name!r}{hint}")
    return ROWS[name]
