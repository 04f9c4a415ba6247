"""--mode=reproduce: a published result, theirs beside ours, and what differs.

With --row=NAME it trains that row's config, at full length or for --steps updates,
translates its test text and scores it under every scorer; what came out is kept in the
workdir as reproduced.json. Greater --steps go on from there. Without --row it lists all
rows, with what the runs in and under --workdir reached.
"""

import dataclasses
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxformer import processes, published
from jaxformer.commands import train
from jaxformer.commands.evaluate import evaluate, table
from jaxformer.commands.options import Options
from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import SCORERS, Score
from jaxformer.published import PERPLEXITY, ROWS
from jaxformer.training.log import read_metrics
from jaxformer.workdir import Workdir, direction, installed_versions

logger = logging.getLogger(__name__)

RECORD = "reproduced.json"
# What a run may choose freely without becoming another experiment.
OF_NO_ACCOUNT = {
    "data": ("directory", "data_dir", "download"),
    "batches": ("executor", "row_multiple", "max_shapes"),
    "training": (
        "steps", "tokens_per_microbatch", "rematerialise", "log_every", "eval_every",
        "save_every", "keep", "max_bad_steps", "on_divergence",
    ),
    "decoding": ("batch_tokens",),
}  # fmt: skip


def run(options: Options) -> dict:
    """Reproduce one row, or list all; returns what is also kept or listed."""
    if options.row is None:
        return list_rows(options)
    start = time.monotonic()
    row = published.row(options.row)
    options = dataclasses.replace(options, config=scaled(options))
    if not is_trained(options):
        trained = train.run(options)
        if trained.get("stopped"):
            return {"row": options.row, **trained}
    done = evaluate(options)
    result = {
        "row": options.row,
        "config": row.config,
        "test": row.test,
        "budget": budget(options),
        "ppl": done.scores["ppl"],
        "direction": direction(options.config),
        "every_bleu": [each._asdict() for each in done.every_bleu],
        "sentences": len(done.sources),
        "changed": changed(options),
        "hardware": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "versions": installed_versions(),
    }
    if processes.is_first():
        write_record(options.workdir / RECORD, result)
    logger.info("%s", describe(result))
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def scaled(options: Options) -> dict:
    """The row's config for --steps updates.

    Evaluations and checkpoints come closer together in proportion, so that as many are
    averaged. Everything else stays the paper's: of the learning rate's curve a short
    run sees the beginning.
    """
    config, steps = options.config, options.steps
    if steps is None:
        return config
    training = dict(config["training"])
    share = steps / options.config_file["training"]["steps"]
    saves = training["eval_every"] // training["save_every"]  # for an evaluation
    training["save_every"] = max(1, round(training["save_every"] * share))
    training["eval_every"] = saves * training["save_every"]
    return {**config, "training": {**training, "steps": steps}}


def is_trained(options: Options) -> bool:
    """Whether the workdir has exactly the updates that are asked for."""
    names = (path.name for path in Workdir(options.workdir).checkpoints.glob("*"))
    steps = [int(name) for name in names if name.isdecimal()]
    return bool(steps) and max(steps) == options.config["training"]["steps"]


def budget(options: Options) -> dict[str, Any]:
    """Which part of the published run this one is, in updates and target tokens."""
    theirs, ours = options.config_file["training"], options.config["training"]
    updates = [
        line for line in read_metrics(options.workdir) if line["kind"] == "train"
    ]
    tokens = sum(line["tokens"] or 0 for line in updates)  # null: all were skipped
    all_tokens = theirs["steps"] * theirs["tokens_per_update"]
    return {
        "steps": ours["steps"],
        "published_steps": theirs["steps"],
        "share_of_updates": ours["steps"] / theirs["steps"],
        "target_tokens": tokens,
        "published_target_tokens": all_tokens,
        "share_of_target_tokens": tokens / all_tokens,
        "averaged_checkpoints": ours["average"],
        "updates_between_them": ours["save_every"],
    }


def changed(options: Options) -> list[str]:
    """Name each value that makes the run another experiment than the row's config."""
    ours = {
        **options.config,
        "decoding": {**options.config["decoding"], **options.decoding},
    }
    values = [
        f"{section}.{key}={ours[section][key]!r}, the row has {value!r}"
        for section, theirs in options.config_file.items()
        if section != "mesh"
        for key, value in theirs.items()
        if ours[section][key] != value and key not in OF_NO_ACCOUNT.get(section, ())
    ]
    given = {**options.search, "checkpoint": options.checkpoint}
    given |= {"source": options.source, "reference": options.reference}
    given["split"] = options.split if options.split != "test" else None
    return values + [f"--{k}={v}" for k, v in given.items() if v is not None]


