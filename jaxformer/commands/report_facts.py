"""What a workdir tells about a run, for --mode=report: log, corpus, batches, scores."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.commands.evaluate import PairScorer, tokenize_pairs
from jaxformer.commands.options import Options
from jaxformer.commands.runs import (
    Run,
    local_parameters,
    make_translator,
    plan_batches,
    texts,
    translate,
)
from jaxformer.data.corpus import open_prepared
from jaxformer.data.plan import Plan
from jaxformer.data.store import TokenizedCorpus
from jaxformer.decoding.translate import Wishes
from jaxformer.errors import InputError
from jaxformer.models.sequence_model import parameter_count
from jaxformer.reports.facts import Facts, Text, Translated
from jaxformer.training.log import averages, read_metrics
from jaxformer.workdir import direction, installed_versions

LAYOUTS = ("buckets", "packed")


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
    there = len(list(this_run.workdir.checkpoints.glob("[0-9]*")))
    count = min(this_run.training.average, there)
    return f"average of the last {count} checkpoints" if count > 1 else "the last"


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
    return parameter_count(jax.eval_shape(this_run.model.init, jax.random.key(0)))


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
