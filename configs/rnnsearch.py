"""RNNsearch-50 on WMT 2014 English-French (Bahdanau et al. 2015).

Reproduces  28.45 BLEU on newstest2014 (tokenised, unknown words included), the figure
            of Bahdanau et al. after longer training, not run here. They train on 12M
            selected pairs with 30,000 words of each language, embeddings of 620, a
            decoder of 1,000 and an encoder of 1,000 in each direction, a maxout layer
            before the softmax, and Adadelta. This model has one width, 1,000, of which
            each direction of the encoder has half; all pairs, 32,000 joint pieces, one
            matrix for both embeddings and the logits, tanh instead of maxout, Adam and
            the learning rate of section 5.3. As there, sentences have at most 50 tokens
            and gradients are clipped. 51 million parameters.
Hardware    not run.
Data        TensorFlow Datasets `wmt14_translate/fr-en`.

    jaxformer train --config=configs/rnnsearch.py runs/rnnsearch
"""

from ml_collections import ConfigDict

from jaxformer.configs import lstm, wmt_enfr_base


def get_config() -> ConfigDict:
    """English-French with a GRU that attends before each step, and beam 12."""
    config = wmt_enfr_base.get_config()
    config.data.max_length = 50
    config.model = lstm.get_config().model
    config.model.update(
        cell="gru", encoder_layers=1, decoder_layers=1, d_model=1000,
        attention="additive", feeding="context", dropout=0.0,
    )  # fmt: skip
    config.optimizer.clip_norm = 1.0
    config.training.label_smoothing = 0.0
    config.decoding.beam_size = 12
    return config
