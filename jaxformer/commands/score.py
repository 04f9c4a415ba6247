"""--mode=score: the log-probability that a model gives to translations."""

import json
import sys

from jaxformer import processes
from jaxformer.commands.evaluate import PairScorer, read_pairs_for, tokenize_pairs
from jaxformer.commands.options import Options
from jaxformer.commands.runs import local_parameters, make_translator, open_run


def run(options: Options) -> dict:
    """Score sentence pairs; returns the summed log-probability, in nats.

    With --details stdout has a line of JSON for each pair before: its pieces and the
    log-probability of each.
    """
    this_run = open_run(options)
    sources, references = read_pairs_for(this_run, options)
    mesh, params = local_parameters(this_run, options.checkpoint)
    if options.details and processes.is_first():
        translator = make_translator(this_run, mesh, params)
        scored = translator.score(sources, references)
        for line, forced in enumerate(scored, start=1):
            found = {
                "line": line,
                "log_probability": forced.log_probability,
                **forced._asdict(),
            }
            text = json.dumps(found, ensure_ascii=False)
            sys.stdout.buffer.write(f"{text}\n".encode())
        sys.stdout.buffer.flush()
    pairs = tokenize_pairs(this_run, sources, references)
    sums = PairScorer(this_run, mesh, pairs)(params)
    return {
        "sentences": len(sources),
        "tokens": int(sums["tokens"]),
        "log_probability": -sums["nll"],
    }
