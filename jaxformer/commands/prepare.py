"""--mode=prepare: train the tokeniser and write the tokenised corpus, nothing more."""

from jaxformer.commands.options import Options
from jaxformer.commands.runs import prepare_run
from jaxformer.workdir import direction


def run(options: Options) -> dict:
    """Prepare the workdir; returns the corpus report and the vocabulary's size."""
    prepared_run, prepared = prepare_run(options)
    train = prepared.report["train"]
    return {
        "pairs": train["kept"],
        "dropped": train["dropped"],
        "vocab_size": prepared.tokenizer.vocab_size,
        "direction": direction(prepared_run.config),
    }
