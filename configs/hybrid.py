"""A Transformer encoder with an LSTM decoder, on Multi30k (Chen et al. 2018).

Reproduces  the kind of model of Chen et al., "The Best of Both Worlds", who join an
            encoder of the Transformer and a decoder of LSTMs, and none of their
            numbers. These are 2 + 2 layers of 128 with additive attention, which the
            decoder is fed; theirs are of 1,024 on WMT 2014. 1.2 million parameters.
Hardware    not run.
Data        as configs/multi30k.py.

    jaxformer train --config=configs/hybrid.py \\
        --config.data.directory=data/multi30k runs/hybrid
"""

from ml_collections import ConfigDict, config_dict

from jaxformer.configs import multi30k_rows


def get_config() -> ConfigDict:
    """The base row of configs/multi30k_rows.py with a hybrid; gradients are clipped."""
    config = multi30k_rows.get_config("base")
    of_decoder = "decoder_layers", "first_input", "decoder_self_attention"
    shared = "architecture", "d_model", "tied_embeddings", "dropout", "dtype"
    encoder = config.model.copy_and_resolve_references()
    for key in (*of_decoder, *shared):
        del encoder[key]
    config.model = ConfigDict(
        {
            "architecture": "hybrid",
            "encoder": {"architecture": "transformer", **encoder},
            "decoder": {
                "architecture": "recurrent",
                "cell": "lstm",
                "decoder_layers": 2,
                "attention": "additive",
                "attention_window": config_dict.placeholder(int),  # of local attention
                "feeding": "context",
            },
            "d_model": 128,
            "tied_embeddings": "all",
            "dropout": 0.1,
            "dtype": "float32",
        }
    )
    config.optimizer.update(
        clip_norm=5.0,
        peak_learning_rate=2 * (128 * 600) ** -0.5,  # twice that of equation 3
    )
    config.training.update(
        steps=6000, eval_every=6000, save_every=300, keep=5, average=5
    )
    return config
