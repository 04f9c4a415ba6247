"""A small model on Tatoeba English-German: everyday sentences, 165,151 pairs.

Reproduces  no published number: a first run on real text. Sentences are 6.5 words on
            average, so it learns to translate everyday language, not news.
Hardware    a laptop. docs/model_size.md has times and scores of this model with packed
            rows.
Data        a directory with train, dev and test as STEM.en and STEM.de, or .gz; the
            text is CC-BY 2.0, see www.manythings.org/anki and tatoeba.org.

    jaxformer train --config=configs/tatoeba.py \\
        --config.data.directory=data/tatoeba_ende runs/tatoeba
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config at an eighth of its parameters, for short sentences."""
    config = wmt_base.get_config()
    config.data.update(
        corpus="directory",
        directory="data/tatoeba_ende",
        dev="dev",
        test="test",
        vocab_size=8000,
        character_coverage=1.0,
        max_length=64,
    )
    config.batches.update(layout="buckets", max_shapes=8)
    config.model.update(
        encoder_layers=3,
        decoder_layers=3,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        dropout=0.2,
        dtype="float32",
    )
    config.optimizer.update(warmup_steps=2000)
    config.training.update(
        steps=6000, tokens_per_update=4096, tokens_per_microbatch=4096, log_every=50,
        eval_every=1000, save_every=250,
    )  # fmt: skip
    return config
