"""--mode=export: a trained model as a folder that another program loads.

FORMATS says which programs; each has a function here that hands a module of
`jaxformer.export` what it needs, and imports that module only then. The folder appears
whole or not at all.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from jaxformer import processes
from jaxformer.commands.options import Options
from jaxformer.commands.runs import Run, open_run, read_parameters
from jaxformer.decoding.options import SearchOptions
from jaxformer.errors import InputError
from jaxformer.models.sequence_model import parameter_count
from jaxformer.training.step import Parameters
from jaxformer.workdir import direction

SOURCE_LENGTH = 64  # pieces that a serialized program takes, if not told otherwise

# Writes a run with these parameters into an empty folder; raises InputError.
Writer = Callable[[Run, Parameters, Options, Path], None]


def _write_ctranslate2(
    run: Run, params: Parameters, options: Options, folder: Path
) -> None:
    from jaxformer.export.ctranslate2 import write_ctranslate2

    write_ctranslate2(
        folder,
        run.model.config,
        params,
        quantization=options.quantization,
        tokenizer=run.tokenizer,
        direction=direction(run.config),
        longest=run.config["data"]["max_length"],
        decoding=run.config["decoding"],
    )


def _write_huggingface(
    run: Run, params: Parameters, options: Options, folder: Path
) -> None:
    from jaxformer.export.marian import export_marian

    if options.quantization != "float32":
        raise InputError(
            f"--quantization={options.quantization} is not for --format=huggingface, "
            "whose weights are float32; leave it out"
        )
    export_marian(
        run.model.config,
        params,
        run.tokenizer,
        folder,
        source_language=run.config["data"]["source_language"],
        target_language=run.config["data"]["target_language"],
        beam_size=run.config["decoding"]["beam_size"],
        alpha=run.config["decoding"]["alpha"],
    )


def _write_stablehlo(
    run: Run, params: Parameters, options: Options, folder: Path
) -> None:
    from jaxformer.export.stablehlo import write_stablehlo

    if options.quantization != "float32":
        raise InputError(
            f"--quantization={options.quantization} is not for --format=stablehlo, "
            "whose weights are float32; leave it out"
        )
    tokenizer = run.tokenizer
    if tokenizer.source_model != tokenizer.target_model:
        raise InputError(
            f"{run.workdir.path} has a SentencePiece model for each language; "
            "--format=stablehlo is for one that both share"
        )
    decoding = run.config["decoding"]
    write_stablehlo(
        folder,
        run.model.config,
        params,
        tokenizer.source_model,
        options=SearchOptions(
            beam_size=decoding["beam_size"],
            alpha=decoding["alpha"],
            **options.search,
        ),
        extra_length=decoding["extra_length"],
        source_length=options.wishes.get("max_source_length", SOURCE_LENGTH),
    )


FORMATS: dict[str, Writer] = {
    "ctranslate2": _write_ctranslate2,
    "huggingface": _write_huggingface,
    "stablehlo": _write_stablehlo,
}


def run(options: Options) -> dict:
    """Write the model of a workdir for --format into the new folder --output.

    Of several processes the first one writes. Returns where, what and how large.
    """
    if options.format not in FORMATS:
        raise InputError(f"give --format, for which program: {', '.join(FORMATS)}")
    if options.output is None:
        raise InputError("--output is missing; give the new folder to write")
    this_run = open_run(options)
    params = read_parameters(this_run, options.checkpoint)
    output = Path(os.path.abspath(options.output))
    size, complaint = 0, None
    if processes.is_first():
        try:
            size = write_folder(
                output,
                lambda folder: FORMATS[options.format](
                    this_run, params, options, folder
                ),
            )
        except InputError as error:
            complaint = str(error)
    size, complaint = processes.from_first((size, complaint))
    if complaint:
        raise InputError(complaint)
    return {
        "format": options.format,
        "output": str(output),
        "quantization": options.quantization,
        "parameters": parameter_count(params),
        "bytes": size,
    }


def write_folder(output: Path, write: Callable[[Path], None]) -> int:
    """Let `write` fill a new folder, and call it `output` when it is whole.

    Returns the bytes in it. Raises InputError if `output` is there already and not an
    empty folder, or if there is no place for it. An error of `write`'s leaves nothing.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise InputError(
            f"--output={output} exists already; choose a new folder, or remove it"
        )
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"--output={output} cannot be written ({error.strerror}); choose another "
            "folder"
        ) from error
    try:
        write(partial)
        size = sum(file.stat().st_size for file in partial.rglob("*"))
        os.replace(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # already gone if all went well
    return size
