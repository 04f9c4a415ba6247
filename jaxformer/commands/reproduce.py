"""--mode=reproduce: a published result, theirs beside ours, and what differs.

With --row=NAME it trains that row's config, at full length or for --steps updates,
translates its test text and scores it under every scorer; the result is kept in the
workdir as reproduced.json. A larger --steps continues the run. Without --row it lists
all rows, with the results in and under --workdir.
"""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import jax

from jaxformer import processes, published
from jaxformer.commands import train
from jaxformer.commands.evaluate import evaluate
from jaxformer.commands.options import Options
from jaxformer.errors import InputError
from jaxformer.files import write_atomically
from jaxformer.reports import reproduction
from jaxformer.workdir import Workdir, direction, installed_versions

logger = logging.getLogger(__name__)

RECORD = "reproduced.json"


def run(options: Options) -> dict:
    """Reproduce one row, or list all; returns the result, or the list."""
    if options.row is None:
        return list_rows(options)
    start = time.monotonic()
    options = replace(options, config=scale(options))
    theirs, ours = options.config_file, options.config
    steps = [path.name for path in Workdir(options.workdir).checkpoints.glob("[0-9]*")]
    if max(map(int, steps), default=0) != ours["training"]["steps"]:
        trained = train.run(options)
        if trained.get("stopped"):
            return {"row": options.row, **trained}
    done = evaluate(options)
    ours = {**ours, "decoding": {**ours["decoding"], **options.decoding}}
    flags = {**options.search, "split": options.split, "source": options.source}
    flags |= {"reference": options.reference, "checkpoint": options.checkpoint}
    changed = reproduction.changed_values(ours, theirs) + [
        f"--{name}={value}"
        for name, value in flags.items()
        if value is not None and (name, value) != ("split", "test")
    ]
    budget = reproduction.measure_budget(ours, theirs)
    result = {
        "row": options.row,
        "budget": budget,
        "ppl": done.scores["ppl"],
        "direction": direction(ours),
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "changed": changed,
        "differs": reproduction.differences(options.row, budget, changed),
        "hardware": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": installed_versions(),
    }
    if processes.is_first():
        write_atomically(options.workdir / RECORD, json.dumps(result, indent=2) + "\n")
    row = reproduction.beside_ours(options.row, {str(options.workdir): result})
    logger.info("%s", reproduction.describe(row))
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def scale(options: Options) -> dict:
    """Return the row's config for --steps updates, with as many checkpoints to average.

    The learning rate stays that of the full run.
    """
    if options.steps is None:
        return options.config
    training = dict(options.config["training"])
    share = options.steps / options.config_file["training"]["steps"]
    saves = training["eval_every"] // training["save_every"]  # for each evaluation
    training["save_every"] = max(1, round(training["save_every"] * share))
    training["eval_every"] = saves * training["save_every"]
    return {**options.config, "training": {**training, "steps": options.steps}}


def list_rows(options: Options) -> dict:
    """List all published rows with our results; with --output=FILE.html as a page.

    Raises InputError for a folder that does not exist and a file that is not a result.
    """
    folder, results = options.workdir, {}
    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give one with runs in it")
    files = [*folder.glob(RECORD), *folder.glob(f"*/{RECORD}")] if folder else []
    for file in sorted(files):
        try:
            results[str(file.parent)] = result = json.loads(file.read_text())
            reproduction.describe(reproduction.beside_ours(result["row"], results))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} cannot be read ({error!r}); make it again with --row"
            ) from None
    rows = [reproduction.beside_ours(name, results) for name in published.ROWS]
    logger.info("%s", "\n".join(map(reproduction.describe, rows)))
    for each in published.NOT_COMPARABLE:
        logger.info("comparable with nothing here: %s", each)
    if options.output is not None and processes.is_first():
        reproduction.write_page(rows, Path(options.output))
    return {"rows": rows, "runs": len(results), "output": options.output}
