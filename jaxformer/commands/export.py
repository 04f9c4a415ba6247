"""--mode=export: a trained model as a folder that another program loads."""

import dataclasses
import json
import os
from functools import partial
from pathlib import Path

from jaxformer.commands.reproduce import CHOOSING, RECORD
from jaxformer.config.sections import Config, TrainingConfig
from jaxformer.decoding.options import (
    ModelChoice,
    TranslateOptions,
    TranslateRequest,
)
from jaxformer.exports.ctranslate2 import write_ctranslate2
from jaxformer.exports.marian import export_marian
from jaxformer.exports.model_card import Facts, TextScores, text_name, write_card
from jaxformer.exports.parameters import require_exportable
from jaxformer.models.sequence_model import parameter_count
from jaxformer.runs.config_files import ConfigRequest
from jaxformer.runs.run import Run, open_run, read_parameters
from jaxformer.system.errors import InputError
from jaxformer.system.files import new_folder, url_of
from jaxformer.system.first import once
from jaxformer.training.log import read_metrics


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    format: str | None,
    quantization: str,
    output: Path | None,
    license: str | None,
    models: ModelChoice,
    options: TranslateRequest,
) -> dict:
    """Write the model of a workdir for a program into the new folder `output`.

    Returns path, format and sizes.
    """
    if format is None:
        raise InputError("give --format=ctranslate2 or huggingface")
    if output is None:
        raise InputError("--output is missing; give the new folder to write")
    if format != "ctranslate2" and quantization != "float32":
        raise InputError(
            f"--quantization={quantization} is not for --format={format}, whose "
            "weights are float32; leave it out"
        )
    if license is not None and format != "huggingface":
        raise InputError(
            f"--license={license} is for the card of --format=huggingface; leave it out"
        )
    this = open_run(workdir, config)
    require_exportable(this.config.model)
    params = read_parameters(this, models.checkpoint)
    search = TranslateOptions(**{**vars(this.config.decoding), **options.given})
    write = {
        "ctranslate2": partial(write_ctranslate2, quantization=quantization),
        "huggingface": export_marian,
    }[format]
    path = output if url_of(output) else Path(os.path.abspath(output))

    def write_all() -> int:
        with new_folder(path) as folder:
            write(folder, this.config, params, this.tokenizer, search)
            if format == "huggingface":
                scores = scores_of(this, models.checkpoint, search)
                facts = Facts(pairs_of(this), scores, license)
                write_card(folder, this.config, params, search, facts)
            return sum(file.stat().st_size for file in folder.iterdir())

    size = once(write_all)
    return {
        "format": format,
        "output": str(path),
        "quantization": quantization,
        "parameters": parameter_count(params),
        "bytes": size,
    }


def pairs_of(run: Run) -> dict[str, int]:
    """The training pairs of each corpus; none for an imported run."""
    if not run.workdir.corpus.exists():
        return {}
    return run.workdir.open_corpus().sizes()


def scores_of(
    run: Run, checkpoint: str | None, options: TranslateOptions
) -> list[TextScores]:
    """Find recorded scores of the parameters that `checkpoint` chooses.

    Training records those of each validation, and of the default choice at the end.
    --mode=reproduce records a score of the test text. There are none if the keys of the
    default choice, or the search, have other values than in training.
    """
    folder, data = run.workdir.path, run.config.data
    step = run.workdir.open_checkpoints().latest_step()
    kind = "final" if checkpoint is None else "eval"
    if (checkpoint or "latest") != "latest":
        step = int(checkpoint) if checkpoint.isdecimal() else None
    if kind == "eval" and run.config.training.ema_decay is not None:
        step = None  # validation scores the average, and a checkpoint is its parameters
    recorded = run.record.config
    search = TranslateOptions(**vars(recorded.decoding))
    if dataclasses.replace(search, batch_tokens=options.batch_tokens) != options:
        return []
    is_same = choice_of(recorded.training) == choice_of(run.config.training)
    if kind == "final" and not is_same:
        return []
    found = [
        TextScores(
            text_name(next(iter(data.dev_texts.values())), "dev"),
            "validation",
            {
                "bleu": (line["bleu"], line["signature"]),
                "chrf": (line["chrf"], line["chrf_signature"]),
            },
        )
        for line in read_metrics(folder)
        if (line["kind"], line["step"]) == (kind, step)
    ]
    if kind == "final" and (folder / RECORD).is_file():
        found += _reproduced(folder / RECORD, run.config, step)
    return found


def choice_of(config: TrainingConfig) -> tuple:
    """The keys that choose the parameters of a run."""
    return tuple(getattr(config, key) for key in CHOOSING)


def _reproduced(file: Path, config: Config, step: int | None) -> list[TextScores]:
    """The score of the test text that --mode=reproduce has written for a step."""
    name = text_name(config.data, "test")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        others = "--", "decoding."  # another text or search
        has_others = any(each.startswith(others) for each in record["changed"])
        budget = record["budget"]["steps"], record["budget"]["averaged_checkpoints"]
        is_same = budget == (step, config.training.average)
        if has_others or not is_same or record.get("text", name) != name:
            return []
        bleu = record["every_bleu"][0]
        scores = {"bleu": (bleu["bleu"], bleu["signature"])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{file} cannot be read ({error!r}); make it again with --mode=reproduce"
        ) from None
    return [TextScores(name, "test", scores)]
