"""The paper's base model on Europarl English-French: debates, 480,000 pairs.

Reproduces  no published number: a part of the paper's English-French training text, in
            the sizes of its base model, scored on newstest2014. Not trained yet.
Hardware    one GPU: 9,000 updates of 25,000 + 25,000 tokens are 14 epochs. On an H100,
            where an update takes 38.6 ms, six minutes (arithmetic, not a run).
Data        Europarl v7 (statmt.org/europarl): train.en.zst, train.fr.zst and the texts
            test_debates.en.gz and test_debates.fr.gz that were left out. Beside it
            newstest_enfr/ with newstest2013.en-fr and newstest2014.en-fr in both
            languages, from WMT.

    jaxformer train --config=configs/europarl_enfr.py \\
        --config.data.directory=data/europarl_enfr runs/europarl
    jaxformer evaluate --split=test runs/europarl
"""

from ml_collections import ConfigDict

from jaxformer.configs import wmt_enfr_base


def get_config() -> ConfigDict:
    """The paper's config with other text and 9,000 updates."""
    config = wmt_enfr_base.get_config()
    config.data.update(
        corpus="directory",
        directory="data/europarl_enfr",
        dev="../newstest_enfr/newstest2013.en-fr",
        test="../newstest_enfr/newstest2014.en-fr",
    )
    # The average is of the last fifth of the run.
    config.training.update(steps=9000, save_every=450, eval_every=4950)
    return config
