"""--mode=score: the log-probability that a model gives to translations."""

from jaxformer.modes.evaluate import PairScorer, read_pairs_for, tokenize_pairs
from jaxformer.modes.options import Options
from jaxformer.modes.runs import local_parameters, open_run


def run(options: Options) -> dict:
    """Score sentence pairs; returns the summed log-probability, in nats."""
    this_run = open_run(options)
    sources, references = read_pairs_for(this_run, options)
    mesh, params = local_parameters(this_run, options.checkpoint)
    pairs = tokenize_pairs(this_run, sources, references)
    sums = PairScorer(this_run, mesh, pairs)(params)
    return {
        "sentences": len(sources),
        "tokens": int(sums["tokens"]),
        "log_probability": -sums["nll"],
    }
