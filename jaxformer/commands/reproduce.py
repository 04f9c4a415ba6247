"""jaxformer reproduce: a published result, theirs beside ours, and what differs.

--row=NAME trains that row's config, at full length or for training.steps updates, and
scores its test text under every scorer; reproduced.json in the run folder keeps the
result. A larger training.steps continues the run. Without --row all rows are listed,
with the results in and under the run folder.
"""

import json
import logging
from pathlib import Path

import jax

from jaxformer.commands import train
from jaxformer.commands.evaluate import evaluate
from jaxformer.decoding.options import ModelChoice, TranslateRequest
from jaxformer.evaluation import published
from jaxformer.evaluation.metrics import SCORERS
from jaxformer.exports.model_card import text_name
from jaxformer.models.sequence_model import parameter_hash
from jaxformer.reports import reproduction
from jaxformer.runs.config_files import ConfigRequest, Values
from jaxformer.runs.run import open_run
from jaxformer.runs.texts import read_text
from jaxformer.runs.workdir import Workdir, installed_versions
from jaxformer.system.errors import InputError
from jaxformer.system.files import entries, near_path, require_local, require_output
from jaxformer.system.first import once, write_file
from jaxformer.training.log import read_metrics

logger = logging.getLogger(__name__)

RECORD = "reproduced.json"
_EVERY = "save_every", "eval_every"
# The keys of `training` that choose the parameters of a run.
CHOOSING = "average", "ema_decay", "patience", "best_by"


def run(
    *,
    config: ConfigRequest,
    workdir: Path | None,
    row: str | None,
    output: Path | None,
    source: Path | None,
    reference: Path | None,
    split: str,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Reproduce one row and return the result, or list all rows."""
    flags = {"checkpoint": models.checkpoint, "choose": models.choose, **options.given}
    if row is None:
        keys = {f"config.{key}": value for key, value in config.overrides}
        given = {"source": source, "reference": reference, **flags, **keys}
        for name, value in {**given, "config": config.values}.items():
            if value is not None:
                raise InputError(f"--{name} is for one row; add --row=NAME")
        return list_rows(workdir, output)
    if output is not None:
        raise InputError("--output is a page of all rows; leave out --row or --output")
    if workdir is None:
        raise InputError("the run is missing; give the folder to train the row in")
    theirs = config.values
    config = ConfigRequest(scale(config.resolve(None), theirs))
    texts = {"source": source, "reference": reference, "split": split}
    folder = Workdir(workdir)
    with folder.owned():  # or another process might train it on meanwhile
        return reproduce(row, folder.path, config, theirs, texts, models, options)


def reproduce(
    row: str,
    workdir: Path,
    config: ConfigRequest,
    theirs: Values,
    texts: dict[str, Path | str | None],
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Train a row with `config` and score it; `theirs` is the published config."""
    ours, folder = config.values, Workdir(workdir)
    recorded = folder.recorded()
    saved, steps = folder.open_checkpoints(recorded), ours["training"]["steps"]
    lines = once(lambda: read_metrics(workdir, recorded and recorded.run))
    finals = [each["step"] for each in lines if each["kind"] == "final"]
    if saved.latest_step() != steps or steps not in finals:
        trained = train.run(config=config, workdir=workdir)
        if trained.get("stopped"):
            return {"row": row, **trained}
    this = open_run(workdir, config)
    this, text = read_text(this, **texts, options=options)
    done, translator = evaluate(this, text, models, options.resolve(this.config))
    # A run that was trained before may have other values of keys that may change. The
    # record has those of training, and the command has those of scoring.
    scored = {"training": CHOOSING, "data": ("test",)}
    record = folder.read_record().config.as_dict()
    record["decoding"] = ours["decoding"]
    for name, keys in scored.items():
        record[name] |= {key: ours[name][key] for key in keys}
    # The record has lists where a config file has tuples.
    ours, theirs = (json.loads(json.dumps(each)) for each in (record, theirs))
    flags = {"checkpoint": models.checkpoint, "choose": models.choose}
    flags |= {**options.given, **texts}
    changed = reproduction.changed_values(ours, theirs) + [
        f"--{name}={value}"
        for name, value in flags.items()
        if value is not None and (name, value) != ("split", "test")
    ]
    training, published_steps = ours["training"], theirs["training"]["steps"]
    # Patience may end a run early, and scores its best step.
    made = folder.open_checkpoints(this.record).latest_step()
    averaged = training["average"] if training["patience"] is None else 1
    budget = {
        "steps": made,
        "published_steps": published_steps,
        "share_of_updates": made / published_steps,
        "averaged_checkpoints": averaged,
        "updates_between_them": training["save_every"],
    }
    result = {
        "row": row,
        "parameters": parameter_hash(translator.params[0]),
        "text": text_name(this.config.data, "test"),
        "budget": budget,
        "ppl": done.scores["ppl"],
        "direction": this.config.data.direction,
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "changed": changed,
        "differs": reproduction.differences(row, budget, changed),
        "hardware": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": installed_versions(),
    }
    write_file(workdir / RECORD, json.dumps(result, indent=2) + "\n")
    found = reproduction.beside_ours(row, {str(workdir): result})
    logger.info(reproduction.describe(found))
    return result


def scale(ours: Values, theirs: Values) -> Values:
    """Scale the updates between checkpoints to `training.steps`, unless they are given.

    There are then equally many checkpoints to average. The learning rate schedule is
    unchanged.
    """
    training, full = dict(ours["training"]), theirs["training"]
    share = training["steps"] / full["steps"]
    if share == 1 or any(training[key] != full[key] for key in _EVERY):
        return ours
    saves = training["eval_every"] // training["save_every"]  # for each evaluation
    training["save_every"] = max(1, round(training["save_every"] * share))
    training["eval_every"] = saves * training["save_every"]
    return {**ours, "training": training}


def list_rows(folder: Path | None, output: Path | None) -> dict:
    """List all published rows with our results; `output` gets them as a page."""
    results = {}
    require_output(output, [".html"])
    if folder is not None:
        require_local(folder)
        if not folder.is_dir():
            hint = near_path(folder, "give one with runs in it")
            raise InputError(f"there is no folder {folder}{hint}")
    folders = [folder, *entries(folder)] if folder else []
    for file in [each / RECORD for each in folders if (each / RECORD).is_file()]:
        try:
            results[str(file.parent)] = result = json.loads(file.read_text())
            reproduction.describe(reproduction.beside_ours(result["row"], results))
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise InputError(
                f"{file} cannot be read ({error!r}); make it again with --row"
            ) from None
    rows = [reproduction.beside_ours(name, results) for name in published.ROWS]
    logger.info("\n".join(map(reproduction.describe, rows)))
    for each in published.NOT_COMPARABLE:
        logger.info("not comparable with any row: %s", each)
    if output is not None:
        from jaxformer.reports import page  # its packages are optional

        values = {"rows": rows, "others": published.NOT_COMPARABLE, "scorers": SCORERS}
        content = page.render("comparison.html", **values)
        write_file(output, content)
    return {"rows": rows, "runs": len(results), "output": output and str(output)}
