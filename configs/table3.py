"""Every row of the paper's Table 3: variations of the base model, English-German.

Reproduces  perplexity per piece and BLEU on newstest2013, the validation split, without
            averaging: the two numbers beside each row below. They are the paper's;
            none has been run here yet.
Hardware    the paper: 8 P100, 12 hours for the base model, 3.5 days for the big one.
Data        TensorFlow Datasets `wmt14_translate/de-en`, 4.5M pairs.

    python -m jaxformer.main --config=configs/table3.py:B_dk16 --workdir=runs/B_dk16
"""

from ml_collections import ConfigDict

from configs import wmt_base, wmt_big
from jaxformer.errors import InputError

# Name of the row: what differs from the base model, by config section.
ROWS = {
    "base": {},  # 4.92, 25.8
    "A_h1": {"model": {"num_heads": 1, "d_k": 512, "d_v": 512}},  # 5.29, 24.9
    "A_h4": {"model": {"num_heads": 4, "d_k": 128, "d_v": 128}},  # 5.00, 25.5
    "A_h16": {"model": {"num_heads": 16, "d_k": 32, "d_v": 32}},  # 4.91, 25.8
    "A_h32": {"model": {"num_heads": 32, "d_k": 16, "d_v": 16}},  # 5.01, 25.4
    "B_dk16": {"model": {"d_k": 16}},  # 5.16, 25.1
    "B_dk32": {"model": {"d_k": 32}},  # 5.01, 25.4
    "C_N2": {"model": {"num_layers": 2}},  # 6.11, 23.7
    "C_N4": {"model": {"num_layers": 4}},  # 5.19, 25.3
    "C_N8": {"model": {"num_layers": 8}},  # 4.88, 25.5
    "C_d256": {"model": {"d_model": 256, "d_k": 32, "d_v": 32}},  # 5.75, 24.5
    "C_d1024": {"model": {"d_model": 1024, "d_k": 128, "d_v": 128}},  # 4.66, 26.0
    "C_ff1024": {"model": {"d_ff": 1024}},  # 5.12, 25.4
    "C_ff4096": {"model": {"d_ff": 4096}},  # 4.75, 26.2
    "D_drop0.0": {"model": {"dropout": 0.0}},  # 5.77, 24.6
    "D_drop0.2": {"model": {"dropout": 0.2}},  # 4.95, 25.5
    "D_ls0.0": {"training": {"label_smoothing": 0.0}},  # 4.67, 25.3
    "D_ls0.2": {"training": {"label_smoothing": 0.2}},  # 5.47, 25.7
    "E": {"model": {"positions": "learned"}},  # 4.92, 25.7
    "big": {},  # 4.33, 26.4
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
