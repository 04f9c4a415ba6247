"""An LSTM with attention on WMT 2014 English-German (Luong et al. 2015).

Reproduces  20.9 BLEU on newstest2014 (tokenised), the figure of Luong et al. for one
            model with local attention and unknown words replaced, not run here. They
            train 4 + 4 layers of 1,000 in one direction with input feeding, on 50,000
            words, by plain SGD. These are 4 + 4 layers of 1,024 with residual
            connections and a bidirectional encoder (Wu et al. 2016), general attention
            after the recurrence, one matrix for both embeddings and the logits, joint
            pieces, Adam and the learning rate of section 5.3. Their input feeding is
            `model.feeding=attentional`, their encoder `model.bidirectional=False`. 101
            million parameters.
Hardware    not run.
Data        TensorFlow Datasets `wmt14_translate/de-en`, 4.5M pairs.

    jaxformer train --config=configs/lstm.py runs/lstm
"""

from ml_collections import ConfigDict, config_dict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config with a recurrent model; gradients are clipped."""
    config = wmt_base.get_config()
    config.model = ConfigDict(
        {
            "architecture": "recurrent",
            "cell": "lstm",
            "bidirectional": True,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "d_model": 1024,
            "attention": "general",
            "attention_window": config_dict.placeholder(int),  # of local attention
            "attention_reading": "soft",
            "feeding": "none",
            "tied_embeddings": "all",
            "dropout": 0.2,
            "dtype": "bfloat16",
        }
    )
    config.optimizer.clip_norm = 5.0
    return config
