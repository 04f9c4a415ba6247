"""--mode=score: the log-probability that a model gives to translations."""

import json
import sys
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.commands.evaluate import read_text
from jaxformer.config_files import ConfigRequest
from jaxformer.evaluation.evaluator import PairScorer, tokenize_pairs
from jaxformer.run import keep_compiled, load_parameters, make_translator, open_run


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    details: bool,
    checkpoint: str | None,
    source: Path | None,
    reference: Path | None,
    split: str,
    **options: Any,
) -> dict:
    """Sum the log-probability of sentence pairs, in nats.

    With `details` standard output first has a line of JSON for each pair: its pieces
    and the log-probability of each.
    """
    keep_compiled()
    this = open_run(workdir, config)
    text = read_text(this, source, reference, split)
    params = load_parameters(this, checkpoint)
    if details and processes.is_first():
        scored = make_translator(this, params, **options).score(*text)
        for line, score in enumerate(scored, start=1):
            found = {"line": line, "log_probability": score.log_probability}
            written = json.dumps({**found, **score._asdict()}, ensure_ascii=False)
            sys.stdout.buffer.write(f"{written}\n".encode())
        sys.stdout.buffer.flush()
    pairs = tokenize_pairs(this.tokenizer, text)
    sums = PairScorer(this.model, this.config, pairs)(params)
    return {
        "sentences": len(text.sources),
        "tokens": int(sums["tokens"]),
        "log_probability": -sums["nll"],
    }
