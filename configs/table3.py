"""Every row of the paper's Table 3: variations of the base model, English-German.

Reproduces  perplexity per piece and BLEU on newstest2013, the validation split, without
            averaging: jaxformer/evaluation/published.toml has the paper's two numbers
            of each row, and jaxformer reproduce --row=table3/E prints them beside ours.
            None has been run at full length.
Hardware    the paper: 8 P100, 12 hours for the base model, 3.5 days for the big one.
Data        TensorFlow Datasets `wmt14_translate/de-en`, 4.5M pairs.

    jaxformer train --config=configs/table3.py:B_dk16 runs/B_dk16
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base, wmt_big
from jaxformer.system.errors import InputError

# Name of the row: what differs from the base model, by config section.
ROWS = {
    "base": {},
    "A_h1": {"model": {"num_heads": 1, "d_k": 512, "d_v": 512}},
    "A_h4": {"model": {"num_heads": 4, "d_k": 128, "d_v": 128}},
    "A_h16": {"model": {"num_heads": 16, "d_k": 32, "d_v": 32}},
    "A_h32": {"model": {"num_heads": 32, "d_k": 16, "d_v": 16}},
    "B_dk16": {"model": {"d_k": 16}},
    "B_dk32": {"model": {"d_k": 32}},
    "C_N2": {"model": {"encoder_layers": 2, "decoder_layers": 2}},
    "C_N4": {"model": {"encoder_layers": 4, "decoder_layers": 4}},
    "C_N8": {"model": {"encoder_layers": 8, "decoder_layers": 8}},
    "C_d256": {"model": {"d_model": 256, "d_k": 32, "d_v": 32}},
    "C_d1024": {"model": {"d_model": 1024, "d_k": 128, "d_v": 128}},
    "C_ff1024": {"model": {"d_ff": 1024}},
    "C_ff4096": {"model": {"d_ff": 4096}},
    "D_drop0.0": {"model": {"dropout": 0.0}},
    "D_drop0.2": {"model": {"dropout": 0.2}},
    "D_ls0.0": {"training": {"label_smoothing": 0.0}},
    "D_ls0.2": {"training": {"label_smoothing": 0.2}},
    "E": {"model": {"positions": "learned"}},
    "big": {},
}


def get_config(row: str = "") -> ConfigDict:
    """The config of one row. Raises InputError, naming the rows, for any other word."""
    if row not in ROWS:
        raise InputError(
            f"Table 3 has no row {row!r}: give one of {', '.join(ROWS)} after a colon, "
            "as in --config=configs/table3.py:E"
        )
    config = (wmt_big if row == "big" else wmt_base).get_config()
    config.update(ROWS[row])
    config.data.test = config.data.dev  # newstest2013
    config.training.update(keep=2, average=1)
    return config