def write_record(path: Path, result: dict) -> None:
    """Write the record, in one step that is complete or not done at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(partial, path)


def ours_under(result: dict, scorer: str) -> float | None:
    """Our number under the scorer of a published one, if ours has it."""
    if scorer == PERPLEXITY:
        return result["ppl"]
    scores = {each["scorer"]: each["bleu"] for each in result["every_bleu"]}
    return scores.get(scorer)


def updates_spent(spent: dict[str, Any]) -> str:
    """Ours and theirs, as in "50 of 100 updates (50 %)"."""
    return (
        f"{spent['steps']:,} of {spent['published_steps']:,} updates "
        f"({100 * spent['share_of_updates']:.3g} %)"
    )


def differences(result: dict) -> list[str]:
    """In words, what keeps ours from being theirs: the budget, then the rest."""
    spent, found = result["budget"], []
    if spent["steps"] != spent["published_steps"]:
        found.append(
            f"budget: {updates_spent(spent)}; checkpoints averaged: "
            f"{spent['averaged_checkpoints']}, {spent['updates_between_them']:,} "
            "updates apart"
        )
    found += [f"config: {each}" for each in result["changed"]]
    return [*found, *published.row(result["row"]).differs]


def describe(result: dict) -> str:
    """Theirs and ours, the part of the budget, every scorer, and what differs."""
    spent, row = result["budget"], published.row(result["row"])
    lines = [
        f"{result['row']}, {row.test}: spent {updates_spent(spent)} and "
        f"{spent['target_tokens']:,.0f} of about "
        f"{spent['published_target_tokens']:,} target tokens "
        f"({100 * spent['share_of_target_tokens']:.3g} %)",
        "  theirs    ours",
    ]
    for figure in row.figures:
        ours = ours_under(result, figure.scorer)
        lines.append(
            f"  {figure.value:6.2f}  {number(ours)}  {figure.scorer}: {figure.who}"
            + (f" ({figure.note})" if figure.note else "")
        )
    bleus = [Score(**each) for each in result["every_bleu"]]
    lines.append(f"ours under every scorer, {result['direction']}:{table(bleus)}")
    return "\n".join([*lines, *(f"differs: {each}" for each in differences(result))])


def number(value: float | None) -> str:
    """Six places wide; a dash for none."""
    return f"{value:6.2f}" if value is not None else "     -"


# All rows -------------------------------------------------------------------------


def list_rows(options: Options) -> dict:
    """Theirs and ours, row by row; with --output=FILE.html as a page, too."""
    page_file = Path(options.output) if options.output else None
    if page_file is not None and page_file.suffix != ".html":
        raise InputError(f"--output={page_file} is not called .html: give such a name")
    found = records(options.workdir)
    rows = [entry(name, found) for name in ROWS]
    logger.info("%s", "\n".join(itertools.chain.from_iterable(map(as_lines, rows))))
    for each in published.NOT_COMPARABLE:
        logger.info("comparable with nothing here: %s", each)
    result = {"rows": rows, "runs": len(found)}
    if page_file is not None and processes.is_first():
        from jaxformer.reports import page

        values = {"rows": rows, "others": published.NOT_COMPARABLE, "scorers": SCORERS}
        page.write(page_file, page.render("comparison.html", **values))
        result["output"] = str(page_file)
    return result


def records(folder: Path | None) -> dict[str, dict]:
    """What runs in `folder`, and in the folders in it, have reproduced, by path.

    Raises InputError for a record that cannot be read.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give one with runs in it")
    found = {}
    for file in sorted([*folder.glob(RECORD), *folder.glob(f"*/{RECORD}")]):
        try:
            result = json.loads(file.read_text())
            differences(result)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} cannot be read ({error!r}); make it again with --row"
            ) from None
        found[str(file.parent)] = result
    return found


def entry(name: str, found: dict[str, dict]) -> dict[str, Any]:
    """One row for the list: each figure with ours beside it, and what differs."""
    row = published.row(name)
    ours = {path: each for path, each in found.items() if each["row"] == name}
    return {
        "row": name,
        "config": row.config,
        "test": row.test,
        "figures": [
            {
                **figure._asdict(),
                "ours": [ours_under(each, figure.scorer) for each in ours.values()],
            }
            for figure in row.figures
        ],
        "runs": [
            {
                "workdir": path,
                "budget": each["budget"],
                "every_bleu": each["every_bleu"],
                "ppl": each["ppl"],
                "differs": differences(each),
            }
            for path, each in ours.items()
        ],
        "differs": list(row.differs),
    }


def as_lines(row: dict[str, Any]) -> Iterator[str]:
    """A row of the list for a terminal."""
    yield f"{row['row']}  {row['test']}, config {row['config']}"
    for figure in row["figures"]:
        ours = "  ".join(map(number, figure["ours"])) or number(None)
        note = f" ({figure['note']})" if figure["note"] else ""
        yield (
            f"  theirs {figure['value']:6.2f}  ours {ours}  {figure['scorer']}: "
            f"{figure['who']}{note}"
        )
    for run_ in row["runs"]:
        yield f"  ours is {run_['workdir']}: {updates_spent(run_['budget'])}"
        yield from (f"    differs: {each}" for each in run_["differs"])
