"""A student that translates fast: a deep encoder and two recurrent decoder layers.

Reproduces  the shape of the students of Kim et al. (2019), 6 + 2 layers with SSRU in
            place of the decoder's self-attention, and none of their numbers. Sizes,
            pieces and updates are those of configs/multi30k.py; for more text set
            `model.d_model`, `model.d_ff` and the schedule as in configs/wmt_base.py.
Hardware    not run.
Data        as configs/multi30k.py. data/distilled has a teacher's translations of the
            training text, made by `jaxformer translate_corpus`
            (docs/more_from_less.md).

    jaxformer train --config=configs/student.py \\
        --config.data.directory=data/distilled runs/student
"""

from ml_collections import ConfigDict

from jaxformer.configs import multi30k


def get_config() -> ConfigDict:
    """The config of Multi30k with a student's layers and a teacher's text."""
    config = multi30k.get_config()
    config.data.update(
        directory="data/distilled",
        dev="../multi30k/val",
        test="../multi30k/test_2016_flickr",
    )
    # The last three are what Marian computes, so that it can use an export.
    config.model.update(
        encoder_layers=6, decoder_layers=2, decoder_self_attention="ssru",
        first_input="zeros", positions="tensor2tensor", biases="all",
    )  # fmt: skip
    return config
