"""jaxformer prepare: train the tokeniser and write the tokenised corpus."""

import logging
from pathlib import Path

from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.run import prepare_run
from jaxformer.system.errors import InputError, install
from jaxformer.system.files import url_of


def run(*, config: ConfigRequest, workdir: Path, runner: str | None) -> dict:
    """Prepare the workdir; returns pairs, what was dropped, and numbers of ids."""
    pipeline = None
    if runner is not None:
        # Beam warns of libraries that only some runners need.
        logging.disable(logging.WARNING)
        try:
            from jaxformer.corpus.beam import Beam
        except ImportError as error:
            raise InputError(
                f"--runner needs Apache Beam ({error}); run: {install('beam')}"
            ) from None
        finally:
            logging.disable(logging.NOTSET)
        name, _, options = runner.partition(" ")
        pipeline = Beam(name, options, url_of(workdir))
    with prepare_run(workdir, config, pipeline) as (this, prepared):
        train = prepared.report["train"]
    return {
        "pairs": train["kept"],
        "dropped": train["dropped"],
        "vocab_size": prepared.tokenizer.vocab_size,
        "source_vocab_size": prepared.tokenizer.source_vocab_size,
        "direction": this.config.data.direction,
    }
