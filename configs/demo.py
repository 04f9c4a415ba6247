"""The demo: a small Transformer learns the built-in English-German corpus.

Reproduces  the method of the paper, and none of its numbers: a grammar generates the
            sentences (`jaxformer.grammar`), so nothing is downloaded and every
            translation is right or wrong.
Hardware    two CPU cores, a few minutes; README.md has the output and the scores.

    jaxformer train --config=configs/demo.py runs/demo
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config, made small enough for minutes on a laptop."""
    config = wmt_base.get_config()
    config.data.update(
        corpus="builtin:grammar",
        train="100000",
        dev="500",
        test="500",
        vocab_size=2000,
        character_coverage=1.0,
        max_length=64,
    )
    config.batches.update(layout="packed", row_length=64, row_multiple=1)
    config.model.update(
        encoder_layers=2, decoder_layers=2, d_model=128, d_ff=256, num_heads=4,
        d_k=32, d_v=32, dropout=0.0,
        dtype="float32",
    )  # fmt: skip
    config.optimizer.update(
        warmup_steps=300,
        peak_learning_rate=0.8 * (128 * 300) ** -0.5,  # 0.8 times that of equation 3
    )
    config.training.update(
        steps=1740, tokens_per_update=1024, tokens_per_microbatch=1024, log_every=100,
        eval_every=960, save_every=60, keep=5, average=5,
    )  # fmt: skip
    config.decoding.update(beam_size=4)
    return config
