"""--mode=export: a trained model as a folder that another program loads."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from jaxformer import processes
from jaxformer.config_files import ConfigRequest
from jaxformer.decoding.options import TranslateOptions
from jaxformer.errors import InputError
from jaxformer.export.ctranslate2 import write_ctranslate2
from jaxformer.export.marian import export_marian
from jaxformer.export.parameters import require_exportable
from jaxformer.export.stablehlo import write_stablehlo
from jaxformer.files import new_folder
from jaxformer.models.sequence_model import parameter_count
from jaxformer.run import open_run, read_parameters


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    checkpoint: str | None,
    format: str | None,
    quantization: str,
    output: Path | None,
    source_length: int,
    **search: Any,
) -> dict:
    """Write the model of a workdir for a program into the new folder `output`.

    Of several processes the first one writes. Returns path, format and sizes.
    """
    if format is None:
        raise InputError("give --format=ctranslate2, huggingface or stablehlo")
    if output is None:
        raise InputError("--output is missing; give the new folder to write")
    if format != "ctranslate2" and quantization != "float32":
        raise InputError(
            f"--quantization={quantization} is not for --format={format}, whose "
            "weights are float32; leave it out"
        )
    this = open_run(workdir, config)
    require_exportable(this.config.model)
    params = read_parameters(this, checkpoint)
    options = TranslateOptions(**(vars(this.config.decoding) | search))
    write = {
        "ctranslate2": partial(write_ctranslate2, quantization=quantization),
        "huggingface": export_marian,
        "stablehlo": partial(write_stablehlo, source_length=source_length),
    }[format]
    path = Path(os.path.abspath(output))
    size = 0
    with processes.sharing_mistakes():
        if processes.is_first():
            with new_folder(path) as folder:
                write(folder, this.config, params, this.tokenizer, options)
                size = sum(file.stat().st_size for file in folder.iterdir())
    size = processes.from_first(size)
    return {
        "format": format,
        "output": str(path),
        "quantization": quantization,
        "parameters": parameter_count(params),
        "bytes": size,
    }
