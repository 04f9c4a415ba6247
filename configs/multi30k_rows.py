"""Rows like Table 3's, small enough for a laptop: the paper's claims on Multi30k.

Reproduces  rows of Table 3 at small scale. There one head is worse than eight (A), a
            small d_k is worse (B), more layers and a larger d_ff are better (C), no
            dropout is worse (D), without label smoothing perplexity is better and BLEU
            worse (D), learned positions are equal (E).
            docs/claims.md says which of these hold here. Beside these: equation 3
            without its warm-up, and later kinds of positions, rotary (Su et al. 2021)
            and relative (Shaw et al. 2018).
Hardware    one CPU core (AMD EPYC) for each run.
Data        as configs/multi30k.py.

    jaxformer train --config=configs/multi30k_rows.py:one_head \\
        --config.training.seed=1 --config.data.directory=data/multi30k \\
        runs/one_head_1
"""

from collections.abc import Iterable

from ml_collections import ConfigDict

from jaxformer.configs import multi30k
from jaxformer.system.errors import InputError

# Name of the row: what differs from the base row, by config section.
ROWS = {
    "base": {},
    "one_head": {"model": {"num_heads": 1, "d_k": 128, "d_v": 128}},
    "many_heads": {"model": {"num_heads": 32, "d_k": 4, "d_v": 4}},
    "small_d_k": {"model": {"d_k": 2}},
    "one_layer": {"model": {"encoder_layers": 1, "decoder_layers": 1}},
    "four_layers": {"model": {"encoder_layers": 4, "decoder_layers": 4}},
    "small_d_ff": {"model": {"d_ff": 128}},
    "large_d_ff": {"model": {"d_ff": 512}},
    "learned_positions": {"model": {"positions": "learned"}},
    "rotary_positions": {"model": {"positions": "rotary"}},
    "relative_positions": {"model": {"positions": "relative", "max_positions": 16}},
    "no_smoothing": {"training": {"label_smoothing": 0.0}},
    "no_dropout": {"model": {"dropout": 0.0}},
    "more_dropout": {"model": {"dropout": 0.2}},
    "no_warmup": {"optimizer": {"warmup_steps": 1}},
}


def require_row(row: str, rows: Iterable[str], example: str) -> None:
    """Raise InputError, naming the rows, for a word that is none of them."""
    if row not in rows:
        raise InputError(
            f"there is no row {row!r}: give one of {', '.join(rows)} after a colon, as "
            f"in --config=configs/{example}"
        )


def get_config(row: str = "") -> ConfigDict:
    """The config of one row. Raises InputError, naming the rows, for any other word."""
    require_row(row, ROWS, "multi30k_rows.py:one_head")
    config = multi30k.get_config()
    config.data.update(vocab_size=4000, max_length=64)
    config.batches.update(layout="packed", row_length=64)  # one shape to compile
    config.model.update(
        encoder_layers=2,
        decoder_layers=2,
        d_ff=256,
        num_heads=8,
        d_k=16,
        d_v=16,
        dropout=0.1,
    )
    config.optimizer.update(warmup_steps=600)
    config.training.update(
        steps=2000, tokens_per_update=1024, tokens_per_microbatch=1024, eval_every=2000,
        save_every=1000, keep=2, average=1,
    )  # fmt: skip
    config.decoding.update(beam_size=4)
    config.update(ROWS[row])
    return config
