"""The paper's base model on WMT 2014 English-French (Table 2).

Reproduces  38.1 BLEU on newstest2014 by the paper's own script. The paper's figure, not
            run here.
Hardware    the paper: 8 P100, 12 hours, as for English-German.
Data        TensorFlow Datasets `wmt14_translate/fr-en`, 36M pairs.

    jaxformer train --config=configs/wmt_enfr_base.py runs/enfr_base
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_base


def get_config() -> ConfigDict:
    """The base config with the other corpus and its 32,000 pieces (section 5.1)."""
    config = wmt_base.get_config()
    config.data.update(
        corpus="tfds:wmt14_translate/fr-en", target_language="fr", vocab_size=32_000
    )
    return config
