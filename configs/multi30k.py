"""Transformer-Tiny on Multi30k English-German: image captions, 29,000 pairs.

Reproduces  the text-only Transformer-Tiny of Wu et al. (2021), 41.02 lower-cased
            tokenised BLEU on test_2016_flickr, with the same model (4 + 4 layers,
            d_model 128, d_ff 256, 4 heads, 10,000 joint BPE pieces, dropout 0.3),
            average of the last 10 checkpoints and beam 5. They made at most 8,000
            updates of 8,192 tokens with a learning rate that peaks at 5e-3; this config
            makes 12,000 of 2,048 with the paper's schedule.
Hardware    two CPU cores (AMD EPYC): 0.47 s an update with no other load, so 12,000 in
            about 95 minutes.
Score       test_2016_flickr en-de: 40.01 on lower-cased Moses tokens, 39.63 sacreBLEU
            (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0).
Data        github.com/multi30k/dataset: a directory with train.en, train.de, val.en,
            val.de, test_2016_flickr.en and test_2016_flickr.de, or the same as .gz.

    jaxformer train --config=configs/multi30k.py \\
        --config.data.directory=data/multi30k runs/m30k
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config with the values of a small corpus."""
    config = wmt_base.get_config()
    config.data.update(
        corpus="directory",
        directory="data/multi30k",
        dev="val",
        test="test_2016_flickr",
        vocab_size=10_000,
        character_coverage=1.0,
        max_length=128,
    )
    config.batches.update(layout="buckets", max_shapes=8, row_multiple=1)
    config.model.update(
        encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, num_heads=4,
        d_k=32, d_v=32, dropout=0.3,
        dtype="float32",
    )  # fmt: skip
    config.optimizer.update(warmup_steps=1500)  # equation 3 then peaks at 2.3e-3
    config.training.update(
        steps=12_000, tokens_per_update=2048, tokens_per_microbatch=2048, log_every=100,
        eval_every=2000, save_every=200, keep=10, average=10,
    )  # fmt: skip
    config.decoding.update(beam_size=5)
    return config
