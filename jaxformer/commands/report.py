"""--mode=report: one page about a run, or about several side by side, and its data.

Each run translates the text once, as --mode=evaluate does; its log, corpus, batches and
config are read from its workdir. A run without a checkpoint is reported without scores.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.evaluate import read_pairs_for
from jaxformer.commands.options import Options
from jaxformer.commands.report_facts import describe, environment, translate_text
from jaxformer.commands.runs import (
    Run,
    keep_compiled,
    open_run,
)
from jaxformer.errors import InputError
from jaxformer.reports import run as report
from jaxformer.reports.facts import Text
from jaxformer.workdir import direction

logger = logging.getLogger(__name__)


def run(options: Options) -> dict | None:
    """Write the page to --output and its data beside it; returns where, and BLEU.

    By default the page is report.html in the workdir. Of several processes all
    translate and the first one writes. Raises InputError for workdirs that cannot be
    read or compared, and for an --output that cannot be written.
    """
    start = time.monotonic()
    if not processes.are_several():
        keep_compiled()
    folders = compared_folders(options)
    output = output_for(options)
    names = unique_names([folder.absolute() for folder in folders])
    runs = [
        open_run(dataclasses.replace(options, workdir=folder, config=config))
        for folder, config in zip(
            folders, [options.config, *[None] * (len(folders) - 1)], strict=True
        )
    ]
    require_one_direction(runs, names)
    text = common_text(runs, names, options)
    facts = []
    for name, this_run in zip(names, runs, strict=True):
        logger.info("report: %s", name)
        translated = None
        if text is not None and this_run.workdir.has_checkpoints():
            translated = translate_text(this_run, text, options)
        facts.append(describe(this_run, name, translated))
    if not processes.is_first():
        return None
    data = report.gather(
        facts, text, examples=options.examples, environment=environment()
    )
    beside = report.write(data, output)
    scores = data["runs"][0]["scores"]
    bleu = scores["bleu"] if scores else {"score": None, "signature": None}
    return {
        "output": str(output),
        "json": str(beside),
        "bleu": bleu["score"],
        "signature": bleu["signature"],
        "direction": data["runs"][0]["direction"],
        "sentences": data["text"]["sentences"] if data["text"] else 0,
        "seconds": round(time.monotonic() - start, 1),
    }


# What is compared -----------------------------------------------------------------


def compared_folders(options: Options) -> list[Path]:
    """--workdir and those of --compare. Raises InputError if one is there twice."""
    others = [each.strip() for each in (options.compare or "").split(",")]
    folders = [options.workdir, *(Path(each) for each in others if each)]
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise InputError(
                f"{folder} is given twice by --workdir and --compare; a report "
                "compares different runs"
            )
        seen.add(folder.resolve())
    return folders


def unique_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of different paths that tell them apart."""
    depth = 1
    while True:
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
        depth += 1


def output_for(options: Options) -> Path:
    """Where the page goes. Raises InputError for a place that no page can have.

    At once: what comes before it is written may take an hour.
    """
    if options.output is None:
        output = options.workdir / "report.html"
    else:
        output = Path(options.output)
        if output.suffix not in (".html", ".htm") or output.is_dir():
            raise InputError(
                f"--output={output} is no name of a page; give one that ends in .html"
            )
    above = next(folder for folder in output.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(
            f"{output} cannot be written, because of {above}; choose another --output"
        )
    return output


def require_one_direction(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Raise InputError if the runs translate from or into different languages."""
    for this_run, name in zip(runs, names, strict=True):
        if direction(this_run.config) != direction(runs[0].config):
            raise InputError(
                f"{name} translates {direction(this_run.config)} and {names[0]} "
                f"{direction(runs[0].config)}; compare runs of one direction"
            )


def common_text(
    runs: Sequence[Run], names: Sequence[str], options: Options
) -> Text | None:
    """The text to translate; None if no run has a checkpoint.

    --source and --reference, else --split, else the validation text where the config
    names no test text. Raises InputError if it is not the same for all runs.
    """
    able = [
        (this_run, name)
        for this_run, name in zip(runs, names, strict=True)
        if this_run.workdir.has_checkpoints()
    ]
    if not able:
        return None
    first, first_name = able[0]
    if options.source is None and options.split == "test" and not has_test(first):
        logger.info("report: the config names no test text; using the validation text")
        options = dataclasses.replace(options, split="dev")
    pairs = read_pairs_for(first, options)
    for other, name in able[1:]:
        require_same_text(pairs, read_pairs_for(other, options), first_name, name)
    return Text(name_of_text(first, options), *pairs)


def has_test(this_run: Run) -> bool:
    """Whether the config says where a test text is."""
    data = this_run.config["data"]
    if data["corpus"].startswith("builtin"):
        return True
    return bool(data["test_source"] if data["corpus"] == "files" else data["test"])


def require_same_text(
    ours: tuple[list[str], list[str]],
    theirs: tuple[list[str], list[str]],
    our_name: str,
    their_name: str,
) -> None:
    """Raise InputError that names the first difference of two texts."""
    hint = "give both one text by --source and --reference"
    if len(ours[0]) != len(theirs[0]):
        raise InputError(
            f"the text of {our_name} has {len(ours[0])} sentences and that of "
            f"{their_name} {len(theirs[0])}; {hint}"
        )
    for side, mine, other in zip(("source", "reference"), ours, theirs, strict=True):
        for line, pair in enumerate(zip(mine, other, strict=True), start=1):
            if pair[0] != pair[1]:
                raise InputError(
                    f"{our_name} and {their_name} have different texts, from line "
                    f"{line} of the {side} on; {hint}"
                )


def name_of_text(this_run: Run, options: Options) -> str:
    """What the report calls the text; without folders."""
    if options.source is not None:
        return Path(options.source).name
    data, split = this_run.config["data"], options.split
    if split == "dev":
        return "the validation text"
    stem = Path(str(data.get(split) or data.get(f"{split}_source") or "")).name
    return f"{split} ({stem})" if stem not in ("", split) else split
