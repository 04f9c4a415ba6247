"""ConvS2S on WMT 2014 English-German (Gehring et al. 2017; the paper's Table 2).

Reproduces  25.16 BLEU on newstest2014, the figure of Gehring et al., not run here.
            They train 15 + 15 layers, of which 9 have 512 channels, 4 have 1,024 and 2
            have 2,048 with kernels of width 1. These are 15 + 15 layers of 512 and
            width 3: 78 million parameters with one matrix for both embeddings and the
            logits. They train with Nesterov's momentum and clip gradients; this config
            has Adam and the learning rate of section 5.3.
Hardware    not run.
Data        TensorFlow Datasets `wmt14_translate/de-en`, 4.5M pairs.

    jaxformer train --config=configs/convs2s.py runs/convs2s
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config with a convolutional model, 40,000 pieces and beam 5."""
    config = wmt_base.get_config()
    config.data.update(vocab_size=40_000)
    config.model = ConfigDict(
        {
            "architecture": "convolutional",
            "encoder_layers": 15,
            "decoder_layers": 15,
            "d_model": 512,
            "kernel_width": 3,
            "max_dilation": 1,  # 16: the dilations of ByteNet
            "separable": False,
            "tied_embeddings": "all",
            "dropout": 0.2,
            "max_positions": 1024,
            "dtype": "bfloat16",
        }
    )
    config.decoding.update(beam_size=5)
    return config
