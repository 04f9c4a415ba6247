"""--mode=align: the source piece that each piece of given translations attends to most.

One line a pair, as word aligners write them: "0-0 1-2" links source piece 0 to target
piece 0 and source piece 1 to target piece 2. With --output=FILE.npz also the attention
of every layer and head, by pair: "0/encoder" [N, H, S, S], "0/decoder" [N, H, T, T],
"0/cross" [N, H, T, S], "0/source" and "0/target", the pieces.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer import processes
from jaxformer.commands.evaluate import read_text
from jaxformer.config_files import ConfigRequest
from jaxformer.errors import InputError
from jaxformer.run import open_translator


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: str | None,
    checkpoint: str | None,
    source: str | None,
    reference: str | None,
    split: str,
    **options: Any,
) -> None:
    """Align the pairs of two files or of a split; of several processes the first does.

    Raises InputError for an `output` that exists or cannot be written.
    """
    this, translator = open_translator(
        workdir, config, checkpoint=checkpoint, **options
    )
    text = read_text(this, source, reference, split)
    if output is not None and (Path(output).exists() or not output.endswith(".npz")):
        raise InputError(
            f"--output={output} exists, or is not called .npz; give a new .npz file"
        )
    if not processes.is_first():
        return
    arrays = {}
    for line, pair in enumerate(zip(*text, strict=True)):
        maps = translator.attention(*pair)
        sys.stdout.buffer.write(f"{maps.pharaoh()}\n".encode())
        if output is not None:
            arrays |= {f"{line}/{key}": value for key, value in maps._asdict().items()}
    sys.stdout.buffer.flush()
    if output is not None:
        np.savez_compressed(output, **arrays)
