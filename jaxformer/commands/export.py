"""jaxformer export: a trained model as a folder that another program loads."""

import dataclasses
import json
import os
import shutil
from functools import partial
from pathlib import Path

from jaxformer.commands.reproduce import RECORD
from jaxformer.decoding.options import ModelChoice, TranslateOptions, TranslateRequest
from jaxformer.exports.ctranslate2 import write_ctranslate2
from jaxformer.exports.m2m100 import export_m2m100
from jaxformer.exports.marian import export_marian
from jaxformer.exports.marian_npz import export_npz
from jaxformer.exports.model_card import Facts, TextScores, text_name, write_card
from jaxformer.exports.parameters import require_exportable
from jaxformer.models.sequence_model import Parameters, parameter_count, parameter_hash
from jaxformer.runs.config_files import EXPORTED, ConfigRequest
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
        raise InputError("give --format=ctranslate2, huggingface or marian")
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
    kind = "m2m_100" if this.tokenizer.files else "marian"
    write = {
        "ctranslate2": partial(write_ctranslate2, quantization=quantization),
        "huggingface": {"m2m_100": export_m2m100, "marian": export_marian}[kind],
        "marian": export_npz,
    }[format]
    path = output if url_of(output) else Path(os.path.abspath(output))

    def write_all() -> int:
        with new_folder(path) as folder:
            write(folder, this.config, params, this.tokenizer, search)
            if format == "huggingface":
                step = this.workdir.open_checkpoints(this.record).latest_step()
                facts = Facts(
                    pairs_of(this),
                    scores_of(this, params, search),
                    license,
                    imported=this.record.imported,
                    is_trained=bool(step),
                )
                write_card(folder, this.config, params, search, facts, kind=kind)
            size = sum(file.stat().st_size for file in folder.iterdir())
            if format == "ctranslate2":  # which jaxformer can open in place of the run
                (folder / EXPORTED).mkdir()
                for file in this.workdir.config_file, this.workdir.tokenizer_file:
                    shutil.copy(file, folder / EXPORTED)
            return size

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
    return run.workdir.open_corpus(run.record).sizes()


def scores_of(
    run: Run, params: Parameters, options: TranslateOptions
) -> list[TextScores]:
    """Find the scores that training, and reproduce, have recorded of these parameters.

    There are none for another search than that of training.
    """
    search = TranslateOptions(**vars(run.record.config.decoding))
    if dataclasses.replace(search, batch_tokens=options.batch_tokens) != options:
        return []
    data, own = run.config.data, parameter_hash(params)
    found = [
        TextScores(
            text_name(next(iter(data.dev_texts.values())), "dev"),
            "validation",
            {
                "bleu": (line["bleu"], line["signature"]),
                "chrf": (line["chrf"], line["chrf_signature"]),
            },
        )
        for line in read_metrics(run.workdir.path, run.record.run)
        if line.get("parameters") == own
    ][-1:]
    file = run.workdir.path / RECORD
    return [*found, *(_reproduced(file, own) if file.is_file() else ())]


def _reproduced(file: Path, own: str) -> list[TextScores]:
    """The test score that jaxformer reproduce has written, if it is theirs."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["parameters"] != own or any(
            each.startswith(("--", "decoding.")) for each in record["changed"]
        ):
            return []  # of other parameters, another text or another search
        bleu = record["every_bleu"][0]
        scores = {"bleu": (bleu["bleu"], bleu["signature"])}
        return [TextScores(record["text"], "test", scores)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{file} cannot be read ({error!r}); make it again with jaxformer reproduce"
        ) from None
