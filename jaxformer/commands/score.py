"""jaxformer score: the log-probability that a model gives to translations."""

import json as json_format
from pathlib import Path

from jaxformer.corpus.store import TokenizedCorpus
from jaxformer.decoding.forced import Side, TeacherForcing
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.decoding.parts import require_numbers
from jaxformer.evaluation.evaluator import PairScorer
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.run import keep_compiled, load_parameters, open_run
from jaxformer.runs.texts import of_split, read_text, require_one_target
from jaxformer.system.errors import InputError
from jaxformer.system.first import print_lines
from jaxformer.text.lines import read_lines
from jaxformer.text.ragged import Ragged
from jaxformer.training.sharding import batch_sharding, local_mesh

Pair = tuple[dict[str, int], Side, Side]  # its line (and rank), and both sides


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    json: bool,
    source: Path | None,
    reference: Path | None,
    split: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Sum the log-probability of sentence pairs, in nats.

    A `reference` named .jsonl holds what jaxformer translate --json has found: all its
    hypotheses are scored, by their pieces. With `json` standard output first has a
    line of JSON for each pair: its pieces and the log-probability of each.
    """
    keep_compiled()
    this = open_run(workdir, config)
    if reference is not None and reference.suffix == ".jsonl":
        if source is not None or options.tag:
            raise InputError(
                f"{reference} holds its sources; leave out --source and --tag"
            )
        given = read_found(reference)
        this = of_split(this, split) if "/" in split else this
        how = "choose a corpus by --split=NAME/test"
        require_one_target(this, f"{reference} does not say to which; {how}")
    else:
        this, text = read_text(this, source, reference, split, options)
        pairs = enumerate(zip(*text, strict=True), start=1)
        given = [({"line": line}, *pair) for line, pair in pairs]
    params = load_parameters(this, models.checkpoint)
    batch_tokens = this.config.decoding.batch_tokens
    rows = batch_sharding(local_mesh())
    forcing = TeacherForcing(
        this.model, this.tokenizer, batch_tokens=batch_tokens, rows=rows
    )
    names, *sides = zip(*given, strict=True)
    sums = {"tokens": 0, "nll": -0.0}
    tag = this.tokenizer.target_tag  # given, so it is not scored
    if json:
        for name, score in zip(names, forcing.score(params, *sides), strict=True):
            require_numbers(score.log_probability)
            found = {**name, "log_probability": score.log_probability}
            # Each part, which ends with the last piece, begins with a tag.
            tags = score.pieces.count(score.pieces[-1]) if tag and score.pieces else 0
            sums["tokens"] += len(score.pieces) - tags
            sums["nll"] -= score.log_probability
            found |= score._asdict()
            print_lines([json_format.dumps(found, ensure_ascii=False)])
    elif parts := [part for pair in forcing.pairs(*sides) for part in pair]:
        tokens = TokenizedCorpus(*map(Ragged.of, zip(*parts, strict=True)))
        scorer = PairScorer(this.model, this.config, tokens, is_tagged=bool(tag))
        sums = scorer(params)
        require_numbers(sums["nll"])
    return {
        "sentences": len(given),
        "tokens": int(sums["tokens"]),
        "log_probability": -sums["nll"],
    }


def read_found(path: Path) -> list[Pair]:
    """Read the pieces of all hypotheses of a file of jaxformer translate --json."""
    found = []
    for number, text in enumerate(read_lines(path), start=1):
        try:
            for rank, each in enumerate(json_format.loads(text)["hypotheses"], start=1):
                sides = [*each["source_pieces"]], [*each["pieces"]]
                "".join(map("".join, sides))  # TypeError unless they are strings
                found.append(({"line": number, "rank": rank}, *sides))
        except (ValueError, LookupError, TypeError, RecursionError):
            raise InputError(
                f"{path}, line {number} is no line of jaxformer translate --json"
            ) from None
    if not found:
        raise InputError(f"{path} has no hypothesis of jaxformer translate --json")
    return found
