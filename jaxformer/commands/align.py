"""--mode=align: the source piece that each piece of given translations attends to most.

Writes one line for each pair in the format of word aligners: "0-0 1-2" links source
piece 0 to target piece 0, and 1 to 2. --output=FILE.npz gets the attention of every
layer and head of pair 0 as "0/encoder" [N, H, S, S], "0/decoder" [N, H, T, T] and
"0/cross" [N, H, T, S], and its pieces as "0/source" and "0/target".
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer import processes
from jaxformer.commands.evaluate import read_text
from jaxformer.config_files import ConfigRequest
from jaxformer.errors import InputError
from jaxformer.progress import track
from jaxformer.run import open_translator


def run(
    *,
    config: ConfigRequest,
    workdir: Path,
    output: Path | None,
    source: Path | None,
    reference: Path | None,
    split: str,
    **options: Any,
) -> None:
    """Align the pairs of two files or of a split in the first process."""
    if output is not None and (output.exists() or output.suffix != ".npz"):
        raise InputError(
            f"--output={output} exists, or is not called .npz; give a new .npz file"
        )
    this, translator = open_translator(workdir, config, **options)
    text = read_text(this, source, reference, split)
    if not processes.is_first():
        return
    arrays = {}
    pairs = track(zip(*text, strict=True), "aligning", len(text.sources), unit="pairs")
    for line, pair in enumerate(pairs):
        maps = translator.attention(*pair)
        sys.stdout.buffer.write(f"{maps.pharaoh()}\n".encode())
        if output is not None:
            arrays |= {f"{line}/{key}": value for key, value in maps._asdict().items()}
    sys.stdout.buffer.flush()
    if output is not None:
        np.savez_compressed(output, **arrays)
