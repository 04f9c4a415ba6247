"""Published results, and which config reproduces each.

A row is a config of `configs/`, the figures that were published for it with their
scorers, and in words what differs from ours at any length of training.
"""

from typing import NamedTuple

from jaxformer.errors import InputError, did_you_mean

PAPER = "Vaswani et al. 2017"


class Figure(NamedTuple):
    """One published number."""

    value: float
    scorer: str  # of evaluation/metrics.py's SCORERS, or PERPLEXITY
    who: str = PAPER
    note: str = ""


class Row(NamedTuple):
    """A config, and what was published for what it describes."""

    config: str  # a file of configs/, with its row after a colon
    test: str  # the text that is scored
    figures: tuple[Figure, ...]
    differs: tuple[str, ...]


PERPLEXITY = "perplexity a piece"
COMPOUNDS = "Moses tokens, compounds split"
PIECES = (
    "text: SentencePiece on raw text, not BPE or word pieces on Moses' tokens; our own "
    "cleaning"
)
OTHER_PIECES = "perplexity: pieces are not the same, so it is comparable only roughly"
SCRIPT = (
    "scorer: their script on their tokenised references; ours does the same steps in "
    "Python on the detokenised ones"
)
CHECKPOINTS = "averaging: the last 5 checkpoints, which are 1,500 updates apart here"
CHECKPOINTS_BIG = "averaging: the last 20 checkpoints"
UNKNOWN = "text, batches and hardware as each system has them"

TABLE2 = {
    "table2/base-en-de": Row(
        "wmt_base", "newstest2014 en-de",
        (
            Figure(27.3, COMPOUNDS),
            Figure(27.52, "sacreBLEU", "tensor2tensor, a base checkpoint"),
            Figure(28.85, "sacreBLEU intl lower-cased",
                   "tensor2tensor, the same checkpoint"),
            Figure(28.33, "sacreBLEU intl", "tensor2tensor, the same checkpoint"),
            Figure(29.02, COMPOUNDS, "tensor2tensor, the same checkpoint"),
            Figure(26.77, "sacreBLEU", "OpenNMT-py"),
            Figure(26.93, "sacreBLEU", "OpenNMT-tf"),
            Figure(24.38, "sacreBLEU", "Joey NMT"),
        ),
        (PIECES, SCRIPT, CHECKPOINTS, UNKNOWN),
    ),
    "table2/base-en-fr": Row(
        "wmt_enfr_base", "newstest2014 en-fr", (Figure(38.1, "Moses tokens"),),
        (PIECES, SCRIPT, CHECKPOINTS),
    ),
    "table2/big-en-de": Row(
        "wmt_big", "newstest2014 en-de",
        (
            Figure(28.4, COMPOUNDS),
            Figure(27.76, "sacreBLEU", "NVIDIA, lower end",
                   "mean of 6 seeds, whose spread is 0.3"),
            Figure(27.92, "sacreBLEU", "NVIDIA, upper end",
                   "mean of 6 seeds, whose spread is 0.3"),
            Figure(28.6, "sacreBLEU", "fairseq"),
            Figure(29.29, COMPOUNDS, "fairseq, the same output"),
        ),
        (PIECES, SCRIPT, CHECKPOINTS_BIG, UNKNOWN),
    ),
    "table2/big-en-fr": Row(
        "wmt_enfr_big", "newstest2014 en-fr",
        (Figure(41.8, "Moses tokens", note="41.0 in the paper's text"),),
        (PIECES, SCRIPT, CHECKPOINTS_BIG),
    ),
}  # fmt: skip

# Perplexity and BLEU on newstest2013, of the last checkpoint alone.
_TABLE3 = {
    "base": (4.92, 25.8), "A_h1": (5.29, 24.9), "A_h4": (5.00, 25.5),
    "A_h16": (4.91, 25.8), "A_h32": (5.01, 25.4), "B_dk16": (5.16, 25.1),
    "B_dk32": (5.01, 25.4), "C_N2": (6.11, 23.7), "C_N4": (5.19, 25.3),
    "C_N8": (4.88, 25.5), "C_d256": (5.75, 24.5), "C_d1024": (4.66, 26.0),
    "C_ff1024": (5.12, 25.4), "C_ff4096": (4.75, 26.2), "D_drop0.0": (5.77, 24.6),
    "D_drop0.2": (4.95, 25.5), "D_ls0.0": (4.67, 25.3), "D_ls0.2": (5.47, 25.7),
    "E": (4.92, 25.7), "big": (4.33, 26.4),
}  # fmt: skip
TABLE3 = {
    f"table3/{name}": Row(
        f"table3:{name}", "newstest2013 en-de",
        (Figure(perplexity, PERPLEXITY), Figure(bleu, COMPOUNDS)),
        (PIECES, OTHER_PIECES, SCRIPT),
    )
    for name, (perplexity, bleu) in _TABLE3.items()
}  # fmt: skip

ROWS: dict[str, Row] = {
    **TABLE2,
    **TABLE3,
    "multi30k/tiny": Row(
        "multi30k", "test_2016_flickr en-de",
        (Figure(41.02, "Moses tokens lower-cased", "Wu et al. 2021"),),
        (
            "text: 10,000 SentencePiece pieces of raw text, not of Moses' tokens",
            "updates: 12,000 of 2,048 tokens, where theirs are up to 8,000 of 8,192",
            "schedule: equation 3 with its peak at 2.3e-3, theirs at 5e-3",
        ),
    ),
}  # fmt: skip

# Published results that no row can be compared with.
NOT_COMPARABLE = (
    "flax's WMT example, 32.87: German to English, lower-cased, its own tokeniser",
)


def row(name: str) -> Row:
    """The row of that name. Raises InputError for an unknown name."""
    if name not in ROWS:
        hint = did_you_mean(name, ROWS, otherwise=f"rows are {', '.join(ROWS)}")
        raise InputError(f"there is no published row {name!r}{hint}")
    return ROWS[name]
