"""--mode=report: one page about a run, or about several side by side, and its data.

Each run translates the text once, as --mode=evaluate does; its log, corpus, batches and
config are read from its workdir. A run without a checkpoint is reported without scores.
"""

import dataclasses
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import processes
from jaxformer.batch import Batch
from jaxformer.data.corpus import open_prepared
from jaxformer.data.plan import Plan
from jaxformer.data.store import TokenizedCorpus
from jaxformer.decoding.translate import Wishes
from jaxformer.errors import InputError
from jaxformer.modes.evaluate import PairScorer, read_pairs_for, tokenize_pairs
from jaxformer.modes.options import Options
from jaxformer.modes.runs import (
    Run,
    keep_compiled,
    local_parameters,
    make_translator,
    open_run,
    plan_batches,
    texts,
    translate,
)
from jaxformer.reports import run as report
from jaxformer.reports.run import Facts, Text, Translated
from jaxformer.training.log import averages, read_metrics
from jaxformer.workdir import direction, installed_versions

logger = logging.getLogger(__name__)

LAYOUTS = ("buckets", "packed")


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
    names = report.unique_names([folder.resolve() for folder in folders])
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


def output_for(options: Options) -> Path:
    """Where the page goes. Raises InputError for a name that no page can have."""
    if options.output is None:
        return options.workdir / "report.html"
    output = Path(options.output)
    if output.suffix not in (".html", ".htm") or output.is_dir():
        raise InputError(
            f"--output={output} is no name of a page; give one that ends in .html"
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


# What a run tells -----------------------------------------------------------------


def translate_text(this_run: Run, text: Text, options: Options) -> Translated:
    """Translate the text and score its references."""
    mesh, params = local_parameters(this_run, options.checkpoint)
    translator = make_translator(this_run, mesh, params, Wishes(search=options.search))
    pairs = tokenize_pairs(this_run, text.sources, text.references)
    sums = averages(PairScorer(this_run, mesh, pairs)(params))
    return Translated(
        texts(translate(translator, text.sources)),
        sums["nll"],
        sums["ppl"],
        name_of_parameters(this_run, options.checkpoint),
        translator.attention,
    )


def name_of_parameters(this_run: Run, which: str | None) -> str:
    """Say which parameters translate, as --checkpoint chooses them."""
    if which is not None:
        return which
    if this_run.training.ema_decay is not None:
        return "moving average"
    return f"average:{this_run.training.average}"


def describe(this_run: Run, name: str, translated: Translated | None) -> Facts:
    """What the workdir tells about a run."""
    record = this_run.workdir.read_record()
    corpus, report = read_corpus(this_run)
    return Facts(
        name=name,
        config=this_run.config,
        direction=direction(this_run.config),
        tokenizer=this_run.tokenizer.hash,
        vocabulary=this_run.tokenizer.vocab_size,
        parameters=count_parameters(this_run),
        metrics=read_metrics(this_run.workdir.path),
        corpus=report,
        batches=None if corpus is None else describe_batches(this_run, corpus),
        versions=record.get("versions", {}),
        translated=translated,
    )


def read_corpus(this_run: Run) -> tuple[TokenizedCorpus | None, dict | None]:
    """The training text of a workdir and its report; None where there is none."""
    if not (this_run.workdir.path / "corpus").exists():  # of an imported model
        return None, None
    prepared = open_prepared(this_run.workdir.path)
    return prepared.train, prepared.report


def count_parameters(this_run: Run) -> int:
    """Numbers that training changes; none is drawn for it."""
    row = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = jax.eval_shape(
        lambda batch: this_run.model.init(jax.random.key(0), batch, train=False),
        Batch(row, row, row, row),
    )
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def describe_batches(this_run: Run, corpus: TokenizedCorpus) -> dict[str, Any]:
    """Layouts, the run's and the others, and the run's shapes, with their padding.

    `padding_share` is the share of places, of source and target, that hold no token.
    """
    lengths = {
        "source_lengths": corpus.source.lengths,
        "target_lengths": corpus.target.lengths,
    }
    config = this_run.config
    used = config["batches"]["layout"]
    layouts = []
    for layout in LAYOUTS:
        batches = {**config["batches"], "layout": layout}
        try:
            plan = plan_batches({**config, "batches": batches}, **lengths)
        except InputError:  # a sentence is longer than rows of that layout
            continue
        layouts.append(
            {
                "layout": layout,
                "used": layout == used,
                "padding_share": 1 - plan.real_token_share,
                "updates_per_epoch": plan.updates_per_epoch,
                "shapes": len(plan.shapes),
            }
        )
        if layout == used:
            shapes = describe_shapes(plan, seed=this_run.training.seed, **lengths)
    return {"layouts": layouts, "shapes": shapes}


def describe_shapes(
    plan: Plan, *, seed: int, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> list[dict[str, Any]]:
    """Each shape of a plan: what an epoch puts into it, and its share of padding."""
    epoch = plan.epoch(seed, 0)
    tokens = np.concatenate(
        [[0], np.cumsum((source_lengths + target_lengths)[epoch.examples])]
    )
    real = np.diff(tokens[epoch.starts])  # of each microbatch
    pairs = np.diff(epoch.starts)
    found = []
    for place, shape in enumerate(plan.shapes):
        mine = epoch.shape_of == place
        places = mine.sum() * shape.rows * (shape.source_length + shape.target_length)
        found.append(
            {
                **shape._asdict(),
                "microbatches": int(mine.sum()),
                "pairs": int(pairs[mine].sum()),
                "padding_share": float(1 - real[mine].sum() / max(places, 1)),
            }
        )
    return found


def environment() -> dict[str, Any]:
    """The machine and the packages that make the report; no names of hosts."""
    device = jax.local_devices()[0]
    return {
        "versions": installed_versions(),
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": read_processor(),
        "cores": os.cpu_count(),
        "devices": f"{jax.device_count()} x {device.device_kind}",
    }


def read_processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor, where Linux tells it, else its kind."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
