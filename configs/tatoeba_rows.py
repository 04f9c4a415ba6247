"""Tatoeba English-German in rows MODEL_PAIRS: three models, four amounts of text.

Reproduces  no published number: which model to take for so many pairs, and what quality
            to expect of it. docs/model_size.md has the results.
Hardware    one CPU core (AMD EPYC): 9 to 39 minutes for 2,000 to 7,200 updates of the
            tiny and the small model, 50 and 55 for base_1000 and base_10000. base_50000
            and base_165000: one H100, one minute of updates for 6,000 and 7,200.
Data        as configs/tatoeba.py, with the first pairs of train in files of their own:

    python benchmarks/model_sizes.py --text=data/tatoeba_ende --write=data/tatoeba_rows
    jaxformer train --config=configs/tatoeba_rows.py:tiny_1000 \\
        --config.data.directory=data/tatoeba_rows --config.training.seed=1 \\
        runs/tiny_1000_1
"""

from itertools import product

from ml_collections import ConfigDict

from jaxformer.configs import tatoeba
from jaxformer.configs.multi30k_rows import require_row

# Layers of each stack, d_model, d_ff, heads of 32 or 64, warm-up.
MODELS = {
    "tiny": (4, 128, 256, 4, 1000),
    "small": (3, 256, 1024, 4, 2000),
    "base": (6, 512, 2048, 8, 4000),  # the paper's
}
# Pairs: pieces, dropout, updates between two evaluations.
TEXTS = {
    1_000: (1000, 0.3, 200),
    10_000: (2000, 0.3, 400),
    50_000: (4000, 0.2, 800),
    165_000: (8000, 0.2, 1200),  # all of the text
}
ROWS = {f"{model}_{pairs}": (model, pairs) for model, pairs in product(MODELS, TEXTS)}


def get_config(row: str = "") -> ConfigDict:
    """The config of one row. Raises InputError, naming the rows, for any other word."""
    require_row(row, ROWS, "tatoeba_rows.py:tiny_1000")
    model, pairs = ROWS[row]
    layers, d_model, d_ff, heads, warmup_steps = MODELS[model]
    pieces, dropout, every = TEXTS[pairs]
    config = tatoeba.get_config()
    config.data.update(
        train="train" if pairs == max(TEXTS) else f"train_{pairs}", vocab_size=pieces
    )
    config.batches.update(layout="packed", row_length=64)  # one shape to compile
    config.model.update(
        encoder_layers=layers, decoder_layers=layers, d_model=d_model, d_ff=d_ff,
        num_heads=heads, d_k=d_model // heads, d_v=d_model // heads, dropout=dropout,
    )  # fmt: skip
    config.optimizer.update(warmup_steps=warmup_steps)
    # Patience ends the run; translation then uses the best checkpoint.
    config.training.update(
        steps=50_000, tokens_per_update=2048, tokens_per_microbatch=2048, patience=4,
        eval_every=every, save_every=every, keep=1, average=1,
    )  # fmt: skip
    return config
