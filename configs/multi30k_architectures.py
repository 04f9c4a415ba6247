"""The systems that the paper compares itself with, on Multi30k English-German.

Reproduces  the comparison of sections 1, 2 and 4 with models of 1.1 to 1.2 million
            parameters: same text, pieces, batches, updates, averaging and search; a
            learning rate of its own for each kind. Results: docs/architectures.md.
Hardware    one CPU core (AMD EPYC) for each run.
Data        as configs/multi30k.py.

    jaxformer train --config=configs/multi30k_architectures.py:lstm_dot \\
        --config.training.seed=1 --config.data.directory=data/multi30k \\
        runs/lstm_dot_1
"""

from ml_collections import ConfigDict

from jaxformer.configs import convs2s, lstm, multi30k_rows

OTHERS = {"recurrent": lstm, "convolutional": convs2s}
RECURRENT = {
    "architecture": "recurrent", "encoder_layers": 1, "decoder_layers": 1,
    "d_model": 160, "dtype": "float32",
}  # fmt: skip
CONVOLUTIONAL = {
    "architecture": "convolutional", "encoder_layers": 3, "decoder_layers": 2,
    "d_model": 128, "dropout": 0.1, "max_positions": 128, "dtype": "float32",
}  # fmt: skip
# Name of the row: what differs from the section `model` of configs/multi30k_rows.py, or
# of the config in OTHERS.
ROWS = {
    "transformer": {},
    "lstm_additive": RECURRENT | {"attention": "additive", "feeding": "context"},
    "lstm_dot": RECURRENT | {"attention": "dot", "feeding": "attentional"},
    "lstm_fixed": RECURRENT | {"attention": "none", "feeding": "context"},
    "gru_additive": RECURRENT
    | {"cell": "gru", "attention": "additive", "feeding": "context"},
    "tanh_additive": RECURRENT
    | {"cell": "tanh", "d_model": 200, "attention": "additive", "feeding": "context"},
    "lstm_dot_forwards": RECURRENT
    | {"bidirectional": False, "attention": "dot", "feeding": "attentional"},
    "lstm_local": RECURRENT
    | {"attention": "local", "attention_window": 5, "feeding": "attentional"},
    "lstm_hard": RECURRENT
    | {"attention": "dot", "attention_reading": "hard", "feeding": "attentional"},
    "convs2s": CONVOLUTIONAL,
    "convs2s_separable": CONVOLUTIONAL | {"separable": True, "d_model": 160},
}
# Factors of equation 3 with the lowest validation perplexity after 2,000 updates
# (docs/architectures.md). Rows that were not tried have those of the nearest one.
LEARNING_RATE_FACTORS = {
    "transformer": 1.0, "lstm_additive": 4.0, "lstm_dot": 4.0, "lstm_fixed": 4.0,
    "gru_additive": 2.0, "convs2s": 8.0,
    "tanh_additive": 2.0, "lstm_dot_forwards": 4.0, "lstm_local": 4.0, "lstm_hard": 4.0,
    "convs2s_separable": 8.0,
}  # fmt: skip


def get_config(row: str = "") -> ConfigDict:
    """The config of one row. Raises InputError, naming the rows, for any other word."""
    multi30k_rows.require_row(row, ROWS, "multi30k_architectures.py:convs2s")
    config = multi30k_rows.get_config("base")
    if "architecture" in ROWS[row]:
        config.model = OTHERS[ROWS[row]["architecture"]].get_config().model
    config.model.update(ROWS[row])
    if config.model.architecture == "recurrent":
        config.optimizer.clip_norm = 5.0
    if LEARNING_RATE_FACTORS[row] != 1:
        of_equation_3 = (config.model.d_model * config.optimizer.warmup_steps) ** -0.5
        config.optimizer.peak_learning_rate = LEARNING_RATE_FACTORS[row] * of_equation_3
    config.training.update(
        steps=6000, eval_every=6000, save_every=300, keep=5, average=5
    )
    return config
