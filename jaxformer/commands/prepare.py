"""--mode=prepare: train the tokeniser and write the tokenised corpus."""

from pathlib import Path

from jaxformer.config_files import ConfigRequest
from jaxformer.run import prepare_run


def run(*, config: ConfigRequest, workdir: Path) -> dict:
    """Prepare the workdir; returns pairs, what was dropped, and numbers of ids."""
    with prepare_run(workdir, config) as (this, prepared):
        train = prepared.report["train"]
    return {
        "pairs": train["kept"],
        "dropped": train["dropped"],
        "vocab_size": prepared.tokenizer.vocab_size,
        "source_vocab_size": prepared.tokenizer.source_vocab_size,
        "direction": this.config.data.direction,
    }
