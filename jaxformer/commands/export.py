"""--mode=export: a trained model as a folder that another program loads."""

import os
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import Run, open_run, read_parameters
from jaxformer.decoding.options import SearchOptions
from jaxformer.errors import InputError
from jaxformer.export.ctranslate2 import write_ctranslate2
from jaxformer.export.marian import export_marian
from jaxformer.export.stablehlo import write_stablehlo
from jaxformer.files import new_folder
from jaxformer.training.sharding import parameter_count
from jaxformer.training.step import Parameters
from jaxformer.workdir import direction

FORMATS = ("ctranslate2", "huggingface", "stablehlo")
SOURCE_LENGTH = 64  # pieces of a StableHLO program's sources, by default


def run(options: Options) -> dict:
    """Write the model of a workdir for --format into the new folder --output.

    Of several processes the first one writes. Returns where, what and how large.
    """
    if options.format not in FORMATS:
        raise InputError(f"give --format, for which program: {', '.join(FORMATS)}")
    if not options.output:
        raise InputError("--output is missing; give the new folder to write")
    if options.format != "ctranslate2" and options.quantization != "float32":
        raise InputError(
            f"--quantization={options.quantization} is not for --format="
            f"{options.format}, whose weights are float32; leave it out"
        )
    exported = open_run(options)
    params = read_parameters(exported, options.checkpoint)
    output = Path(os.path.abspath(options.output))
    size, fault = 0, None
    if processes.is_first():
        try:
            with new_folder(output) as folder:
                _write(folder, exported, params, options)
                size = sum(file.stat().st_size for file in folder.iterdir())
        except InputError as error:
            fault = str(error)
    size, fault = processes.from_first((size, fault))
    if fault:
        raise InputError(fault)
    return {
        "format": options.format,
        "output": str(output),
        "quantization": options.quantization,
        "parameters": parameter_count(params),
        "bytes": size,
    }


def _write(folder: Path, run: Run, params: Parameters, options: Options) -> None:
    config, data = run.model.config, run.config["data"]
    decoding = run.config["decoding"]
    search = {key: decoding[key] for key in ("beam_size", "alpha")}
    if options.format == "ctranslate2":
        write_ctranslate2(
            folder, config, params, quantization=options.quantization,
            tokenizer=run.tokenizer, direction=direction(run.config),
            longest=data["max_length"], decoding=decoding,
        )  # fmt: skip
    elif options.format == "huggingface":
        languages = {key: data[key] for key in ("source_language", "target_language")}
        export_marian(config, params, run.tokenizer, folder, **languages, **search)
    else:
        write_stablehlo(
            folder, config, params, run.tokenizer,
            options=SearchOptions(**search, **options.search),
            extra_length=decoding["extra_length"],
            source_length=options.wishes.get("max_source_length", SOURCE_LENGTH),
        )  # fmt: skip
