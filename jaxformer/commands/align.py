"""--mode=align: which source piece each piece of given translations looks at.

One line a pair, as word aligners write them: "0-0 1-2" links source piece 0 to target
piece 0 and source piece 1 to target piece 2. With --output=FILE.npz also the attention
of every layer and head, by pair: "0/encoder" [N, H, S, S], "0/decoder" [N, H, T, T],
"0/cross" [N, H, T, S], "0/source" and "0/target", the pieces.
"""

import sys
from pathlib import Path

import numpy as np

from jaxformer import processes
from jaxformer.commands.evaluate import read_pairs_for
from jaxformer.commands.options import Options
from jaxformer.commands.runs import open_translator
from jaxformer.errors import InputError


def run(options: Options) -> None:
    """Align --source with --reference, or a split, line by line.

    Of several processes the first one works. Raises InputError for an --output that
    exists or cannot be written.
    """
    run_, translator = open_translator(options)
    sources, references = read_pairs_for(run_, options)
    output = Path(options.output) if options.output else None
    if output is not None and (output.exists() or output.suffix != ".npz"):
        raise InputError(
            f"--output={output} exists, or is not called .npz; give a new .npz file"
        )
    if not processes.is_first():
        return
    arrays = {}
    for line, pair in enumerate(zip(sources, references, strict=True)):
        maps = translator.attention(*pair)
        sys.stdout.buffer.write(f"{maps.pharaoh()}\n".encode())
        if output is not None:
            arrays |= {f"{line}/{key}": value for key, value in maps._asdict().items()}
    sys.stdout.buffer.flush()
    if output is not None:
        try:
            np.savez_compressed(output, **arrays)
        except OSError as error:
            raise InputError(
                f"{output} cannot be written: {error.strerror}; choose another --output"
            ) from error
